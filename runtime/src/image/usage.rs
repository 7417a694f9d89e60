//! Disk usage of a writable layer, which its container may be changing.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::fsutil::{is, stat};
use crate::walk::{At, DEPTH_MAX, Limits, Mounts, Then, Visitor, is_gone, walk};

/// The most entries of a count, and its time limit.
const ENTRIES_MAX: u64 = 10_000_000;
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub inodes: u64,
    /// All of the tree was counted; otherwise the usage is a lower bound.
    pub is_whole: bool,
}

/// Counts the tree at `root`, without vanished entries. Ends early if `root` no longer exists: the
/// tree is being removed.
pub(super) fn usage(root: &Path) -> io::Result<Usage> {
    let top: OwnedFd = File::open(root)?.into();
    let limits = Limits {
        entries: ENTRIES_MAX,
        depth: DEPTH_MAX,
        until: Some(Instant::now() + LIMIT),
        is_over: &|| !root.exists(),
    };
    let mut count = Count::default();
    let cut = walk(top, Mounts::Refuse, &limits, &mut count)?;
    Ok(Usage {
        bytes: count.bytes.rounded(),
        inodes: 1 + count.inodes.rounded(),
        is_whole: cut.is_none() && !count.left_out,
    })
}

#[derive(Default)]
struct Count {
    bytes: Shares,
    inodes: Shares,
    left_out: bool,
}

/// A sum in parts of 2^-32. A file with n names counts with an nth at each, so that no name must be
/// remembered.
#[derive(Default)]
struct Shares(u128);

impl Shares {
    fn add(&mut self, number: u64, names: u64) {
        self.0 += (u128::from(number) << 32) / u128::from(names.max(1));
    }

    fn rounded(&self) -> u64 {
        u64::try_from((self.0 + (1 << 31)) >> 32).unwrap_or(u64::MAX)
    }
}

impl Visitor for Count {
    type Error = Errno;

    fn entry(&mut self, at: &At<'_>, name: &std::ffi::CStr, _: FileType) -> Result<Then, Errno> {
        let Ok(stat) = stat(at.dir, name) else {
            return Ok(Then::Pass);
        };
        let is_dir = is(&stat, FileType::Directory);
        let names = if is_dir { 1 } else { stat.st_nlink };
        self.inodes.add(1, names);
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        self.bytes.add(blocks * 512, names);
        Ok(if is_dir { Then::Enter } else { Then::Pass })
    }

    fn passed_over(&mut self, why: Errno) -> Result<(), Errno> {
        // If a directory was moved, the rest of its parents is missing too.
        self.left_out |= why == Errno::STALE || !is_gone(why);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn usage_counts_a_linked_file_once_and_follows_nothing() {
        let tmp = tempfile::tempdir().unwrap();
        let tree = tmp.path().join("tree");
        fs::create_dir_all(tree.join("d")).unwrap();
        fs::write(tree.join("d/f"), vec![1; 100_000]).unwrap();
        let before = usage(&tree).unwrap();
        assert_eq!((before.inodes, before.is_whole), (3, true));
        assert!((100_000..200_000).contains(&before.bytes), "{before:?}");
        for name in ["again", "third"] {
            fs::hard_link(tree.join("d/f"), tree.join(name)).unwrap();
            assert_eq!(usage(&tree).unwrap(), before, "{name}");
        }
        fs::write(tmp.path().join("outside"), vec![1; 1_000_000]).unwrap();
        std::os::unix::fs::symlink(tmp.path(), tree.join("out")).unwrap();
        assert!(usage(&tree).unwrap().bytes < 200_000);
    }
}

//! Frequently read files of one cgroup, kept open: a reading is then one system call, without path
//! lookup, opening and closing.

use super::io;
use super::values::parse_limit;
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Files below this size come in one read and are kept; longer ones are listings.
const ONE_READ: usize = 8 << 10;
/// Kept files may use this fraction of the process's limit of open files: one in `SHARE`.
const SHARE: u64 = 4;

/// Kept files of all cgroups.
static KEPT: AtomicU64 = AtomicU64::new(0);

/// Kept files of one cgroup. Drop it with the cgroup: an open file keeps its memory.
#[derive(Debug, Default)]
pub struct OpenFiles(Vec<(&'static str, File)>);

impl OpenFiles {
    /// The text of a file; `None` if it does not exist, or was removed.
    pub(super) fn text(&mut self, dir: &Path, name: &'static str) -> Option<String> {
        if let Some(at) = self.0.iter().position(|(kept, _)| *kept == name) {
            if let Some(text) = read_once(&self.0[at].1) {
                return Some(text);
            }
            // Removed, and perhaps made again.
            self.0.swap_remove(at);
            KEPT.fetch_sub(1, Ordering::Relaxed);
        }
        let path = dir.join(name);
        let file = File::open(&path).ok()?;
        let Some(text) = read_once(&file) else {
            return io::read(&path).ok();
        };
        if may_keep() {
            KEPT.fetch_add(1, Ordering::Relaxed);
            self.0.push((name, file));
        }
        Some(text)
    }

    pub(super) fn number(&mut self, dir: &Path, name: &'static str) -> Option<u64> {
        self.text(dir, name)?.trim().parse().ok()
    }

    pub(super) fn limit(&mut self, dir: &Path, name: &'static str) -> Option<u64> {
        parse_limit(&self.text(dir, name)?)
    }
}

impl Drop for OpenFiles {
    fn drop(&mut self) {
        KEPT.fetch_sub(self.0.len() as u64, Ordering::Relaxed);
    }
}

/// Reads from the start, for which the kernel makes a new text; `None` if longer or unreadable.
fn read_once(file: &File) -> Option<String> {
    let mut text = [0_u8; ONE_READ];
    let length = file.read_at(&mut text, 0).ok()?;
    let text = text.get(..length).filter(|_| length < ONE_READ)?;
    String::from_utf8(text.to_vec()).ok()
}

fn may_keep() -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    KEPT.load(Ordering::Relaxed) < limit / SHARE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_kept_and_read_anew_each_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory.current");
        let mut files = OpenFiles::default();
        assert_eq!(files.number(dir.path(), "memory.current"), None);
        std::fs::write(&path, "1\n").unwrap();
        assert_eq!(files.number(dir.path(), "memory.current"), Some(1));
        std::fs::write(&path, "22\n").unwrap();
        assert_eq!(files.number(dir.path(), "memory.current"), Some(22));
        assert_eq!(files.0.len(), 1);
    }

    #[test]
    fn a_text_longer_than_one_read_is_read_completely_and_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let long = "x".repeat(3 * ONE_READ);
        std::fs::write(dir.path().join("memory.stat"), &long).unwrap();
        let mut files = OpenFiles::default();
        assert_eq!(files.text(dir.path(), "memory.stat"), Some(long));
        assert!(files.0.is_empty());
    }
}

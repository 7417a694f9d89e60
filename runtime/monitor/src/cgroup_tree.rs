//! Walks a cgroup and all cgroups below it, as deep and wide as a container may make them.
//!
//! At most two descriptors are open. The first one to open a directory reads all its names in one
//! pass: a directory position is a hash of a name, and a container can find names with equal
//! hashes. The way up is `..`: the kernel never moves a cgroup to another parent. Paths end at 4096
//! bytes.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, openat, unlinkat};
use rustix::io::Errno;

/// Limit of cgroups per walk. Each takes kilobytes of kernel memory.
const MOST: usize = 1 << 20;
/// Limit of name bytes kept per walk: 64 for each cgroup.
const MOST_BYTES: usize = 64 << 20;

/// Adds the processes of the cgroup at `top` and of all below it, as this PID namespace sees them,
/// without zombies. A missing cgroup has none. After an error, `into` has those found so far.
///
/// # Errors
/// More than a million cgroups, too many bytes of their names, or the kernel's.
pub fn list_processes(top: &Path, into: &mut impl Extend<i32>) -> io::Result<()> {
    let walked = walk(top, |step| match step {
        Step::Enter(group) => read_processes(group, into),
        Step::Leave(..) => Ok(()),
    });
    ignore_missing(walked)
}

/// Removes the cgroup at `top` and all below it; a missing one counts as removed.
///
/// # Errors
/// The last failed removal, such as of a cgroup with a process; all others are removed.
pub fn remove(top: &Path) -> io::Result<()> {
    // Usually it has no children.
    match ignore_missing(std::fs::remove_dir(top)) {
        Err(e) if is_busy(&e) => {}
        other => return other,
    }
    let mut failed = None;
    let walked = walk(top, |step| {
        if let Step::Leave(parent, name) = step
            && let Err(e) =
                ignore_missing(unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(io::Error::from))
        {
            failed = Some(e);
        }
        Ok(())
    });
    ignore_missing(walked)?;
    ignore_missing(std::fs::remove_dir(top)).map_err(|e| failed.unwrap_or(e))
}

/// Thaws the cgroup at `top` of the v1 freezer, and all below it that the container may have
/// frozen: no signal ends a frozen process.
///
/// # Errors
/// As [`list_processes`].
pub fn thaw(top: &Path) -> io::Result<()> {
    let walked = walk(top, |step| match step {
        Step::Enter(group) => ignore_missing(thaw_one(group)),
        Step::Leave(..) => Ok(()),
    });
    ignore_missing(walked)
}

fn thaw_one(group: BorrowedFd<'_>) -> io::Result<()> {
    let open = |name, flags| openat(group, name, flags | OFlags::CLOEXEC, Mode::empty());
    let mut by_itself = [0];
    let asked = open(c"freezer.self_freezing", OFlags::RDONLY)?;
    if rustix::io::read(&asked, &mut by_itself)? == 1 && by_itself == *b"1" {
        let state = open(c"freezer.state", OFlags::WRONLY)?;
        rustix::io::write(&state, b"THAWED")?;
    }
    Ok(())
}

/// A process or another cgroup is still in it. Other file systems return ENOTEMPTY.
pub fn is_busy(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty
    )
}

/// Treats a missing cgroup or file as success.
pub fn ignore_missing(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(e) if is_gone(&e) => Ok(()),
        other => other,
    }
}

/// Whether the error means a removed cgroup: ENODEV if it was opened before.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || is(error, Errno::NODEV)
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

enum Step<'a> {
    /// Before all cgroups below it.
    Enter(BorrowedFd<'a>),
    /// After all cgroups below it: its parent and its name there. Not called for the top.
    Leave(BorrowedFd<'a>, &'a CStr),
}

fn walk(top: &Path, mut visit: impl FnMut(Step<'_>) -> io::Result<()>) -> io::Result<()> {
    let mut dir = open(CWD, top)?;
    visit(Step::Enter(dir.as_fd()))?;
    let mut names = Names::default();
    names.read(&dir, top)?;
    // The length of the names above this directory's children; and of those of each ancestor.
    let mut others = 0;
    let mut above: Vec<usize> = Vec::new();
    loop {
        if names.bytes.len() > others {
            let below = match open(&dir, names.last()) {
                Err(Errno::NOENT) => {
                    names.forget_last();
                    continue;
                }
                other => other?,
            };
            visit(Step::Enter(below.as_fd()))?;
            above.push(others);
            others = names.bytes.len();
            dir = below;
            names.read(&dir, top)?;
        } else if let Some(before) = above.pop() {
            dir = open(&dir, c"..")?;
            visit(Step::Leave(dir.as_fd(), names.last()))?;
            names.forget_last();
            others = before;
        } else {
            return Ok(());
        }
    }
}

fn open<P: rustix::path::Arg>(at: impl AsFd, name: P) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

/// The directories on the way down, each after its unvisited siblings, NUL-terminated.
#[derive(Default)]
struct Names {
    bytes: Vec<u8>,
    /// The number of names, visited ones included.
    read: usize,
}

impl Names {
    /// Adds the subdirectories of `dir`, whose position must be at the start.
    fn read(&mut self, dir: &OwnedFd, top: &Path) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 2048];
        let mut entries = RawDir::new(dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                // Removed concurrently.
                Err(Errno::NOENT) => return Ok(()),
                other => other?,
            };
            let name = entry.file_name();
            if entry.file_type() == FileType::Directory
                && !matches!(name.to_bytes(), b"." | b"..")
                && !self.add(name)
            {
                let text = format!(
                    "{}: more than {MOST} cgroups, or more than {MOST_BYTES} bytes of their names",
                    top.display()
                );
                return Err(io::Error::other(text));
            }
        }
        Ok(())
    }

    /// Adds a name. Returns false at a limit.
    fn add(&mut self, name: &CStr) -> bool {
        let name = name.to_bytes_with_nul();
        // Plus one for the top.
        if self.read + 1 >= MOST || self.bytes.len() + name.len() > MOST_BYTES {
            return false;
        }
        self.read += 1;
        self.bytes.extend_from_slice(name);
        true
    }

    fn last(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.bytes[self.start_of_last()..]).unwrap_or_default()
    }

    fn forget_last(&mut self) {
        self.bytes.truncate(self.start_of_last());
    }

    fn start_of_last(&self) -> usize {
        let but_its_end = self.bytes.split_last().map_or(&[][..], |(_, rest)| rest);
        let end_before = but_its_end.iter().rposition(|b| *b == 0);
        end_before.map_or(0, |end| end + 1)
    }
}

fn read_processes(group: BorrowedFd<'_>, into: &mut impl Extend<i32>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut text = String::new();
    let read = openat(group, c"cgroup.procs", flags, Mode::empty())
        .map_err(io::Error::from)
        .and_then(|file| File::from(file).read_to_string(&mut text).map(drop));
    match read {
        // A threaded cgroup of the container does not list processes; its domain does.
        Err(e) if is(&e, Errno::OPNOTSUPP) => return Ok(()),
        other => ignore_missing(other)?,
    }
    let pids = text.lines().filter_map(|line| line.parse::<i32>().ok());
    // 0 is a process outside of our PID namespace.
    into.extend(pids.filter(|pid| *pid > 0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// Wide directories, and a chain of 100 names of 200 bytes: deeper than a path can express.
    fn tree() -> (tempfile::TempDir, usize) {
        let tmp = tempfile::tempdir().unwrap();
        fs::write(tmp.path().join("cgroup.procs"), "1\n0\n").unwrap();
        let name = "d".repeat(200);
        let mut at = open(CWD, tmp.path()).unwrap();
        let mut groups = 1;
        for level in 0..100 {
            for name in [&*name, "beside"] {
                rustix::fs::mkdirat(&at, name, Mode::RWXU).unwrap();
                groups += 1;
            }
            at = open(&at, &*name).unwrap();
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
            let procs = openat(&at, "cgroup.procs", flags, Mode::RUSR | Mode::WUSR).unwrap();
            rustix::io::write(&procs, format!("{}\n", level + 2).as_bytes()).unwrap();
        }
        for n in 0..300 {
            fs::create_dir(tmp.path().join(format!("w{n}"))).unwrap();
            groups += 1;
        }
        (tmp, groups)
    }

    #[test]
    fn processes_are_listed_deeper_than_a_path_can_say() {
        let (tmp, _) = tree();
        let mut pids = Vec::new();
        list_processes(tmp.path(), &mut pids).unwrap();
        pids.sort_unstable();
        assert_eq!(pids, (1..=101).collect::<Vec<i32>>());
        pids.clear();
        list_processes(&tmp.path().join("nowhere"), &mut pids).unwrap();
        assert!(pids.is_empty(), "{pids:?}");
        remove_files(tmp.path());
    }

    /// A cgroup's files disappear with its directory; here they are removed first.
    fn remove_files(top: &Path) {
        let removed = walk(top, |step| {
            if let Step::Enter(group) = step {
                ignore_missing(
                    unlinkat(group, c"cgroup.procs", AtFlags::empty()).map_err(io::Error::from),
                )?;
            }
            Ok(())
        });
        removed.unwrap();
        remove(top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn each_directory_is_entered_once_and_left_once_after_those_below_it() {
        let (tmp, groups) = tree();
        let (mut open, mut entered) = (0_usize, 0);
        walk(tmp.path(), |step| {
            match step {
                Step::Enter(_) => (open, entered) = (open + 1, entered + 1),
                Step::Leave(..) => open -= 1,
            }
            Ok(())
        })
        .unwrap();
        assert_eq!((open, entered), (1, groups));
        remove_files(tmp.path());
    }

    #[test]
    fn names_are_kept_up_to_a_number_and_a_length() {
        let mut names = Names::default();
        assert!(names.add(c"a") && names.add(c"bc") && names.last() == c"bc");
        names.forget_last();
        assert_eq!(names.last(), c"a");
        names.forget_last();
        assert!(names.bytes.is_empty());
        // The limit counts forgotten names, too.
        while names.add(c"d") {
            names.forget_last();
        }
        assert_eq!(names.read, MOST - 1);
        let long = [vec![b'e'; 255], vec![0]].concat();
        let long = CStr::from_bytes_with_nul(&long).unwrap();
        let mut names = Names::default();
        while names.add(long) {}
        assert_eq!(names.bytes.len(), MOST_BYTES);
    }

    /// A cgroup of the test's own, in one hierarchy of this machine.
    struct Own(PathBuf);

    impl Own {
        /// Makes one cgroup in each writable hierarchy.
        fn everywhere(test: &str) -> Vec<Own> {
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
            let of_cgroups = mounts.lines().filter_map(|line| {
                let mut fields = line.split(' ').skip(1);
                let at = fields.next()?;
                matches!(fields.next(), Some("cgroup" | "cgroup2")).then_some(at)
            });
            let name = format!("cairn-test-{}-{test}", std::process::id());
            let made = of_cgroups.filter_map(|at| {
                let dir = Path::new(at).join(&name);
                match fs::create_dir(&dir) {
                    Ok(()) => Some(Own(dir)),
                    Err(e) => {
                        eprintln!("skipped: {}: {e}", dir.display());
                        None
                    }
                }
            });
            made.collect()
        }
    }

    impl Drop for Own {
        fn drop(&mut self) {
            // Independent of the tested code. Files of a cgroup disappear with it.
            fn clean(dir: &Path) {
                for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                    if entry.file_type().is_ok_and(|of| of.is_dir()) {
                        clean(&entry.path());
                    }
                }
                let _ = fs::remove_dir(dir); // it may be removed already
            }
            clean(&self.0);
        }
    }

    /// The kernel orders a directory of a cgroup by a hash of the name. `al` and `ba` have the same
    /// hash, and so have the four longer names.
    #[test]
    fn cgroups_whose_names_the_kernel_places_alike_are_entered_once_each_and_removed() {
        let alike = ["al", "ba", "alal", "alba", "baal", "baba"];
        for own in Own::everywhere("alike") {
            let mut made = BTreeSet::from([Vec::new()]);
            for outer in alike {
                made.insert(vec![outer.to_owned()]);
                for inner in alike {
                    fs::create_dir_all(own.0.join(outer).join(inner)).unwrap();
                    made.insert(vec![outer.to_owned(), inner.to_owned()]);
                }
            }
            let mut entered = 0;
            let mut left = Vec::new();
            walk(&own.0, |step| {
                match step {
                    Step::Enter(_) => entered += 1,
                    Step::Leave(_, name) => left.push(name.to_str().unwrap().to_owned()),
                }
                assert!(entered <= made.len(), "{}: again", own.0.display());
                Ok(())
            })
            .unwrap();
            assert_eq!(entered, made.len(), "{}", own.0.display());
            // Each is left before its parent: six groups of six and their parent, each of another
            // name.
            let mut seen = BTreeSet::from([Vec::new()]);
            for group in left.chunks(alike.len() + 1) {
                let (outer, inner) = group.split_last().unwrap();
                seen.insert(vec![outer.clone()]);
                seen.extend(inner.iter().map(|i| vec![outer.clone(), i.clone()]));
            }
            assert_eq!(seen, made, "{}", own.0.display());
            let mut pids = Vec::new();
            list_processes(&own.0, &mut pids).unwrap();
            assert!(pids.is_empty(), "{pids:?}");
            remove(&own.0).unwrap();
            assert!(!own.0.exists());
        }
    }

    #[test]
    fn a_busy_cgroup_stays_and_is_the_error_and_all_beside_it_is_removed() {
        let tmp = tempfile::tempdir().unwrap();
        fs::create_dir_all(tmp.path().join("a/b/c")).unwrap();
        fs::create_dir_all(tmp.path().join("d/e")).unwrap();
        // Stands for a process.
        fs::write(tmp.path().join("a/b/file"), "").unwrap();
        let error = remove(tmp.path()).unwrap_err();
        assert!(is_busy(&error), "{error}");
        assert!(tmp.path().join("a/b").exists());
        assert!(!tmp.path().join("a/b/c").exists() && !tmp.path().join("d").exists());
    }
}

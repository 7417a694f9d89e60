//! Walks a cgroup with all cgroups below it. A container that may write to its cgroups chooses how deep and how wide they are.
//!
//! One descriptor is open at a time, and each level costs a name and a position. The way up is `..`: the kernel moves no
//! cgroup to another parent. Paths would end at 4096 bytes.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, SeekFrom, openat, seek, unlinkat};
use rustix::io::Errno;

/// Most cgroups that one walk visits. Each takes kilobytes of the kernel's memory.
const MOST: usize = 1 << 20;

/// Adds the processes of the cgroup at `top` and of all below it, as this PID namespace sees them. Zombies are not
/// among them. A cgroup that does not exist has none. After an error, those found until then are in `into`.
///
/// # Errors
/// More than a million cgroups, or the kernel's.
pub fn list_processes(top: &Path, into: &mut impl Extend<i32>) -> io::Result<()> {
    let walked = walk(top, |step| match step {
        Step::Enter(group) => read_processes(group, into),
        Step::Leave(..) => Ok(()),
    });
    gone(walked)
}

/// Removes the cgroup at `top` and all below it. What does not exist is removed already.
///
/// # Errors
/// The last that could not be removed, such as one with a process in it; all others are removed then.
pub fn remove(top: &Path) -> io::Result<()> {
    // Usually nothing is below it.
    match gone(std::fs::remove_dir(top)) {
        Err(e) if is_busy(&e) => {}
        other => return other,
    }
    let mut failed = None;
    let walked = walk(top, |step| {
        if let Step::Leave(parent, name) = step
            && let Err(e) =
                gone(unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(io::Error::from))
        {
            failed = Some(e);
        }
        Ok(())
    });
    gone(walked)?;
    gone(std::fs::remove_dir(top)).map_err(|e| failed.unwrap_or(e))
}

/// Thaws the cgroup at `top` of the v1 freezer, and all below it that are frozen by themselves: the container may have done
/// that, and no signal ends a process in one of them.
///
/// # Errors
/// As [`list_processes`].
pub fn thaw(top: &Path) -> io::Result<()> {
    let walked = walk(top, |step| match step {
        Step::Enter(group) => gone(thaw_one(group)),
        Step::Leave(..) => Ok(()),
    });
    gone(walked)
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

/// A process or another cgroup is still in it. ENOTEMPTY is what other file systems say.
pub fn is_busy(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty
    )
}

/// How the kernel names a cgroup that was removed: ENODEV where it was opened before.
fn gone(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(e) if e.kind() == io::ErrorKind::NotFound || is(&e, Errno::NODEV) => Ok(()),
        other => other,
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

enum Step<'a> {
    /// Before all that is below it.
    Enter(BorrowedFd<'a>),
    /// After all that is below it: its parent, and its name there. The top is not left.
    Leave(BorrowedFd<'a>, &'a CStr),
}

fn walk(top: &Path, mut visit: impl FnMut(Step<'_>) -> io::Result<()>) -> io::Result<()> {
    let mut dir = open(CWD, top)?;
    visit(Step::Enter(dir.as_fd()))?;
    // Of each directory on the way down: its name, and where the reading of its parent goes on.
    let mut levels: Vec<(CString, u64)> = Vec::new();
    let mut visited = 1;
    let mut from = 0;
    loop {
        if let Some((name, next)) = next_below(&dir, from)? {
            from = next;
            let below = match open(&dir, &*name) {
                Err(Errno::NOENT) => continue,
                other => other?,
            };
            visited += 1;
            if visited > MOST {
                let text = format!("{}: more than {MOST} cgroups", top.display());
                return Err(io::Error::other(text));
            }
            visit(Step::Enter(below.as_fd()))?;
            levels.push((name, next));
            (dir, from) = (below, 0);
        } else if let Some((name, next)) = levels.pop() {
            dir = open(&dir, c"..")?;
            visit(Step::Leave(dir.as_fd(), &name))?;
            from = next;
        } else {
            return Ok(());
        }
    }
}

fn open<P: rustix::path::Arg>(at: impl AsFd, name: P) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

/// The first directory from this position on, and the position behind it.
fn next_below(dir: &OwnedFd, from: u64) -> rustix::io::Result<Option<(CString, u64)>> {
    seek(dir, SeekFrom::Start(from))?;
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(dir, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = match entry {
            // It was removed meanwhile.
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let name = entry.file_name();
        if entry.file_type() == FileType::Directory && !matches!(name.to_bytes(), b"." | b"..") {
            return Ok(Some((name.to_owned(), entry.next_entry_cookie())));
        }
    }
    Ok(None)
}

fn read_processes(group: BorrowedFd<'_>, into: &mut impl Extend<i32>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut text = String::new();
    let read = openat(group, c"cgroup.procs", flags, Mode::empty())
        .map_err(io::Error::from)
        .and_then(|file| File::from(file).read_to_string(&mut text).map(drop));
    match read {
        // A threaded cgroup of the container's own does not list processes; its domain does.
        Err(e) if is(&e, Errno::OPNOTSUPP) => return Ok(()),
        other => gone(other)?,
    }
    let pids = text.lines().filter_map(|line| line.parse::<i32>().ok());
    // 0: a process outside of our PID namespace.
    into.extend(pids.filter(|pid| *pid > 0));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A chain of directories of 200 bytes each, deeper than a path can say, and wide ones.
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

    /// Files stand for nothing in a cgroup: they go with its directory.
    fn remove_files(top: &Path) {
        let removed = walk(top, |step| {
            if let Step::Enter(group) = step {
                gone(unlinkat(group, c"cgroup.procs", AtFlags::empty()).map_err(io::Error::from))?;
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
    fn what_is_busy_stays_and_is_the_error_and_all_beside_it_goes() {
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

//! Opens paths named by a container (working directory, program, mount target) with our privileges.
//!
//! A path never leaves the root, and never follows a magic link of procfs (CVE-2024-21626).

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, ResolveFlags};

use crate::sys;

const RESOLVE: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

/// A path of an image or a configuration; relative paths start at the root too.
fn c_path(path: &[u8]) -> io::Result<CString> {
    let path: &[u8] = if path.is_empty() { b"/" } else { path };
    CString::new(path).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Opens `path` below `root`.
pub fn open(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    loop {
        match sys::open_at(root, &path, flags, RESOLVE) {
            // A concurrent rename while the kernel resolved a `..`: it asks for another attempt.
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(e) if e.raw_os_error() == Some(libc::ELOOP) => return Err(describe_loop(&e)),
            other => return other,
        }
    }
}

fn describe_loop(e: &io::Error) -> io::Error {
    io::Error::new(
        e.kind(),
        "a symlink loop or a magic link of procfs is not followed",
    )
}

/// Opens a directory as a base for further lookups.
pub fn directory(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    open(root, path, OFlags::PATH | OFlags::DIRECTORY)
}

/// [`directory`]; creates missing directories on the way.
pub fn make_directories(root: BorrowedFd<'_>, path: &[u8], mode: u32) -> io::Result<OwnedFd> {
    match directory(root, path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    let mut done = Vec::new();
    let mut dir = directory(root, b"/")?;
    for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty()) {
        done.push(b'/');
        done.extend_from_slice(name);
        dir = match directory(root, &done) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                match sys::make_directory_at(dir.as_fd(), &c_path(name)?, mode) {
                    Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                    _ => directory(root, &done)?,
                }
            }
            other => other?,
        };
    }
    Ok(dir)
}

/// Changes the working directory, and checks that it is below this process's root.
pub fn enter(path: &[u8]) -> io::Result<()> {
    let root = sys::open_root()?;
    let dir = directory(root.as_fd(), path)?;
    sys::enter_directory(dir.as_fd())?;
    if sys::working_directory_is_below_root()? {
        return Ok(());
    }
    sys::enter_directory(root.as_fd())?;
    Err(io::Error::other(
        "the directory is outside of the container",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_leads_out_of_the_root_or_through_procfs() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("etc")).expect("a directory");
        symlink("/etc", dir.path().join("absolute")).expect("a link");
        symlink("../../../../etc", dir.path().join("up")).expect("a link");
        let root = File::open(dir.path()).expect("it is there");
        for path in ["/etc", "absolute", "/up", "../../etc", "", "/"] {
            directory(root.as_fd(), path.as_bytes())
                .unwrap_or_else(|e| panic!("{path:?} is in the root: {e}"));
        }
        directory(root.as_fd(), b"/proc").expect_err("the root has no proc");
        let host = File::open("/").expect("a root");
        for path in [
            "/proc/self/fd/0/..",
            "/proc/self/cwd",
            "/proc/self/root",
            "/proc/self/exe",
        ] {
            let error = open(host.as_fd(), path.as_bytes(), OFlags::PATH).expect_err(path);
            assert!(error.to_string().contains("procfs"), "{path}: {error}");
        }
    }

    #[test]
    fn missing_directories_are_made_inside() {
        let dir = tempfile::tempdir().expect("a directory");
        symlink("/real", dir.path().join("link")).expect("a link");
        fs::create_dir(dir.path().join("real")).expect("a directory");
        let root = File::open(dir.path()).expect("it is there");
        make_directories(root.as_fd(), b"/link/a//b", 0o755).expect("it can be made");
        assert!(dir.path().join("real/a/b").is_dir());
        make_directories(root.as_fd(), b"/real/a/../../../c", 0o755).expect("it can be made");
        assert!(dir.path().join("c").is_dir());
    }
}

//! Where a container's log lies: below a directory that the client named for the pod. That directory may be mounted in
//! containers, which may put links there: below it none is followed.
//!
//! Carried as `<directory>/./<file>`. A path without that mark is of an earlier version: all but its last component is the
//! directory.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

const MARK: &str = "/./";

/// The path with its mark, if `path` lies below `directory`.
pub fn marked(path: &Path, directory: &Path) -> PathBuf {
    match path.strip_prefix(directory) {
        Ok(file) if file.components().count() > 0 => {
            let mut marked = directory.as_os_str().to_owned();
            marked.push(MARK);
            marked.push(file.components().as_path());
            marked.into()
        }
        _ => path.to_owned(),
    }
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once(MARK)
        .or_else(|| path.rsplit_once('/'))
        .unwrap_or((".", path))
}

/// The directories on the way, 0755.
pub fn make_parents(path: &str) -> io::Result<()> {
    let (directory, file) = split(path);
    std::fs::create_dir_all(directory)?;
    let mut dir = open_directory(directory)?;
    let parents = Path::new(file).parent().into_iter();
    for component in parents.flat_map(Path::components) {
        let Component::Normal(name) = component else {
            return Err(io::Error::other("it leads out of the pod's directory"));
        };
        dir = match below(&dir, name, OFlags::PATH | OFlags::DIRECTORY) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                match rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(e.into()),
                }
                below(&dir, name, OFlags::PATH | OFlags::DIRECTORY)?
            }
            other => other?,
        };
    }
    Ok(())
}

/// 0640, root's; to append to. A pipe is not waited for.
pub fn open(path: &str) -> io::Result<File> {
    let (directory, file) = split(path);
    let flags =
        OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(below(&open_directory(directory)?, file.as_ref(), flags)?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("not a regular file"))
    }
}

fn open_directory(path: &str) -> io::Result<OwnedFd> {
    let path = if path.is_empty() { "/" } else { path };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

fn below(dir: &OwnedFd, path: &OsStr, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let mode = if flags.contains(OFlags::CREATE) {
        Mode::from_raw_mode(0o640)
    } else {
        Mode::empty()
    };
    loop {
        match rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, mode, resolve) {
            // Something was renamed meanwhile: the kernel asks to try again.
            Err(Errno::AGAIN) => {}
            Err(Errno::LOOP) => {
                return Err(io::Error::other(
                    "a link is in its way, which is not followed",
                ));
            }
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_mark_stands_where_the_clients_directory_ends() {
        let marked = |path, dir| marked(Path::new(path), Path::new(dir));
        assert_eq!(marked("/l/p/c/0.log", "/l/p"), Path::new("/l/p/./c/0.log"));
        assert_eq!(
            marked("/l/p/c/0.log", "/l/p").to_str(),
            Some("/l/p/./c/0.log")
        );
        assert_eq!(
            marked("/elsewhere/0.log", "/l/p").to_str(),
            Some("/elsewhere/0.log")
        );
        assert_eq!(split("/l/p/./c/0.log"), ("/l/p", "c/0.log"));
        assert_eq!(split("/l/p/c/0.log"), ("/l/p/c", "0.log"));
    }

    #[test]
    fn no_link_is_followed_below_the_directory() {
        let base = tempfile::tempdir().expect("a directory");
        let outside = base.path().join("outside");
        fs::create_dir(&outside).expect("a directory");
        symlink(base.path().join("logs"), base.path().join("linked")).expect("a link");
        fs::create_dir(base.path().join("logs")).expect("a directory");
        // The client's own part may be a link.
        let path = |below: &str| format!("{}/linked/./{below}", base.path().display());
        make_parents(&path("c/0.log")).expect("made");
        open(&path("c/0.log")).expect("opened");
        fs::remove_dir_all(base.path().join("logs/c")).expect("ours");
        symlink(&outside, base.path().join("logs/c")).expect("a link");
        make_parents(&path("c/1.log")).expect_err("a link is in the way");
        let error = open(&path("c/1.log")).expect_err("a link is in the way");
        assert!(error.to_string().contains("link"), "{error}");
        symlink(outside.join("x"), base.path().join("logs/x")).expect("a link");
        open(&path("x")).expect_err("the file is a link");
        assert_eq!(fs::read_dir(&outside).expect("ours").count(), 0);
    }
}

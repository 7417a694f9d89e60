//! Reads the files that cairn wrote itself: records, specs, and the files of a container.
//!
//! Only regular files of at most [`MAX`] bytes, and no links: another object in a file's place must
//! not make a process of the runtime read without end, wait for a fifo, or open a device. The writers
//! keep the bound.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};

/// The longest file, and four times the longest CRI request.
pub const MAX: u64 = 64 * 1024 * 1024;

/// Opens a regular file.
///
/// # Errors
/// The file system's; [`io::ErrorKind::InvalidData`] for any other object.
pub fn open(path: &Path) -> io::Result<File> {
    let how =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, how, Mode::empty()) {
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NXIO) => return Err(not_regular()),
        opened => opened?,
    };
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file.into()),
        _ => Err(not_regular()),
    }
}

/// Reads a file.
///
/// # Errors
/// As [`open`]; [`io::ErrorKind::FileTooLarge`] beyond [`MAX`].
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let file = open(path.as_ref())?;
    let length = file.metadata()?.len();
    check_length(length)?;
    let mut bytes = Vec::with_capacity(length as usize);
    // It may grow while it is read.
    file.take(MAX + 1).read_to_end(&mut bytes)?;
    check_length(bytes.len() as u64)?;
    Ok(bytes)
}

/// Reads a file of text.
///
/// # Errors
/// As [`read`]; [`io::ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Checks that a file of this length can be read again.
///
/// # Errors
/// [`io::ErrorKind::FileTooLarge`] beyond [`MAX`].
pub fn check_length(length: u64) -> io::Result<()> {
    if length <= MAX {
        return Ok(());
    }
    let cause = format!("is longer than {} MiB", MAX >> 20);
    Err(io::Error::new(io::ErrorKind::FileTooLarge, cause))
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "must be a regular file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_within_the_bound_are_read() {
        let dir = tempfile::tempdir().expect("tempdir");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "text").expect("written");
        assert_eq!(read(at("file")).expect("read"), b"text");
        assert_eq!(read_to_string(at("file")).expect("read"), "text");
        let missing = read(at("missing")).expect_err("missing");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);

        std::os::unix::fs::symlink("/dev/zero", at("zero")).expect("linked");
        std::os::unix::fs::symlink("file", at("link")).expect("linked");
        std::fs::create_dir(at("dir")).expect("made");
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), FileType::Fifo, mode, 0).expect("made");
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("bound");
        for name in ["zero", "link", "dir", "fifo", "socket"] {
            let refused = read(at(name)).expect_err(name);
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{name}");
        }
        let refused = read("/dev/zero").expect_err("a device");
        assert_eq!(refused.to_string(), "must be a regular file");

        // Sparse: the test writes nothing.
        File::create(at("long"))
            .and_then(|file| file.set_len(MAX + 1))
            .expect("made");
        let refused = read(at("long")).expect_err("too long");
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(refused.to_string(), "is longer than 64 MiB");
    }
}

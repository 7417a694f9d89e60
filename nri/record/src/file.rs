//! The file of a recording: readable by its owner only, with complete lines.

use std::{
    fs::File,
    io::{self, Seek as _, Write as _},
    path::Path,
};

use rustix::fs::{FileType, Mode, OFlags, fchmod, fstat, ftruncate, open};

/// Destination of lines.
pub(super) trait Sink: Send + 'static {
    /// Appends complete lines, all of them or none.
    fn append(&mut self, lines: &[u8]) -> io::Result<()>;
}

/// A regular file.
pub(super) struct Whole {
    file: File,
    /// Position of the next line.
    end: u64,
}

/// Creates the file, or truncates one of ours.
pub(super) fn create(path: &Path) -> io::Result<Whole> {
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let private = Mode::RUSR | Mode::WUSR;
    let file = open(path, flags, private).map_err(|e| match e {
        rustix::io::Errno::LOOP => {
            io::Error::other("it is a symlink, which is not followed: name the file itself")
        }
        e => e.into(),
    })?;
    let found = fstat(&file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a regular file; name another"));
    }
    if found.st_uid != rustix::process::geteuid().as_raw() || found.st_nlink > 1 {
        return Err(io::Error::other(
            "it is another user's, or has a second name: name another",
        ));
    }
    fchmod(&file, private)?;
    ftruncate(&file, 0)?;
    Ok(Whole {
        file: file.into(),
        end: 0,
    })
}

impl Sink for Whole {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if let Err(e) = self.file.write_all(lines) {
            // Removes a partial line. Truncation works on a full disk.
            let _ = self.file.set_len(self.end);
            let _ = self.file.seek(io::SeekFrom::Start(self.end));
            return Err(e);
        }
        self.end += lines.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn the_file_is_for_its_owner_alone_also_if_it_was_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("r.jsonl");
        std::fs::write(&path, "old and longer than the new").expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("its mode");
        create(&path).expect("ours").append(b"new\n").expect("room");
        assert_eq!(std::fs::read_to_string(&path).expect("text"), "new\n");
        let mode = std::fs::metadata(&path)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o600);
    }

    #[test]
    fn nothing_is_written_through_a_link_or_into_what_is_no_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        std::fs::write(&target, "precious").expect("a file");
        symlink(&target, &link).expect("a link");
        let refused = create(&link).err().expect("refused").to_string();
        assert!(refused.contains("symlink"), "{refused}");
        std::fs::remove_file(&link).expect("gone");
        std::fs::hard_link(&target, &link).expect("a second name");
        assert!(create(&link).is_err());
        assert_eq!(std::fs::read_to_string(&target).expect("text"), "precious");
        assert!(create(dir.path()).is_err());
        assert!(create(Path::new("/dev/null")).is_err());
    }
}

//! Files that appear whole: whoever reads one, also after a crash of ours, finds the old content or the new. What a write
//! leaves that fails is removed at once; what one leaves that is cut off, a `*.tmp`, by the start of who owns the directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The ending of a file that is being written.
pub const UNFINISHED: &str = "tmp";

/// Puts `bytes` at `path`, mode 0600. They outlive a loss of power once somebody has synced the file and its directory.
///
/// # Errors
/// The file system's; the old content is then still there, and nothing else.
pub fn file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    put(path, bytes, |_| Ok(()))
}

/// As [`file()`]; bytes and name are on stable storage when this returns.
///
/// # Errors
/// As [`file()`]'s. Where only the directory could not be synced, the new content is there.
pub fn file_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    put(path, bytes, File::sync_all)?;
    sync_parent(path)
}

fn put(path: &Path, bytes: &[u8], sync: fn(&File) -> io::Result<()>) -> io::Result<()> {
    let unfinished = path.with_extension(UNFINISHED);
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&unfinished)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| sync(&file)))
        .and_then(|()| fs::rename(&unfinished, path));
    written.inspect_err(|_| {
        let _never_made = fs::remove_file(&unfinished);
    })
}

/// Syncs the directory that `path` lies in.
///
/// # Errors
/// The file system's.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_fails_leaves_the_old_content_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        // As a full disk does: the bytes are taken, and cannot be put where they belong.
        let path = dir.path().join("a.json");
        fs::create_dir_all(path.join("in the way")).unwrap();
        for replace in [file, file_durably] {
            assert!(replace(&path, b"x").is_err());
            let there: Vec<_> = fs::read_dir(dir.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            assert_eq!(there, ["a.json"]);
        }
        fs::remove_dir_all(&path).unwrap();
        for (replace, content) in [(file as fn(&Path, &[u8]) -> _, "b"), (file_durably, "cc")] {
            replace(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
    }
}

//! Files that appear whole: whoever reads one, also after a crash of ours, finds the old content or the new. What a write
//! leaves that fails is removed at once; what one leaves that is cut off, a `*.tmp`, at the next write of the file, and, where
//! files have names that do not come again, by the start of who owns the directory.

#![expect(
    clippy::disallowed_methods,
    reason = "blocks by nature: called by blocking()"
)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

/// One descriptor is kept for the files written here: what became of a container is on record also while the table is full.
static SPARE: Mutex<Option<File>> = Mutex::new(None);
/// Whether it is to be there: only in the daemon.
static KEPT: AtomicBool = AtomicBool::new(false);

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
    let mut how = OpenOptions::new();
    how.write(true).create(true).truncate(true).mode(0o600);
    let write = |mut file: File| file.write_all(bytes).and_then(|()| sync(&file));
    let written = opened(&how, &unfinished, write).and_then(|()| fs::rename(&unfinished, path));
    written.inspect_err(|_| {
        // The file may not have been made.
        let _ = fs::remove_file(&unfinished);
    })
}

/// Opens a file for as long as `work` takes; with the spare descriptor where there is no other.
fn opened(
    how: &OpenOptions,
    path: &Path,
    work: impl FnOnce(File) -> io::Result<()>,
) -> io::Result<()> {
    match how.open(path) {
        Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            // Who waits here has its turn with it.
            let mut spare = SPARE.lock();
            *spare = None;
            let done = how.open(path).and_then(work);
            *spare = nothing();
            done
        }
        other => {
            // Somebody else had opened something between the two.
            if let Some(mut spare) = SPARE.try_lock()
                && spare.is_none()
                && KEPT.load(Ordering::Relaxed)
            {
                *spare = nothing();
            }
            other.and_then(work)
        }
    }
}

fn nothing() -> Option<File> {
    File::open("/dev/null").ok()
}

/// From here on one descriptor is kept back. For the start, while there are plenty.
pub fn keep_a_descriptor() {
    KEPT.store(true, Ordering::Relaxed);
    *SPARE.lock() = nothing();
}

/// Puts a file, or what is in a directory, on stable storage.
///
/// # Errors
/// The file system's.
pub fn sync(path: &Path) -> io::Result<()> {
    opened(OpenOptions::new().read(true), path, |file| file.sync_all())
}

/// Syncs the directory that `path` lies in.
///
/// # Errors
/// The file system's.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), sync)
}

#[cfg(test)]
mod tests {
    use rustix::process::Resource;

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

    /// In a process of its own, whose table of descriptors may be full.
    #[test]
    fn a_full_table_of_descriptors_holds_no_record_up() {
        const ALONE: &str = "REPLACE_WITH_A_FULL_TABLE";
        if std::env::var_os(ALONE).is_none() {
            let test = "replace::tests::a_full_table_of_descriptors_holds_no_record_up";
            let alone = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", test, "--test-threads=1"])
                .env(ALONE, "1")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&alone.stdout);
            return assert!(said.contains("1 passed"), "{alone:?}");
        }
        let mut limit = rustix::process::getrlimit(Resource::Nofile);
        limit.current = Some(100);
        rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        keep_a_descriptor();
        let mut full = Vec::new();
        while let Some(file) = nothing() {
            full.push(file);
        }
        for content in ["a", "b"] {
            file(&path, content.as_bytes()).unwrap();
            sync(&path).unwrap();
            file_durably(&path, content.as_bytes()).unwrap();
        }
        assert!(File::open(&path).is_err(), "there is no other descriptor");
        drop(full);
        assert_eq!(fs::read_to_string(&path).unwrap(), "b");
    }
}

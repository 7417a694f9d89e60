//! Atomic file replacement: write `*.tmp`, then rename. Readers find the old or the new content,
//! also after a crash. A failed write removes its `*.tmp`. One left by a crash is removed at the
//! next write of the file, or, for names that are not reused, by the directory's owner at start.

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

/// A descriptor kept for these writes: records can be written with a full descriptor table.
static SPARE: Mutex<Option<File>> = Mutex::new(None);
/// Whether to keep it: only in the daemon.
static KEPT: AtomicBool = AtomicBool::new(false);

/// The extension of unfinished files.
pub const UNFINISHED: &str = "tmp";

/// Writes `bytes` to `path`, mode 0600, safe over a power loss once file and directory are synced.
///
/// # Errors
/// The file system's; the old content is then unchanged.
pub fn file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    put(path, bytes, |_| Ok(()))
}

/// As [`file()`]; content and name are on stable storage when this returns.
///
/// # Errors
/// As [`file()`]'s. If only the sync of the directory failed, the new content is there.
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
        let _ = fs::remove_file(&unfinished); // it may not exist
    })
}

/// Opens a file for `work`, with the spare descriptor if there is no other.
fn opened(
    how: &OpenOptions,
    path: &Path,
    work: impl FnOnce(File) -> io::Result<()>,
) -> io::Result<()> {
    match how.open(path) {
        Err(error) if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            // Others wait here for the spare descriptor.
            let mut spare = SPARE.lock();
            *spare = None;
            let done = how.open(path).and_then(work);
            *spare = open_null();
            done
        }
        other => {
            // Restores the spare, which another thread's open may have prevented.
            if let Some(mut spare) = SPARE.try_lock()
                && spare.is_none()
                && KEPT.load(Ordering::Relaxed)
            {
                *spare = open_null();
            }
            other.and_then(work)
        }
    }
}

fn open_null() -> Option<File> {
    File::open("/dev/null").ok()
}

/// Starts keeping a descriptor; called at start, while many are free.
pub fn keep_a_descriptor() {
    KEPT.store(true, Ordering::Relaxed);
    *SPARE.lock() = open_null();
}

/// Syncs a file or a directory to stable storage.
///
/// # Errors
/// The file system's.
pub fn sync(path: &Path) -> io::Result<()> {
    opened(OpenOptions::new().read(true), path, |file| file.sync_all())
}

/// Syncs the parent directory of `path`.
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
        // Like a full disk: the bytes are accepted, but the rename fails.
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

    /// Runs in its own process, whose descriptor table may be full.
    #[test]
    fn a_full_table_of_descriptors_delays_no_record() {
        const ALONE: &str = "REPLACE_WITH_A_FULL_TABLE";
        if std::env::var_os(ALONE).is_none() {
            let test = "replace::tests::a_full_table_of_descriptors_delays_no_record";
            let alone = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", test, "--test-threads=1"])
                .env(ALONE, "1")
                .output()
                .unwrap();
            let output = String::from_utf8_lossy(&alone.stdout);
            return assert!(output.contains("1 passed"), "{alone:?}");
        }
        let mut limit = rustix::process::getrlimit(Resource::Nofile);
        limit.current = Some(100);
        rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        keep_a_descriptor();
        let mut full = Vec::new();
        while let Some(file) = open_null() {
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

//! Incoming documents: manifests, configs, the unpack helper's reports.
//!
//! Long documents, or many slow ones, must not exhaust the daemon's memory: a long document goes to
//! an unnamed file, and these files are read one at a time.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::path::Path;

use parking_lot::Mutex;
use tempfile::{SpooledData, SpooledTempFile};

use super::digest::{Digest, Hasher};

/// Bytes of a document kept in memory.
const MEMORY_MAX: usize = 16 << 10;

/// Locked while a long document is in memory.
static LONG: Mutex<()> = Mutex::new(());

/// An incoming document.
pub(super) struct Spool {
    content: SpooledTempFile,
    hasher: Hasher,
}

/// A received document.
pub(super) struct Document {
    content: SpooledData,
    pub bytes: u64,
}

impl Spool {
    /// `dir`: the place of its file, whose few megabytes stay in the page cache.
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            content: tempfile::spooled_tempfile_in(MEMORY_MAX, dir),
            hasher: Hasher::default(),
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.content.write_all(bytes)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.hasher.bytes()
    }

    /// The document, and the digest of its bytes.
    pub(super) fn finish(self) -> (Document, Digest) {
        let content = self.content.into_inner();
        let bytes = self.hasher.bytes();
        (Document { content, bytes }, self.hasher.finish())
    }
}

impl Document {
    /// A document that is already in memory.
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        Self {
            bytes: bytes.len() as u64,
            content: SpooledData::InMemory(Cursor::new(bytes)),
        }
    }

    /// A document in a file whose writer has ended.
    pub(super) fn from_file(file: File) -> io::Result<Self> {
        let bytes = file.metadata()?.len();
        let content = SpooledData::OnDisk(file);
        Ok(Self { content, bytes })
    }

    pub(super) fn is_long(&self) -> bool {
        self.bytes > MEMORY_MAX as u64
    }

    /// Passes the bytes to `look`. May block: long documents are read one at a time.
    pub(super) fn read<T: Send>(&self, look: impl FnOnce(&[u8]) -> T + Send) -> io::Result<T> {
        match &self.content {
            SpooledData::InMemory(bytes) => Ok(look(bytes.get_ref())),
            SpooledData::OnDisk(file) if self.is_long() => {
                one_at_a_time(|| self.load(file).map(|b| look(&b)))
            }
            SpooledData::OnDisk(file) => self.load(file).map(|bytes| look(&bytes)),
        }
    }

    fn load(&self, file: &File) -> io::Result<Vec<u8>> {
        let mut file = file.try_clone()?;
        file.seek(SeekFrom::Start(0))?;
        let mut bytes = Vec::with_capacity(usize::try_from(self.bytes).unwrap_or(0));
        file.take(self.bytes).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Runs work that takes much memory for a moment, one at a time; blocks meanwhile. Uses its own
/// thread: an allocator keeps freed memory per thread, and each thread of a pool would keep some.
pub(super) fn one_at_a_time<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let _turn = LONG.lock();
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_of_any_length_comes_back_with_its_digest_and_leaves_no_name() {
        let tmp = tempfile::tempdir().unwrap();
        for length in [0, 1, MEMORY_MAX - 1, MEMORY_MAX, MEMORY_MAX + 1, 1 << 20] {
            let bytes: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            let mut spool = Spool::new(tmp.path());
            for chunk in bytes.chunks(1000) {
                spool.push(chunk).unwrap();
            }
            let (document, digest) = spool.finish();
            let long = matches!(document.content, SpooledData::OnDisk(_));
            assert_eq!(long, length > MEMORY_MAX, "{length}");
            assert_eq!(
                (document.bytes, digest),
                (length as u64, Digest::of(&bytes))
            );
            for _ in 0..2 {
                assert_eq!(document.read(<[u8]>::to_vec).unwrap(), bytes);
            }
        }
        assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 0);
    }
}

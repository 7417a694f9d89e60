//! Files of an image archive: written by the unpack helper, found by name or digest.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use rustix::fs::{Mode, OFlags};
use tokio::io::AsyncRead;
use tokio_util::io::ReaderStream;

use super::digest::Digest;
use super::error::{Error, blocking};
use super::fsutil;
use super::helper::Task;
use super::images::Shared;
use super::ingest::{Opened, Source};
use super::manifest::Descriptor;
use super::registry::pace::Pace;
use super::spool::Document;
use super::store::scratch::TempDir;
use super::unpack::archive::{Content, Listed};
use super::unpack::path::CleanPath;
use super::unpack::{ARCHIVE, REPORT_MAX};

/// The most links from name to name in a `docker save` archive.
const LINKS_MAX: usize = 8;
const CHUNK: usize = 256 * 1024;

/// The files of an archive, readable in any order.
pub(super) struct Archive {
    by_path: HashMap<CleanPath, Place>,
    by_digest: HashMap<Digest, usize>,
    /// Number of files; each is named by its number in this directory.
    count: usize,
    files: PathBuf,
    _dir: TempDir,
}

enum Place {
    /// The number of a file.
    File(usize),
    Link(CleanPath),
}

pub(super) fn bad(why: impl ToString) -> Error {
    Error::Archive(why.to_string())
}

impl Archive {
    /// Lets the helper write the archive's files to the disk.
    pub(super) async fn read(
        shared: &Arc<Shared>,
        from: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<Archive, Error> {
        let (scratch, max) = (shared.store.scratch.clone(), shared.options.image.bytes);
        let made = blocking(move || {
            let dir = scratch.temp_dir()?;
            let files = dir.path.join("files");
            let failed = |step| Error::io("image archive", step, &files);
            std::fs::create_dir(&files).map_err(failed("create"))?;
            let report = tempfile::tempfile_in(&dir.path).map_err(failed("make a report for"))?;
            let (room, _) = fsutil::room(&files).map_err(failed("look for room at"))?;
            Ok((dir, files, report, room.min(max)))
        });
        let (dir, files, report, max) = made.await?;
        let stall = shared.options.progress_timeout;
        let chunks = ReaderStream::with_capacity(from, CHUNK);
        let from = (chunks, Pace::new(stall));
        let chunks = stream::try_unfold(from, move |(mut chunks, mut pace)| async move {
            let slow = || {
                bad(format!(
                    "too little data received in {stall:?} (image.progress_timeout)"
                ))
            };
            let next = tokio::time::timeout(stall, chunks.next());
            let next = pace.spend(next).await.map_err(|_| slow())?;
            let Some(chunk) = next.transpose().map_err(bad)? else {
                return Ok(None);
            };
            if pace.keeps(chunk.len()) {
                Ok(Some((chunk, (chunks, pace))))
            } else {
                Err(slow())
            }
        });
        let stalled = || bad("the helper made no progress");
        let task = Task {
            kind: ARCHIVE,
            dir: &files,
            limits: &[max],
        };
        let each = |_: &_| Ok::<_, Error>(());
        let ended = shared.run_helper(task, &report, chunks.boxed(), each, stalled);
        if let Some(why) = ended.await?.fault() {
            return Err(bad(why));
        }
        blocking(move || {
            let report = Document::from_file(report).map_err(bad)?;
            if report.bytes > REPORT_MAX {
                return Err(bad(format!("a report of {} bytes", report.bytes)));
            }
            let listed = report.read(|bytes| serde_json::from_slice::<Vec<Listed>>(bytes));
            let listed = listed.map_err(bad)?.map_err(bad)?;
            let mut archive = Archive {
                by_path: HashMap::new(),
                by_digest: HashMap::new(),
                count: 0,
                files,
                _dir: dir,
            };
            listed.into_iter().try_for_each(|one| archive.add(one))?;
            Ok(archive)
        })
        .await
    }

    /// Adds the next entry of the helper's list.
    fn add(&mut self, Listed { path, content }: Listed) -> Result<(), Error> {
        let clean = |path: String| CleanPath::new(path.as_bytes()).map_err(bad);
        let place = match content {
            Content::File(digest) => {
                let number = self.count;
                self.count += 1;
                self.by_digest.insert(digest, number);
                Place::File(number)
            }
            Content::Link(target) => Place::Link(clean(target)?),
        };
        self.by_path.insert(clean(path)?, place);
        Ok(())
    }

    /// The content of a file by its name in the archive, if it is there.
    pub(super) fn named(&self, name: &str, max: u64) -> Result<Option<Vec<u8>>, Error> {
        let path = self.follow(name)?;
        path.map(|path| read_bounded(&path, max)).transpose()
    }

    fn path_of(&self, blob: &Descriptor) -> Result<PathBuf, Error> {
        let path = match &blob.digest {
            Some(digest) => self.by_digest.get(digest).map(|number| self.file(*number)),
            None => self.follow(&blob.name)?,
        };
        path.ok_or_else(|| blob.fault("is not in the archive"))
    }

    fn file(&self, number: usize) -> PathBuf {
        self.files.join(number.to_string())
    }

    pub(super) fn size_of(&self, blob: &Descriptor) -> Result<u64, Error> {
        let path = self.path_of(blob)?;
        let size = open(&path).and_then(|file| Ok(file.metadata()?.len()));
        size.map_err(Error::io("image archive", "read", &path))
    }

    /// A small blob with a checked digest.
    pub(super) fn blob(&self, blob: &Descriptor, max: u64) -> Result<Vec<u8>, Error> {
        let bytes = read_bounded(&self.path_of(blob)?, max)?;
        match &blob.digest {
            Some(want) if *want != Digest::of(&bytes) => Err(blob.fault("digest mismatch")),
            _ => Ok(bytes),
        }
    }

    /// The file for a name, after following links.
    fn follow(&self, name: &str) -> Result<Option<PathBuf>, Error> {
        let mut name = CleanPath::new(name.as_bytes()).map_err(bad)?;
        for _ in 0..LINKS_MAX {
            match self.by_path.get(&name) {
                None => return Ok(None),
                Some(Place::File(number)) => return Ok(Some(self.file(*number))),
                Some(Place::Link(target)) => name = target.clone(),
            }
        }
        Err(bad("a symlink loop"))
    }
}

/// Opens a file that the helper wrote. A compromised helper may have put anything there.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("not a file"))
    }
}

fn read_bounded(path: &Path, max: u64) -> Result<Vec<u8>, Error> {
    let failed = Error::io("image archive", "read", path);
    let mut bytes = Vec::new();
    open(path)
        .map_err(&failed)?
        .take(max + 1)
        .read_to_end(&mut bytes)
        .map_err(&failed)?;
    if bytes.len() as u64 > max {
        return Err(bad(format!("a document of more than {max} bytes")));
    }
    Ok(bytes)
}

impl Source for Archive {
    type Error = Error;

    fn host(&self) -> &str {
        "this machine"
    }

    async fn open(&self, blob: &Descriptor) -> Opened<Error> {
        let path = self.path_of(blob)?;
        let failed = Error::io("blob", "read", &path);
        let file = blocking(move || open(&path).map_err(Error::io("blob", "open", &path))).await?;
        let chunks = ReaderStream::with_capacity(tokio::fs::File::from_std(file), CHUNK);
        Ok(chunks.map_err(failed).boxed())
    }
}

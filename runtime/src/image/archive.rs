//! The files of an archive of images, in any order, and its blobs.
//!
//! A tar is first spooled: its blobs come in any order, the index often last. Spooled files are
//! named by number, so no name of the archive ever reaches the file system.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt};
use tokio_util::io::ReaderStream;

use super::digest::{Digest, HashingReader};
use super::error::{Error, blocking};
use super::fsutil;
use super::images::Shared;
use super::ingest::{Opened, Source};
use super::manifest::Descriptor;
use super::store::scratch::TempDir;
use super::unpack::decode;
use super::unpack::path::CleanPath;
use super::unpack::tarball::{Kind, Reader};

/// Files in one archive.
const FILES_MAX: usize = 100_000;
/// Links from name to name in a `docker save` archive.
const LINKS_MAX: usize = 8;
const CHUNK: usize = 256 * 1024;

/// Source of an import.
pub enum ImportFrom {
    /// A tar: OCI layout or `docker save`, plain or compressed. It is read in a blocking thread.
    Reader(Box<dyn Read + Send>),
    /// Such a tar, or the directory of an OCI layout.
    Path(PathBuf),
}

/// The files of an archive, ready to be read in any order.
pub(super) enum Archive {
    Spooled {
        by_path: HashMap<CleanPath, Spooled>,
        by_digest: HashMap<Digest, PathBuf>,
        _dir: TempDir,
    },
    Layout(PathBuf),
}

pub(super) enum Spooled {
    File(PathBuf),
    Link(CleanPath),
}

pub(super) fn bad(why: impl ToString) -> Error {
    Error::Archive(why.to_string())
}

impl Archive {
    pub(super) async fn open(shared: &Arc<Shared>, from: ImportFrom) -> Result<Archive, Error> {
        let shared = shared.clone();
        blocking(move || {
            let reader: Box<dyn Read + Send> = match from {
                ImportFrom::Reader(reader) => reader,
                ImportFrom::Path(path) if path.is_dir() => return Ok(Archive::Layout(path)),
                ImportFrom::Path(path) => Box::new(File::open(&path).map_err(Error::io(
                    "image archive",
                    "open",
                    &path,
                ))?),
            };
            let dir = shared.store.scratch.temp_dir()?;
            spool(reader, dir)
        })
        .await
    }

    /// A file by its name in the archive, if it is there.
    pub(super) fn named(&self, name: &str, max: u64) -> Result<Option<Vec<u8>>, Error> {
        let path = match self {
            Archive::Layout(root) if name == "index.json" => root.join(name),
            Archive::Layout(_) => return Ok(None),
            Archive::Spooled { by_path, .. } => match follow(by_path, name)? {
                Some(path) => path.to_owned(),
                None => return Ok(None),
            },
        };
        read_bounded(&path, max).map(Some)
    }

    pub(super) fn path_of(&self, blob: &Descriptor) -> Result<PathBuf, Error> {
        let path = match (self, &blob.digest) {
            (Archive::Layout(root), Some(digest)) => {
                Some(root.join("blobs/sha256").join(digest.hex()))
            }
            (Archive::Layout(_), None) => return Err(blob.fault("has no digest")),
            (Archive::Spooled { by_digest, .. }, Some(digest)) => by_digest.get(digest).cloned(),
            (Archive::Spooled { by_path, .. }, None) => {
                follow(by_path, &blob.name)?.map(Path::to_owned)
            }
        };
        path.ok_or_else(|| blob.fault("is not in the archive"))
    }

    /// A small blob, checked.
    pub(super) fn blob(&self, blob: &Descriptor, max: u64) -> Result<Vec<u8>, Error> {
        let bytes = read_bounded(&self.path_of(blob)?, max)?;
        match &blob.digest {
            Some(want) if *want != Digest::of(&bytes) => Err(blob.fault("digest mismatch")),
            _ => Ok(bytes),
        }
    }
}

/// Copies the archive's files to numbered ones. Blocking.
fn spool(input: impl Read, dir: TempDir) -> Result<Archive, Error> {
    let (room, _) =
        fsutil::room(&dir.path).map_err(Error::io("image archive", "spool", &dir.path))?;
    let mut tar = Reader::new(decode::bounded(input, room).map_err(bad)?);
    let mut by_path = HashMap::new();
    let mut by_digest = HashMap::new();
    while let Some(entry) = tar.next_entry().map_err(bad)? {
        if by_path.len() >= FILES_MAX {
            return Err(bad("too many files for an image archive"));
        }
        let path = CleanPath::new(&entry.path).map_err(bad)?;
        match entry.kind {
            Kind::File => {
                let file = dir.path.join(by_path.len().to_string());
                let digest =
                    copy(&mut tar, &file).map_err(Error::io("image archive", "spool", &file))?;
                by_digest.insert(digest, file.clone());
                by_path.insert(path, Spooled::File(file));
            }
            Kind::Symlink | Kind::Hardlink => {
                let base = match (entry.kind, path.split()) {
                    (Kind::Symlink, Some((dir, _))) => dir,
                    _ => CleanPath::default(),
                };
                let target = [base.as_bytes(), b"/", &entry.link].concat();
                by_path.insert(path, Spooled::Link(CleanPath::new(&target).map_err(bad)?));
            }
            _ => {}
        }
    }
    Ok(Archive::Spooled {
        by_path,
        by_digest,
        _dir: dir,
    })
}

fn copy(from: &mut impl Read, to: &Path) -> io::Result<Digest> {
    let mut from = HashingReader::new(from);
    let mut file = BufWriter::with_capacity(CHUNK, File::create_new(to)?);
    io::copy(&mut from, &mut file)?;
    file.flush()?;
    Ok(from.hasher.finish())
}

/// The spooled file behind a name, links followed.
fn follow<'a>(
    files: &'a HashMap<CleanPath, Spooled>,
    name: &str,
) -> Result<Option<&'a Path>, Error> {
    let mut name = CleanPath::new(name.as_bytes()).map_err(bad)?;
    for _ in 0..LINKS_MAX {
        match files.get(&name) {
            None => return Ok(None),
            Some(Spooled::File(path)) => return Ok(Some(path)),
            Some(Spooled::Link(target)) => name = target.clone(),
        }
    }
    Err(bad("a symlink loop"))
}

fn read_bounded(path: &Path, max: u64) -> Result<Vec<u8>, Error> {
    let failed = Error::io("image archive", "read", path);
    let mut bytes = Vec::new();
    File::open(path)
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
        let file = tokio::fs::File::open(&path)
            .await
            .map_err(Error::io("blob", "open", &path))?;
        let chunks = ReaderStream::with_capacity(file, CHUNK);
        Ok(chunks.map_err(Error::io("blob", "read", &path)).boxed())
    }
}

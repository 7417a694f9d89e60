//! Writes the files of an image archive for the daemon, which reads them in any order.
//!
//! The blobs of an archive come in any order, its index often last. Each file is named by its
//! number: no name in the archive reaches the file system.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::decode;
use super::path::CleanPath;
use super::tarball::{Kind, Reader};
use crate::image::digest::{Digest, HashingReader};

/// Files and links in one archive: a few per layer.
const ENTRIES_MAX: usize = 20_000;
/// Bytes of all names: the daemon keeps them during an import.
const NAMES_MAX: usize = 2 << 20;

/// An entry of an archive, in its order; a later one of the same path replaces it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Listed {
    /// Cleaned, from the archive's top. A name that is not text is found by its digest only.
    pub path: String,
    pub content: Content,
}

#[derive(Debug, Serialize, Deserialize)]
pub enum Content {
    /// Named by the number of files before it.
    File(Digest),
    /// Another path of the archive.
    Link(String),
}

/// Writes the archive's files to numbered ones in `dir`; more than `max` bytes are an error.
pub(super) fn read(input: impl Read, dir: &Path, max: u64) -> io::Result<Vec<Listed>> {
    let mut tar = Reader::new(decode::bounded(input, max, decode::ARCHIVE)?);
    let (mut listed, mut files, mut names) = (Vec::new(), 0, 0);
    while let Some(entry) = tar.next_entry()? {
        let path = CleanPath::new(&entry.path).map_err(io::Error::other)?;
        let content = match entry.kind {
            Kind::File => {
                let mut data = HashingReader::new(&mut tar);
                let mut file = OpenOptions::new();
                let file = file.write(true).create_new(true).mode(0o600);
                io::copy(&mut data, &mut file.open(dir.join(files.to_string()))?)?;
                files += 1;
                Content::File(data.hasher.finish())
            }
            Kind::Symlink | Kind::Hardlink => {
                let base = match (entry.kind, path.split()) {
                    (Kind::Symlink, Some((dir, _))) => dir,
                    _ => CleanPath::default(),
                };
                let target = [base.as_bytes(), b"/", &entry.link].concat();
                Content::Link(text(&CleanPath::new(&target).map_err(io::Error::other)?))
            }
            _ => continue,
        };
        names += entry.path.len() + entry.link.len();
        if listed.len() >= ENTRIES_MAX || names > NAMES_MAX {
            let why = format!(
                "more than {ENTRIES_MAX} files, or {NAMES_MAX} bytes of names, in an image archive"
            );
            return Err(io::Error::other(why));
        }
        let path = text(&path);
        listed.push(Listed { path, content });
    }
    tar.finish()?;
    Ok(listed)
}

fn text(path: &CleanPath) -> String {
    String::from_utf8_lossy(path.as_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tar of entries by type, name, link and data.
    fn tar(entries: &[(tar::EntryType, &str, &str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (kind, path, link, data) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_size(data.len() as u64);
            if link.is_empty() {
                builder.append_data(&mut header, path, *data).unwrap();
            } else {
                builder.append_link(&mut header, path, link).unwrap();
            }
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn files_have_numbers_and_no_name_of_the_archive_leaves_it() {
        use tar::EntryType::{Directory, Regular, Symlink};
        let dir = tempfile::tempdir().unwrap();
        let bytes = tar(&[
            (Directory, "d/", "", b""),
            (Regular, "d/one", "", b"1"),
            (Symlink, "d/up", "../../../etc/passwd", b""),
            (Regular, "d/one", "", b"2"),
        ]);
        let listed = read(&bytes[..], dir.path(), 1 << 20).unwrap();
        let shown = listed.iter().map(|one| match &one.content {
            Content::File(digest) => format!("{} {}", one.path, digest == &Digest::of(b"2")),
            Content::Link(to) => format!("{} -> {to}", one.path),
        });
        let shown: Vec<_> = shown.collect();
        assert_eq!(shown, ["d/one false", "d/up -> etc/passwd", "d/one true"]);
        let mut files: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|file| std::fs::read(file.unwrap().path()).unwrap())
            .collect();
        files.sort();
        assert_eq!(files, [b"1", b"2"]);
    }

    #[test]
    fn names_and_bytes_beyond_their_bounds_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let long = ["d"; 45].join("/").repeat(20);
        let names = NAMES_MAX / long.len() + 1;
        let entries = vec![(tar::EntryType::Regular, &*long, "", &b""[..]); names];
        let error = read(&tar(&entries)[..], dir.path(), 1 << 30).unwrap_err();
        assert!(error.to_string().contains("bytes of names"), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let big = tar(&[(tar::EntryType::Regular, "f", "", &[0; 100_000])]);
        let error = read(&big[..], dir.path(), 50_000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}

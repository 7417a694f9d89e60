//! The files of the event log: `events-<first sequence number>.jsonl`, oldest first by name.
//!
//! Nothing is renamed, so a reader needs no lock: it lists, opens and reads, and what the writer
//! deletes meanwhile stays readable through the open file. A torn or foreign line is passed over.

use super::event::{Event, What};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const PREFIX: &str = "events-";
const SUFFIX: &str = ".jsonl";
/// Longest line that is read; a longer one was not written by us.
const MAX_LINE: u64 = 1 << 20;
/// How much of the last file is searched for the last sequence number.
const TAIL: u64 = 256 << 10;

/// The log's files with the first sequence number of each, oldest first.
pub fn list(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let first = name.and_then(|n| n.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok());
        found.extend(first.map(|first: u64| (first, path)));
    }
    found.sort();
    Ok(found)
}

/// The sequence number after the last one that was written; 1 in an empty directory.
pub fn next_seq(dir: &Path) -> io::Result<u64> {
    let Some((first, path)) = list(dir)?.pop() else {
        return Ok(1);
    };
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail)?;
    let last = tail.split(|b| *b == b'\n').rev().find_map(parse);
    Ok(last.map_or(first, |event| event.seq.saturating_add(1)))
}

/// Events with a sequence number below `before`, in order, each at most once: those of the files, then those of `unwritten`.
/// Stops early when `each` says false. The last sequence number that was seen; 0 for none.
pub fn read(
    dir: &Path,
    before: u64,
    unwritten: &[u8],
    mut each: impl FnMut(Event) -> bool,
) -> io::Result<u64> {
    let mut last = 0;
    let mut pass = |line: &[u8]| {
        // A loss has no number of its own, so it may repeat that of the event before; one that lies further back was read.
        let new =
            |e: &Event| e.seq > last || (e.seq == last && matches!(e.what, What::Lost { .. }));
        let Some(event) = parse(line).filter(new) else {
            return true;
        };
        if event.seq >= before {
            return false;
        }
        last = last.max(event.seq);
        each(event)
    };
    for (first, path) in list(dir)? {
        if first >= before {
            break;
        }
        let file = match File::open(path) {
            Ok(file) => file,
            // Deleted by the writer since it was listed.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            if reader
                .by_ref()
                .take(MAX_LINE)
                .read_until(b'\n', &mut line)?
                == 0
            {
                break;
            }
            if !pass(&line) {
                return Ok(last);
            }
        }
    }
    let _all_or_stopped = unwritten.split_inclusive(|b| *b == b'\n').all(pass);
    Ok(last)
}

fn parse(line: &[u8]) -> Option<Event> {
    serde_json::from_slice(line).ok()
}

/// The file that is being written, and the bound on all of them.
pub struct Rotating {
    dir: PathBuf,
    max_bytes: u64,
    files: usize,
    current: Option<(File, u64)>,
}

impl Rotating {
    pub fn new(dir: &Path, max_bytes: u64, files: usize) -> Self {
        Self {
            dir: dir.to_owned(),
            max_bytes,
            files: files.max(1),
            current: None,
        }
    }

    /// Appends whole lines, the first of which has sequence number `seq`.
    ///
    /// # Errors
    /// After an error the next call opens the file anew, so a full disk heals by itself.
    pub fn append(&mut self, seq: u64, lines: &[u8]) -> io::Result<()> {
        let (mut file, mut length) = match self.current.take() {
            Some(open) => open,
            None => self.open_last(seq)?,
        };
        if length > 0 && length + lines.len() as u64 > self.max_bytes {
            file = self.make(seq)?;
            length = 0;
            self.drop_oldest()?;
        }
        if let Err(error) = file.write_all(lines) {
            // The lines come again, whole: half of them, of a disk that became full, must not stand before them.
            let _ = file.set_len(length);
            return Err(error);
        }
        self.current = Some((file, length + lines.len() as u64));
        Ok(())
    }

    fn open_last(&self, seq: u64) -> io::Result<(File, u64)> {
        let Some((_, path)) = list(&self.dir)?.pop() else {
            return Ok((self.make(seq)?, 0));
        };
        let mut file = OpenOptions::new().read(true).append(true).open(path)?;
        let length = file.seek(SeekFrom::End(0))?;
        if length > 0 {
            // A daemon that was killed in the middle of a line: ours begins on the next.
            file.seek(SeekFrom::End(-1))?;
            let mut last = [0_u8];
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok((file, length))
    }

    fn make(&self, seq: u64) -> io::Result<File> {
        let path = self.dir.join(format!("{PREFIX}{seq:020}{SUFFIX}"));
        OpenOptions::new().create(true).append(true).open(path)
    }

    fn drop_oldest(&self) -> io::Result<()> {
        let all = list(&self.dir)?;
        let excess = all.len().saturating_sub(self.files);
        all.iter()
            .take(excess)
            .try_for_each(|(_, path)| std::fs::remove_file(path))
    }
}

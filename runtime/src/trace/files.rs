//! The files of the event log: `events-<first sequence number>.jsonl`, oldest first by name.
//!
//! No file is renamed, so a reader needs no lock: a deleted file stays readable while open. Torn
//! and foreign lines are skipped. Missing events leave a gap, which is reported to readers.

use super::event::{Event, SCHEMA, Subject, What};
use cairn_monitor::own_file;
use serde::Deserialize;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const PREFIX: &str = "events-";
const SUFFIX: &str = ".jsonl";
/// Limit of a line's length; we write no longer ones.
const MAX_LINE: u64 = 1 << 20;
/// The part of the last file that is searched for the last sequence number.
const TAIL: u64 = 256 << 10;

/// The log's files with their first sequence numbers, oldest first.
pub(super) fn list(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
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

/// The next sequence number; 1 in an empty directory.
pub(super) fn next_seq(dir: &Path) -> io::Result<u64> {
    let Some((first, path)) = list(dir)?.pop() else {
        return Ok(1);
    };
    let mut file = match own_file::open(&path) {
        Err(e) if is_foreign(&e) => return Ok(first.saturating_add(1)),
        opened => opened?,
    };
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail)?;
    let last: Option<Number> = tail.split(|b| *b == b'\n').rev().find_map(parse);
    Ok(last.map_or(first, |last| last.seq.saturating_add(1)))
}

/// Whether the object is not a regular file.
fn is_foreign(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

/// Passes on events in order, each at most once, and a loss before each gap.
pub(super) struct Reader<F> {
    before: u64,
    each: F,
    /// The last sequence number; 0 before the first event.
    last: u64,
}

impl<F: FnMut(Event) -> bool> Reader<F> {
    /// Reads events numbered below `before`. `each` returns false to stop.
    pub(super) fn new(before: u64, each: F) -> Self {
        Self {
            before,
            each,
            last: 0,
        }
    }

    /// Reads all files; an unreadable one does not stop the others.
    ///
    /// # Errors
    /// The first failure.
    pub(super) fn files(&mut self, dir: &Path) -> io::Result<()> {
        let mut result = Ok(());
        for (first, path) in list(dir)? {
            if first >= self.before {
                break;
            }
            match self.file(&path) {
                Ok(true) => {}
                Ok(false) => break,
                // Deleted by the writer after the listing, or not a file of ours.
                Err(e) if is_foreign(&e) || e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => result = result.and(Err(e)),
            }
        }
        result
    }

    fn file(&mut self, path: &Path) -> io::Result<bool> {
        let mut reader = BufReader::new(own_file::open(path)?);
        let mut line = Vec::new();
        loop {
            line.clear();
            let limited = &mut reader.by_ref().take(MAX_LINE);
            if limited.read_until(b'\n', &mut line)? == 0 {
                return Ok(true);
            }
            if !self.line(&line) {
                return Ok(false);
            }
        }
    }

    pub(super) fn lines(&mut self, lines: &[u8]) {
        let _ = lines // false if the reader stopped
            .split_inclusive(|b| *b == b'\n')
            .all(|line| self.line(line));
    }

    /// The number of events missing up to `before`.
    pub(super) fn missing(&self) -> u64 {
        self.before.saturating_sub(self.last + 1)
    }

    fn line(&mut self, line: &[u8]) -> bool {
        let event = parse::<Event>(line);
        // An unknown event still has a number.
        let number = || parse(line).map(|Number { seq }| seq);
        let Some(seq) = event.as_ref().map(|event| event.seq).or_else(number) else {
            return true;
        };
        if seq >= self.before {
            return false;
        }
        if seq <= self.last {
            return true;
        }
        let gap = match (self.last, event.as_ref().map(|event| &event.what)) {
            // Events before the oldest file were kept long enough.
            (0, _) => 0,
            // The files of 0.1 contain their losses.
            (_, Some(What::Lost { .. })) => 0,
            (last, _) => seq - last - 1,
        };
        self.last = seq;
        let Some(event) = event else {
            return true;
        };
        let passed = gap == 0
            || (self.each)(Event {
                schema: SCHEMA,
                seq: seq - 1,
                subject: Subject::daemon(),
                what: What::Lost { events: gap },
                ..event
            });
        passed && (self.each)(event)
    }
}

#[derive(Deserialize)]
struct Number {
    seq: u64,
}

fn parse<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Option<T> {
    serde_json::from_slice(line).ok()
}

/// The file being written, and the limits of all files.
pub(super) struct Rotating {
    dir: PathBuf,
    max_bytes: u64,
    files: usize,
    current: Option<(File, u64)>,
}

impl Rotating {
    pub(super) fn new(dir: &Path, max_bytes: u64, files: usize) -> Self {
        Self {
            dir: dir.to_owned(),
            max_bytes,
            files: files.max(1),
            current: None,
        }
    }

    /// Appends complete lines, the first with sequence number `seq`.
    ///
    /// # Errors
    /// After an error the next call reopens the file, so that a full disk recovers by itself.
    pub(super) fn append(&mut self, seq: u64, lines: &[u8]) -> io::Result<()> {
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
            // The lines are retried in full: a part written to a full disk must not precede them.
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
            // A daemon died within a line: ours starts on the next.
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

//! Bounded reads and single writes on cgroup files. A write is one `write(2)`: the kernel accepts a
//! cgroup value completely or not at all.

use super::error::{Error, Result};
use crate::seeded;
use cairn_monitor::cgroup_tree::is_gone;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

/// The longest cgroup file that is read; `cgroup.procs` of a full pid space is shorter.
const READ_LIMIT: usize = 32 << 20;

/// Enough for nearly every cgroup file in one read.
const CHUNK: usize = 8 << 10;

/// The complete text of a cgroup file.
pub(super) fn read(path: &Path) -> io::Result<String> {
    if let Some(text) = seeded::read_kernel(path) {
        return Ok(text);
    }
    let mut file = File::open(path)?;
    let mut chunk = [0_u8; CHUNK];
    let mut bytes = Vec::new();
    // Read to the end: a long listing comes in pieces that are shorter than the buffer.
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            _ if bytes.len() > READ_LIMIT => return Err(io::ErrorKind::FileTooLarge.into()),
            length => bytes.extend_from_slice(&chunk[..length]),
        }
    }
    String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// The trimmed text, or `None` if the file (or its cgroup) does not exist.
pub(super) fn read_if_there(path: &Path) -> Result<Option<String>> {
    match read(path) {
        Ok(text) => Ok(Some(text.trim_end().to_owned())),
        Err(e) if is_gone(&e) => Ok(None),
        Err(source) => Err(Error::io(path, "read", source)),
    }
}

/// Writes `value` to an existing file. A missing file means a missing controller.
pub(super) fn write(path: &Path, value: &str) -> io::Result<()> {
    if let Some(written) = seeded::write_kernel(path, value) {
        return written;
    }
    let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
    file.write_all(value.as_bytes())
}

/// The pids of a `cgroup.procs` text without pid 0, a process outside our pid namespace.
pub(super) fn parse_pids(text: &str) -> Vec<u32> {
    text.lines()
        .filter_map(|line| line.trim().parse().ok())
        .filter(|pid| *pid != 0)
        .collect()
}

//! The start time of a process, from procfs.

use std::fs;
use std::io;

/// Field 22 of `/proc/<pid>/stat`. Parses from the last `)`: the second field may contain anything.
pub fn start_time(pid: i32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = after
        .split_whitespace()
        .nth(19)
        .and_then(|f| f.parse().ok());
    field.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "/proc/<pid>/stat has no start time",
        )
    })
}

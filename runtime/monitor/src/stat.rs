//! Facts about a process, from procfs.

use std::fs;
use std::io;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The letter of its state: `Z` has ended, `T` is stopped.
    pub state: char,
    pub parent: i32,
    /// Clock ticks after boot. With the pid, it identifies the process.
    pub start_time: u64,
}

impl Stat {
    /// Parses `/proc/<pid>/stat` from the last `)`: the second field may contain anything.
    ///
    /// # Errors
    /// The kernel's: the process has ended.
    pub fn of(pid: i32) -> io::Result<Stat> {
        let stat = fs::read(format!("/proc/{pid}/stat"))?;
        let stat = String::from_utf8_lossy(&stat);
        let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        Self::parse(after).ok_or_else(|| {
            let text = "/proc/<pid>/stat is malformed";
            io::Error::new(io::ErrorKind::InvalidData, text)
        })
    }

    /// Parses the fields from the third on.
    fn parse(fields: &str) -> Option<Stat> {
        let mut fields = fields.split_whitespace();
        Some(Stat {
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            start_time: fields.nth(17)?.parse().ok()?,
        })
    }

    /// Whether it has ended, and waits to be reaped.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// Field 22 of `/proc/<pid>/stat`.
pub fn start_time(pid: i32) -> io::Result<u64> {
    Stat::of(pid).map(|stat| stat.start_time)
}

/// Identifies this boot of the machine.
pub fn boot_id() -> io::Result<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}

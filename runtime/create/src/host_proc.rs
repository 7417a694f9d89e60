//! The host's procfs, kept open for init's own settings: the container's `/proc` is not trusted.

#![expect(clippy::disallowed_methods, reason = "the host's procfs")]

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use cairn_monitor::process::Label;
use cairn_monitor::sys;
use rustix::fs::{OFlags, ResolveFlags};

pub(crate) struct HostProc(File);

impl HostProc {
    pub(crate) fn open() -> Result<HostProc, String> {
        let proc = File::open("/proc").map_err(|e| format!("open /proc: {e}"))?;
        Ok(HostProc(proc))
    }

    /// The descriptor that must stay open while it is used.
    pub(crate) fn keep(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn open_file(&self, path: &str, flags: OFlags) -> io::Result<File> {
        let path = CString::new(path)?;
        let file = sys::open_at(self.0.as_fd(), &path, flags, ResolveFlags::empty())?;
        Ok(file.into())
    }

    pub(crate) fn write(&self, path: &str, value: &[u8]) -> io::Result<()> {
        self.open_file(path, OFlags::WRONLY)?.write_all(value)
    }

    /// Sets the label for the next execve of this thread and its forks.
    pub(crate) fn label(&self, label: &Label) -> Result<(), String> {
        let (file, text) = label.for_exec();
        self.write(&format!("thread-self/{file}"), &text)
            .map_err(|e| format!("set the {label}: {e}"))
    }

    /// The parent of each mount of this thread's mount namespace, by their ids.
    pub(crate) fn parents_of_mounts(&self) -> io::Result<HashMap<u64, u64>> {
        let mut table = Vec::new();
        self.open_file("thread-self/mountinfo", OFlags::RDONLY)?
            .read_to_end(&mut table)?;
        let lines = table.split(|b| *b == b'\n');
        Ok(lines.filter_map(parent_of_mount).collect())
    }
}

/// A mount's id and its parent's: the first two fields of a line.
fn parent_of_mount(line: &[u8]) -> Option<(u64, u64)> {
    let mut fields = line.split(|b| *b == b' ');
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
    Some((number()?, number()?))
}

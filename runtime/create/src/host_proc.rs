//! The host's procfs, kept open for init's own settings: the container's `/proc` is not trusted.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use cairn_monitor::process::Label;
use cairn_monitor::sys;
use rustix::fs::{OFlags, ResolveFlags};

pub(crate) struct HostProc(File);

impl HostProc {
    pub(crate) fn open() -> Result<HostProc, String> {
        let proc = File::open("/proc").map_err(|e| format!("open /proc: {e}"))?;
        Ok(HostProc(proc))
    }

    pub(crate) fn write(&self, path: &str, value: &[u8]) -> io::Result<()> {
        let path = CString::new(path)?;
        let file = sys::open_at(self.0.as_fd(), &path, OFlags::WRONLY, ResolveFlags::empty())?;
        File::from(file).write_all(value)
    }

    /// Sets the label for the next execve of this thread and its forks.
    pub(crate) fn label(&self, label: &Label) -> Result<(), String> {
        let (file, text) = label.for_exec();
        self.write(&format!("thread-self/{file}"), &text)
            .map_err(|e| format!("set the {label}: {e}"))
    }
}

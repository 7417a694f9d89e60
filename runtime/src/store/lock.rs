//! Locks a directory for one daemon.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::fs::{FlockOperation, flock};

use cairn_monitor::own_file;

use super::{dirs::make_dir, error::Error};

/// More bytes than a pid has.
const PID: u64 = 32;

/// The lock of a directory; it ends with the process.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes `<dir>/lock` and writes our pid into it.
    ///
    /// # Errors
    /// [`Error::Locked`] with the holder's pid.
    pub fn take(dir: &Path) -> Result<Self, Error> {
        make_dir(dir)?;
        let path = dir.join("lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            let _ = (&file).take(PID).read_to_string(&mut pid);
            return Err(Error::Locked {
                path: dir.to_owned(),
                pid: pid.trim().to_owned(),
            });
        }
        let pid = format!("{}\n", std::process::id());
        // Overwriting the old pid needs no space on a full disk; the lock works without a pid.
        let written = file
            .rewind()
            .and_then(|()| file.write_all(pid.as_bytes()))
            .and_then(|()| file.set_len(pid.len() as u64));
        match written {
            Err(error) if error.kind() != io::ErrorKind::StorageFull => {
                Err(Error::io("write", &path)(error))
            }
            _ => Ok(Self { _file: file }),
        }
    }

    /// The pid that holds `<dir>/lock`, if any.
    pub fn holder(dir: &Path) -> Option<u32> {
        let file = own_file::open(&dir.join("lock")).ok()?;
        flock(&file, FlockOperation::NonBlockingLockShared).err()?;
        let mut pid = String::new();
        file.take(PID).read_to_string(&mut pid).ok()?;
        pid.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_gets_the_pid_of_the_first() {
        let dir = tempfile::tempdir().expect("tempdir");
        let _lock = Lock::take(dir.path()).expect("free");
        let error = Lock::take(dir.path()).expect_err("locked").to_string();
        assert!(
            error.ends_with(&format!("pid {}", std::process::id())),
            "{error}"
        );
    }
}

//! The pause process: PID 1 of a pod that shares its PID namespace. Reaps what is orphaned there and waits to be told
//! to end. The same static program as the monitor, as `/pause` in a root that holds nothing else.

use std::io;

use cairn_monitor::sys;

/// Returns on SIGTERM or SIGINT.
pub fn run() -> io::Result<()> {
    loop {
        match sys::wait_signal(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT])? {
            libc::SIGCHLD => while sys::reap().is_some() {},
            _ => return Ok(()),
        }
    }
}

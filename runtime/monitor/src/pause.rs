//! The pause process: PID 1 of a pod that shares its PID namespace. Reaps what is orphaned there, until it is killed from
//! outside: no signal of a container ends it. The same static program as the monitor, as `/pause` in a root that holds
//! nothing else.

use std::io;

use cairn_monitor::sys;

/// Ends only if it cannot wait for signals. Those it does not wait for have no effect on process 1.
pub(crate) fn run() -> io::Result<()> {
    loop {
        sys::wait_signal(&[libc::SIGCHLD])?;
        while sys::reap().is_some() {}
    }
}

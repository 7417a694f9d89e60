//! OCI hooks after the start (poststart and poststop): who waits for them, and how they end.
//!
//! A helper, `cairn-create --hooks`, runs them. It records itself before they begin, reports their
//! end, and stays until all their processes have ended. It is in no cgroup of the container. A kill
//! of everything and a deletion end it (`purge.rs`), and so does a clean-up after a lost monitor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use cairn_monitor::own_file;
use cairn_monitor::record::{HOOKS, Launch};
use cairn_monitor::report::{self, REPORT_FD, Report};
use cairn_monitor::sys;

use crate::create::spawn;
use crate::peer::Asker;

/// The step after OCI hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Start,
    Delete,
}

/// Hooks that run.
pub(crate) struct Hooking {
    pub(crate) helper: i32,
    report: OwnedFd,
    /// The requests to answer.
    pub(crate) askers: Vec<Asker>,
    pub(crate) after: After,
}

impl Hooking {
    /// Starts the helper. A failure of the hooks is ignored (OCI: a failing poststart or poststop
    /// hook does not fail the operation).
    pub(crate) fn start(
        launch: &Launch,
        asker: Asker,
        after: After,
        pid: i32,
    ) -> io::Result<Hooking> {
        let (report, theirs) = sys::seqpacket_pair()?;
        sys::set_nonblocking(report.as_fd())?;
        let args = [
            b"--hooks".to_vec(),
            after.point().as_bytes().to_vec(),
            pid.to_string().into_bytes(),
        ];
        Ok(Hooking {
            helper: spawn(launch, &args, None, vec![(theirs, REPORT_FD)])?,
            report,
            askers: vec![asker],
            after,
        })
    }

    pub(crate) fn report_fd(&self) -> RawFd {
        self.report.as_raw_fd()
    }

    /// Whether they have run, or their helper has ended.
    pub(crate) fn is_done(&self) -> bool {
        let mut buf = [0; report::MAX];
        loop {
            match sys::read(self.report.as_fd(), &mut buf) {
                Ok(n @ 1..) if Report::decode(&buf[..n]) != Some(Report::Hooked) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                _ => return true,
            }
        }
    }
}

impl After {
    /// The name of the hooks.
    fn point(self) -> &'static str {
        match self {
            After::Start => "poststart",
            After::Delete => "poststop",
        }
    }

    pub(crate) fn has_hooks(self) -> bool {
        let names = own_file::read_to_string(HOOKS);
        names.is_ok_and(|names| names.lines().any(|name| name == self.point()))
    }
}

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
use crate::purge;
use crate::server::Server;

/// The step after OCI hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Start,
    Delete,
}

/// Hooks that run.
pub(crate) struct Hooking {
    helper: i32,
    report: OwnedFd,
    /// The requests to answer.
    askers: Vec<Asker>,
    after: After,
}

impl Hooking {
    /// Starts the helper. A failure of the hooks is ignored (OCI: a failing poststart or poststop
    /// hook does not fail the operation).
    fn start(launch: &Launch, asker: Asker, after: After, pid: i32) -> io::Result<Hooking> {
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
    fn is_done(&self) -> bool {
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

    fn has_hooks(self) -> bool {
        let names = own_file::read_to_string(HOOKS);
        names.is_ok_and(|names| names.lines().any(|name| name == self.point()))
    }
}

impl Server {
    /// Runs the OCI hooks of this point, if the container has any; then answers.
    pub(crate) fn hooks_then(&mut self, asker: Asker, after: After) {
        match &mut self.hooking {
            // Another daemon asks again.
            Some(hooking) if hooking.after == after => return hooking.askers.push(asker),
            // The container has ended before its poststart hooks.
            Some(_) => {
                let _ = purge::kill_everything(&self.cgroups); // the deletion tries again
                self.hooks_are_done();
            }
            None => {}
        }
        let pid = self.target.as_ref().map_or(0, |t| t.pid);
        if !self.stopped
            && after.has_hooks()
            && let Ok(hooking) = Hooking::start(&self.launch, asker, after, pid)
        {
            self.hooking = Some(hooking);
            return;
        }
        self.go_on(&[asker], after);
    }

    /// Goes on after the hooks, if they are done; `ended` is a child that has ended.
    pub(crate) fn check_hooks(&mut self, ended: Option<i32>) {
        let is_over = |hooking: &Hooking| ended == Some(hooking.helper) || hooking.is_done();
        if self.hooking.as_ref().is_some_and(is_over) {
            self.hooks_are_done();
        }
    }

    fn hooks_are_done(&mut self) {
        if let Some(hooking) = self.hooking.take() {
            self.go_on(&hooking.askers, hooking.after);
        }
    }

    fn go_on(&mut self, askers: &[Asker], after: After) {
        let result = match after {
            After::Start => Ok(()),
            After::Delete => {
                self.stopped = true;
                self.delete()
            }
        };
        for asker in askers {
            self.clients.answer(*asker, result.clone());
        }
    }
}

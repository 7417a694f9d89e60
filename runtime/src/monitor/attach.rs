//! Attach: a container's own streams.

use cairn_monitor::wire::{Event, Request};

use super::client::{ANSWER, Monitor};
use super::error::{MonitorError, Why};
use super::stream::{StreamIn, StreamOut, Taken};

/// Which streams an attach session wants.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttachSpec {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

/// A live copy of the container's output from now on, and its stdin. With a terminal, `stderr` is none.
/// Call [`Monitor::detach`] at the end, so that `stdin_once` closes the container's stdin.
pub struct AttachSession {
    pub attach_id: u32,
    pub stdin: Option<StreamIn>,
    pub stdout: Option<StreamOut>,
    pub stderr: Option<StreamOut>,
}

impl Monitor {
    /// Joins the container's streams (CRI-142, 255).
    pub async fn attach(&self, spec: AttachSpec) -> Result<AttachSession, MonitorError> {
        let step = "attach";
        let request = Request::Attach {
            stdin: spec.stdin,
            stdout: spec.stdout,
            stderr: spec.stderr,
        };
        let (event, fds) = self.ask(step, request, ANSWER).await?;
        let Event::Attached { attach_id, streams } = event else {
            return Err(self.unexpected(step, event));
        };
        if fds.len() < streams.count() {
            let _detached = self.detach(attach_id).await;
            return Err(self.failed(step, Why::Descriptors));
        }
        let taken =
            Taken::new(streams, fds).map_err(|e| MonitorError::file(step, self.dir(), e))?;
        // A terminal only to write to: the monitor alone reads it.
        let terminal = taken.pty.map(|pty| Box::new(pty) as StreamIn);
        Ok(AttachSession {
            attach_id,
            stdin: terminal.or(taken.stdin),
            stdout: taken.stdout,
            stderr: taken.stderr,
        })
    }

    /// Ends an attach session.
    pub async fn detach(&self, attach_id: u32) -> Result<(), MonitorError> {
        self.done("detach", Request::Detach { attach_id }, ANSWER)
            .await
    }
}

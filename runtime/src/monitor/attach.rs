//! Attach: connects a client to the container's own streams.

use cairn_monitor::wire::{Event, Request};

use super::client::{ANSWER, Monitor};
use super::error::{MonitorError, Why};
use super::stream::{StreamIn, StreamOut, Taken};

/// The streams that an attach session requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttachSpec {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

/// A live copy of the container's output from now on, and its stdin. `stderr` is `None` with a
/// terminal. Call [`Monitor::detach`] at the end: with `stdin_once` this closes the container's
/// stdin.
pub struct AttachSession {
    pub attach_id: u32,
    pub stdin: Option<StreamIn>,
    pub stdout: Option<StreamOut>,
    pub stderr: Option<StreamOut>,
}

impl Monitor {
    /// Attaches to the container's streams (CRI-142, 255).
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
        // Use the terminal only for writing: only the monitor reads it.
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

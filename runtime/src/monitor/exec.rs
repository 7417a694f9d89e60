//! Exec: a process beside init, with its streams. ExecSync is built on it.

use std::future::Future;
use std::time::Duration;

use cairn_monitor::process::Process;
use cairn_monitor::wire::{Event, ExecRequest, Request};
use oci_spec::runtime::Spec;
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::budget::{Budget, Charge};
use super::client::{ANSWER, Monitor};
use super::error::{MonitorError, Why};
use super::stream::{Pty, StreamIn, StreamOut, Taken};

/// Converts the process of a container's spec for the monitor. It is the base of every exec
/// (CRI-141). Callers set `argv`, and `TERM` in `env` if it has a terminal.
pub fn process_of(spec: &Spec) -> Result<Process, String> {
    cairn_monitor::from_spec::process(spec)
}

/// The time after an exec's timeout within which the monitor must report its end.
const OVERTIME: Duration = Duration::from_secs(3);

/// The process to run. Start from [`process_of`] the container's own spec.
#[derive(Debug, Clone)]
pub struct ExecSpec {
    pub process: Process,
    pub tty: bool,
    /// If false, stdin is /dev/null.
    pub stdin: bool,
    /// The first window size, columns and rows.
    pub window: Option<(u16, u16)>,
    /// After this time the monitor kills the session's cgroup, even if the daemon has ended.
    pub timeout: Option<Duration>,
}

/// A running exec. Dropping it closes its pipes and does not end the process. Only `end` returns
/// its exit.
pub struct ExecSession {
    pub stdin: Option<StreamIn>,
    /// `None` if the timeout expired before the process was in the container.
    pub stdout: Option<StreamOut>,
    /// `None` in the same case, and with a terminal.
    pub stderr: Option<StreamOut>,
    /// The terminal, for `resize`.
    pub pty: Option<Pty>,
    session: u32,
    monitor: Monitor,
    end: oneshot::Receiver<Event>,
}

/// Exit status of an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecEnd {
    /// The exit code, or 128 + signal, as in a shell.
    pub code: i32,
    pub signal: i32,
    pub timed_out: bool,
}

/// The result of ExecSync: the first bytes of each stream, at most [`OUTPUT_LIMIT`] together.
#[derive(Debug)]
pub struct ExecOutput {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub code: i32,
    /// Dropped last, because it counts the memory of both.
    pub charge: Charge,
}

/// Clients accept answers of up to 16 MiB, framing included; a longer answer would be an error for
/// them.
pub(super) const OUTPUT_LIMIT: usize = (16 << 20) - (64 << 10);
/// The memory for the collected output of all calls. The daemon is small, and the probes of a node
/// run at the same time.
static COLLECTED: Budget = Budget::new(256 << 20);
/// The bytes of each stream that the budget does not count, so that short output is always
/// collected.
const SHORT: usize = 32 << 10;
/// The first allocation for a stream that is longer than [`SHORT`], and the step by which it grows.
const FIRST: usize = 64 << 10;
const STEP: usize = 1 << 20;
/// The time that a background child may keep the pipes open after the exec's end (CRI-140).
const DRAIN: Duration = Duration::from_secs(2);

impl ExecSession {
    /// Waits for the process. Background children may continue to run.
    pub async fn end(&mut self) -> Result<ExecEnd, MonitorError> {
        match (&mut self.end).await {
            Ok(Event::ExecExited {
                code,
                signal,
                timed_out,
                ..
            }) => Ok(ExecEnd {
                code,
                signal,
                timed_out,
            }),
            _ => Err(self.monitor.failed("exec", Why::Lost)),
        }
    }

    /// Kills the process and all its descendants.
    pub async fn kill(&mut self) -> Result<(), MonitorError> {
        let request = Request::ExecKill {
            session: self.session,
        };
        self.monitor.done("kill an exec", request, ANSWER).await
    }
}

impl Monitor {
    /// Starts a process in the container (CRI-141). If it cannot be executed, the error contains
    /// the kernel's text.
    pub async fn exec(&self, spec: ExecSpec) -> Result<ExecSession, MonitorError> {
        let step = "exec";
        let (tx, end) = oneshot::channel();
        let request = Request::Exec(Box::new(ExecRequest {
            process: spec.process,
            tty: spec.tty,
            stdin: spec.stdin,
            window: spec.window,
            timeout_ms: spec.timeout.map_or(0, |t| millis(t).max(1)),
        }));
        let (event, fds) = self.ask_with_end(step, request, ANSWER, Some(tx)).await?;
        let Event::ExecStarted {
            session, streams, ..
        } = event
        else {
            return Err(self.unexpected(step, event));
        };
        let monitor = self.clone();
        let mut started = ExecSession {
            stdin: None,
            stdout: None,
            stderr: None,
            pty: None,
            session,
            monitor,
            end,
        };
        let taken = if fds.len() < streams.count() {
            Err(self.failed(step, Why::Descriptors))
        } else {
            Taken::new(streams, fds).map_err(|e| MonitorError::file(step, self.dir(), e))
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(error) => {
                // It may have ended already.
                let _killed = started.kill().await;
                return Err(error);
            }
        };
        (started.stdin, started.stdout) = (taken.stdin, taken.stdout);
        started.stderr = taken.stderr;
        if let Some(pty) = taken.pty {
            if spec.stdin {
                started.stdin = Some(Box::new(pty.clone()));
            }
            started.stdout = Some(Box::new(pty.clone()));
            started.pty = Some(pty);
        }
        Ok(started)
    }

    /// Runs a process to its end and collects its output (CRI-139, 140). A timeout returns
    /// [`MonitorError::ExecTimedOut`]; all processes of the exec are dead then, unless the monitor
    /// does not answer. Dropping this future (its caller left) kills them, too.
    pub async fn exec_sync(&self, spec: ExecSpec) -> Result<ExecOutput, MonitorError> {
        let timeout = spec.timeout;
        let gone = CancellationToken::new();
        let (monitor, caller) = (self.clone(), gone.clone());
        // Detached: a caller that leaves during the start has no session to kill yet.
        let work = tokio::spawn(async move { monitor.collected(spec, &caller).await });
        let _caller = gone.drop_guard();
        let work = async {
            work.await
                .unwrap_or_else(|_| Err(self.failed("exec", Why::Lost)))
        };
        let Some(timeout) = timeout else {
            return work.await;
        };
        match tokio::time::timeout(timeout + OVERTIME, work).await {
            Ok(result) => result,
            Err(_) => Err(self.timed_out(millis(timeout))),
        }
    }

    fn timed_out(&self, millis: u64) -> MonitorError {
        let id = self.id().to_owned();
        MonitorError::ExecTimedOut { id, millis }
    }

    async fn collected(
        &self,
        spec: ExecSpec,
        caller_gone: &CancellationToken,
    ) -> Result<ExecOutput, MonitorError> {
        let timeout = spec.timeout;
        let mut session = self
            .exec(ExecSpec {
                stdin: false,
                tty: false,
                ..spec
            })
            .await?;
        let (stdout, stderr) = (session.stdout.take(), session.stderr.take());
        let output = Mutex::new(Output::new(&COLLECTED));
        let full = CancellationToken::new();
        let end = {
            let reading = async {
                tokio::join!(
                    collect(stdout, &full, |bytes| output.lock().add(Stream::Out, bytes)),
                    collect(stderr, &full, |bytes| output.lock().add(Stream::Err, bytes)),
                )
            };
            tokio::select! {
                end = with_drain(session.end(), reading) => Ok(end?),
                () = full.cancelled() => Err(Why::Budget(COLLECTED.bytes())),
                () = caller_gone.cancelled() => Err(Why::Lost),
            }
        };
        let end = match end {
            Ok(end) => end,
            Err(why) => {
                // Free the output first: the monitor may answer late.
                drop(output);
                // Its closed streams may have ended it already.
                let _ended = session.kill().await;
                return Err(self.failed("exec", why));
            }
        };
        if end.timed_out {
            return Err(self.timed_out(timeout.map_or(0, millis)));
        }
        if full.is_cancelled() {
            return Err(self.failed("exec", Why::Budget(COLLECTED.bytes())));
        }
        let Output { out, err, charge } = output.into_inner();
        Ok(ExecOutput {
            stdout: out,
            stderr: err,
            code: end.code,
            charge,
        })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Waits for `end`, then gives `reading` up to [`DRAIN`].
async fn with_drain<E>(end: impl Future<Output = E>, reading: impl Future) -> E {
    tokio::pin!(end, reading);
    let mut read = false;
    let ended = loop {
        tokio::select! {
            ended = &mut end => break ended,
            _ = &mut reading, if !read => read = true,
        }
    };
    if !read {
        // A child of the process may keep the pipe open.
        let _ = tokio::time::timeout(DRAIN, reading).await;
    }
    ended
}

/// The output collected so far, at most [`OUTPUT_LIMIT`].
struct Output {
    out: Vec<u8>,
    err: Vec<u8>,
    charge: Charge,
}

#[derive(Clone, Copy)]
enum Stream {
    Out,
    Err,
}

impl Output {
    fn new(budget: &'static Budget) -> Self {
        Self {
            out: Vec::new(),
            err: Vec::new(),
            charge: budget.charge(),
        }
    }

    /// Adds the bytes that fit. Each stream may use half of the limit, and the part of the other
    /// half that the other stream leaves free. Returns false if the budget of all calls is
    /// exhausted.
    fn add(&mut self, stream: Stream, bytes: &[u8]) -> bool {
        let (to, other) = match stream {
            Stream::Out => (&mut self.out, &mut self.err),
            Stream::Err => (&mut self.err, &mut self.out),
        };
        let room = OUTPUT_LIMIT - to.len() - other.len().min(OUTPUT_LIMIT / 2);
        let bytes = &bytes[..bytes.len().min(room)];
        let left = OUTPUT_LIMIT - to.len() - bytes.len();
        if other.len() > left {
            other.truncate(left);
            other.shrink_to_fit();
        }
        // Count resident memory, used or not.
        let capacity = capacity_of(to.len() + bytes.len()).max(to.capacity());
        let charged = |capacity: usize| capacity.saturating_sub(SHORT);
        let wanted = charged(capacity) + charged(other.capacity());
        let granted = self.charge.change_to(wanted);
        if granted {
            to.reserve_exact(capacity - to.len());
            to.extend_from_slice(bytes);
        }
        granted
    }
}

/// Returns the memory to allocate for this number of bytes.
fn capacity_of(len: usize) -> usize {
    if len <= SHORT {
        len.next_power_of_two()
    } else if len <= FIRST {
        FIRST
    } else {
        len.next_multiple_of(STEP).min(OUTPUT_LIMIT)
    }
}

/// Reads the stream to its end. Bytes beyond the limit are dropped, so that the process is not
/// blocked. If `add` returns false, cancels `full` and stops reading.
async fn collect(stream: Option<StreamOut>, full: &CancellationToken, add: impl Fn(&[u8]) -> bool) {
    let Some(mut stream) = stream else { return };
    let mut chunk = vec![0; 16 << 10];
    while let Ok(n @ 1..) = stream.read(&mut chunk).await {
        if !add(&chunk[..n]) {
            return full.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static AMPLE: Budget = Budget::new(1 << 30);

    /// Writes both streams, either in turns or each to its end, and returns the collected lengths.
    fn collected(out: usize, err: usize, piece: usize) -> (usize, usize) {
        let mut output = Output::new(&AMPLE);
        let (mut out, mut err) = (vec![0; out], vec![0; err]);
        while !out.is_empty() || !err.is_empty() {
            for (stream, left) in [(Stream::Out, &mut out), (Stream::Err, &mut err)] {
                let rest = left.split_off(piece.min(left.len()));
                assert!(output.add(stream, left), "the budget is ample");
                *left = rest;
            }
            assert!(output.out.len() + output.err.len() <= OUTPUT_LIMIT);
        }
        (output.out.len(), output.err.len())
    }

    #[test]
    fn two_long_streams_share_the_limit_and_a_short_one_leaves_it_to_the_other() {
        let half = OUTPUT_LIMIT / 2;
        for ((out, err), expected) in [
            ((OUTPUT_LIMIT, OUTPUT_LIMIT), (half, half)),
            ((OUTPUT_LIMIT + 1, 10), (OUTPUT_LIMIT - 10, 10)),
            ((10, OUTPUT_LIMIT + 1), (10, OUTPUT_LIMIT - 10)),
            ((10, 10), (10, 10)),
        ] {
            for piece in [1 << 20, 2 * OUTPUT_LIMIT] {
                assert_eq!(collected(out, err, piece), expected, "by {piece}");
            }
        }
    }

    #[test]
    fn long_output_is_refused_beyond_the_budget_and_short_output_never() {
        static BUDGET: Budget = Budget::new(2 * STEP - SHORT);
        let mut long = Output::new(&BUDGET);
        assert!(long.add(Stream::Out, &vec![0; STEP + 1]));
        assert!(long.add(Stream::Out, &vec![0; STEP - 1]));
        assert_eq!(long.out.capacity(), 2 * STEP, "no more than is charged");
        assert!(!long.add(Stream::Err, &[0; SHORT + 1]));
        let mut short = Output::new(&BUDGET);
        assert!(short.add(Stream::Out, &[0; SHORT]) && short.add(Stream::Err, &[0; SHORT]));
        assert!(!short.add(Stream::Err, &[0]));
        drop(long);
        assert!(short.add(Stream::Err, &[0]), "it was given back");
    }
}

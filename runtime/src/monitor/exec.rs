//! Exec: a process beside init, with its streams; and ExecSync on top of it.

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

/// The process of a container's spec as it is handed to the monitor: the base of every exec (CRI-141). Callers set
/// `argv`, and with a terminal `TERM` in `env`.
pub fn process_of(spec: &Spec) -> Result<Process, String> {
    cairn_monitor::from_spec::process(spec)
}

/// How long after its timeout an exec's end may be told.
const OVERTIME: Duration = Duration::from_secs(3);

/// Process to run. Start from [`process_of`] the container's own spec.
#[derive(Debug, Clone)]
pub struct ExecSpec {
    pub process: Process,
    pub tty: bool,
    /// False: /dev/null.
    pub stdin: bool,
    /// First window size, columns and rows.
    pub window: Option<(u16, u16)>,
    /// After this the session's whole cgroup is killed, by the monitor, also if the daemon is gone.
    pub timeout: Option<Duration>,
}

/// A running exec. Dropping it leaves the process alone (its pipes close); `end` is the only way to its exit.
pub struct ExecSession {
    pub stdin: Option<StreamIn>,
    /// None where its time was over before it was inside.
    pub stdout: Option<StreamOut>,
    /// None there, and with a terminal.
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
    /// As a shell says it: the exit code, or 128 + signal.
    pub code: i32,
    pub signal: i32,
    pub timed_out: bool,
}

/// Result of ExecSync: the first bytes of each stream, together at most [`OUTPUT_LIMIT`].
#[derive(Debug)]
pub struct ExecOutput {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub code: i32,
    /// To be dropped after both.
    pub charge: Charge,
}

/// Clients take answers of 16 MiB in all, framing included: a longer one would reach them as an error.
pub(super) const OUTPUT_LIMIT: usize = (16 << 20) - (64 << 10);
/// What the collected output of all calls together may take: the daemon is small, and the probes of a node run at the same
/// moments.
static COLLECTED: Budget = Budget::new(256 << 20);
/// Of each stream, what counts towards no budget: short output is collected whatever others write.
const SHORT: usize = 32 << 10;
/// The memory of a stream that is longer than [`SHORT`], at first, and then in steps of so much.
const FIRST: usize = 64 << 10;
const STEP: usize = 1 << 20;
/// How long after the end a background child may keep the pipes open (CRI-140).
const DRAIN: Duration = Duration::from_secs(2);

impl ExecSession {
    /// Waits for the process. Background children may live on.
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
    /// Starts a process in the container (CRI-141). Fails with the kernel's words if it cannot be executed.
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
        if fds.len() < streams.count() {
            // It may have ended by itself.
            let _killed = started.kill().await;
            return Err(self.failed(step, Why::Descriptors));
        }
        let taken =
            Taken::new(streams, fds).map_err(|e| MonitorError::file(step, self.dir(), e))?;
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

    /// Runs to the end and collects the output (CRI-139, 140). A timeout is [`MonitorError::ExecTimedOut`], and
    /// everything the exec started is dead by then, unless the monitor itself does not answer. Where this future is
    /// dropped, because the caller is gone, all of it is killed too.
    pub async fn exec_sync(&self, spec: ExecSpec) -> Result<ExecOutput, MonitorError> {
        let timeout = spec.timeout;
        let gone = CancellationToken::new();
        let (monitor, caller) = (self.clone(), gone.clone());
        // Detached: whoever leaves while the exec is being started has nothing to kill yet.
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
                // Its output is let go before the monitor is asked, who may take his time.
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

/// Waits for `end`; from then on `reading` has [`DRAIN`] left.
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

/// What was collected so far, at most [`OUTPUT_LIMIT`].
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

    /// Takes as many of the bytes as fit: each stream may have half of the limit, and what the other one leaves of it. False
    /// where the budget of all calls is used up.
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
        // What is resident counts, used or not.
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

/// The memory that is taken for so many bytes.
fn capacity_of(len: usize) -> usize {
    if len <= SHORT {
        len.next_power_of_two()
    } else if len <= FIRST {
        FIRST
    } else {
        len.next_multiple_of(STEP).min(OUTPUT_LIMIT)
    }
}

/// Reads to the end; what is not taken is dropped, so that the process is not blocked. Where `add` says that nothing more may
/// be taken, `full` is cancelled, and the reading ends.
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

    /// Both streams, each written to its end before the other or by turns.
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

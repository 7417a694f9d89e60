//! The daemon's client of one monitor: sends requests, receives answers and the exit.
//!
//! Two tasks own the two directions of the connection. A caller hands a frame to the writer and
//! waits on a one-shot channel that the reader fills. No lock is held while a caller waits.
//!
//! A caller may leave at any time: an answer that nobody takes undoes what the request began
//! ([`Delivery`]).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cairn_monitor::codec::VERSION;
use cairn_monitor::record::Exit;
use cairn_monitor::wire::{self, Event, Phase, Request};
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::error::{MonitorError, Why};
use super::incoming::Incoming;

/// The end of a container, as far as the daemon knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Exited(Exit),
    /// The monitor died without recording an exit. Call `Launcher::cleanup` next; the reason is
    /// "MonitorLost".
    Lost,
}

/// A handle on one container's monitor. Clones share the connection, which closes with the last
/// clone.
#[derive(Clone)]
pub struct Monitor {
    inner: Arc<Inner>,
}

struct Inner {
    id: String,
    dir: PathBuf,
    next: AtomicU32,
    frames: mpsc::Sender<Vec<u8>>,
    shared: Arc<Shared>,
    reader: tokio::task::AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

type Answer = (Event, Vec<OwnedFd>);

struct Shared {
    /// Contains plain maps only, so a panic while the lock is held leaves them valid.
    waiting: Mutex<Waiting>,
    /// Requests that undo abandoned ones, for the writer: at most one for each abandoned request.
    undoing: Mutex<Vec<Request>>,
    to_undo: Notify,
    ending: watch::Sender<Option<Ending>>,
    init: watch::Sender<(i32, u64)>,
}

/// The waiting callers by request id. `closed` rejects new entries after the reader has ended.
#[derive(Default)]
struct Waiting {
    answers: BTreeMap<u32, oneshot::Sender<Delivery>>,
    exec_ends: BTreeMap<u32, oneshot::Sender<Event>>,
    closed: bool,
}

/// An answer on its way to its caller. Dropped before the caller has it (the caller gave up, its
/// future was dropped, or it never waited), it undoes what the request began.
struct Delivery {
    answer: Option<Answer>,
    shared: Arc<Shared>,
}

impl Delivery {
    fn take(mut self) -> Option<Answer> {
        self.answer.take()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        let undo = self.answer.as_ref().and_then(|(event, _)| undo_of(event));
        if let Some(undo) = undo {
            self.shared.undoing.lock().push(undo);
            self.shared.to_undo.notify_one();
        }
    }
}

/// The request that undoes what an answer reports. `Created` and a started container need none:
/// who gives up a start ends the container.
fn undo_of(event: &Event) -> Option<Request> {
    match *event {
        Event::ExecStarted { session, .. } => Some(Request::ExecKill { session }),
        Event::Attached { attach_id, .. } => Some(Request::Detach { attach_id }),
        Event::Hello { .. }
        | Event::Created { .. }
        | Event::Done
        | Event::Failed { .. }
        | Event::ExecExited { .. }
        | Event::Exited(_) => None,
    }
}

/// A caller's place among the waiting. A caller that leaves gives it up.
struct Place<'a> {
    shared: &'a Shared,
    id: u32,
    answered: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let mut waiting = self.shared.waiting.lock();
            let late = waiting.answers.remove(&self.id);
            waiting.exec_ends.remove(&self.id);
            drop(waiting);
            drop(late);
        }
    }
}

impl Monitor {
    /// Takes over a new connection: waits for the monitor's greeting and checks its version.
    pub(super) async fn connect(
        id: String,
        dir: PathBuf,
        stream: std::os::unix::net::UnixStream,
    ) -> Result<(Monitor, Phase), MonitorError> {
        let step = "connect to the monitor";
        stream
            .set_nonblocking(true)
            .map_err(|e| MonitorError::file(step, &dir, e))?;
        let stream =
            Arc::new(UnixStream::from_std(stream).map_err(|e| MonitorError::file(step, &dir, e))?);
        let mut incoming = Incoming::new(stream.clone());
        let failed = |why| {
            let id = id.clone();
            MonitorError::Container { id, step, why }
        };
        let hello = tokio::time::timeout(ANSWER, incoming.next())
            .await
            .map_err(|_| failed(Why::Silent(ANSWER)))?;
        let (phase, pid, start_time, exit) = match hello {
            Ok(Some((0, Event::Hello { version, .. }, _))) if version != VERSION => {
                return Err(failed(Why::Version(version)));
            }
            Ok(Some((
                0,
                Event::Hello {
                    phase,
                    pid,
                    start_time,
                    exit,
                    ..
                },
                _,
            ))) => (phase, pid, start_time, exit),
            Ok(Some((0, Event::Failed { text }, _))) => return Err(failed(Why::Refused(text))),
            Ok(None) | Err(_) => return Err(failed(Why::Lost)),
            Ok(Some(_)) => return Err(failed(Why::Protocol)),
        };
        let (frames, queue) = mpsc::channel(16);
        let shared = Arc::new(Shared {
            waiting: Mutex::default(),
            undoing: Mutex::default(),
            to_undo: Notify::new(),
            ending: watch::Sender::new(exit.map(Ending::Exited)),
            init: watch::Sender::new((pid, start_time)),
        });
        tokio::spawn(write_frames(stream, queue, shared.clone()));
        let reader = tokio::spawn(read_events(incoming, shared.clone())).abort_handle();
        let inner = Inner {
            id,
            dir,
            next: AtomicU32::new(1),
            frames,
            shared,
            reader,
        };
        Ok((
            Monitor {
                inner: Arc::new(inner),
            },
            phase,
        ))
    }

    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// Returns the container's directory (`config.json`, `ctl.sock`, `exit`, ...).
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Returns init's pid in the daemon's pid namespace and its start time (`/proc/<pid>/stat`,
    /// field 22).
    pub fn init(&self) -> (i32, u64) {
        *self.inner.shared.init.borrow()
    }

    /// Lets init run its program. If it cannot, the error contains the kernel's text (no such file,
    /// not executable, ...).
    pub async fn start(&self) -> Result<(), MonitorError> {
        self.done("start", Request::Start, START).await
    }

    /// Signals init (kernel number); with `all`, signals every process in the container's cgroups
    /// (CRI-258). Fails if init has exited, unless `all` is set.
    pub async fn kill(&self, signal: i32, all: bool) -> Result<(), MonitorError> {
        self.done("kill", Request::Kill { signal, all }, ANSWER)
            .await
    }

    /// Sets the window size of the container's own terminal.
    pub async fn resize(&self, columns: u16, rows: u16) -> Result<(), MonitorError> {
        self.done("resize", Request::Resize { columns, rows }, ANSWER)
            .await
    }

    /// Opens the log path again. On return the new file exists and the old file receives no more
    /// records (CRI-138).
    pub async fn reopen_log(&self) -> Result<(), MonitorError> {
        self.done("reopen the log", Request::ReopenLog, ANSWER)
            .await
    }

    /// Waits for the end. Returns at once if the container has ended.
    pub async fn wait(&self) -> Ending {
        let mut ending = self.inner.shared.ending.subscribe();
        match ending.wait_for(Option::is_some).await.map(|e| *e) {
            Ok(Some(ending)) => ending,
            _ => Ending::Lost,
        }
    }

    /// Returns the end if the container has ended.
    pub fn ending(&self) -> Option<Ending> {
        *self.inner.shared.ending.borrow()
    }

    /// Ends the monitor after the container's exit. On return its processes, sub-cgroups and state
    /// are removed. The caller removes the container's cgroups and directory.
    pub async fn delete(&self) -> Result<(), MonitorError> {
        self.done("delete", Request::Delete, ANSWER).await
    }

    pub(super) async fn create(&self) -> Result<(), MonitorError> {
        match self.ask("create", Request::Create, START).await? {
            (Event::Created { pid, start_time }, _) => {
                self.inner.shared.init.send_replace((pid, start_time));
                Ok(())
            }
            (event, _) => Err(self.unexpected("create", event)),
        }
    }

    /// Sends a request that is answered only by `Done` or an error.
    pub(super) async fn done(
        &self,
        step: &'static str,
        request: Request,
        limit: Duration,
    ) -> Result<(), MonitorError> {
        match self.ask(step, request, limit).await? {
            (Event::Done, _) => Ok(()),
            (event, _) => Err(self.unexpected(step, event)),
        }
    }

    pub(super) fn failed(&self, step: &'static str, why: Why) -> MonitorError {
        let id = self.inner.id.clone();
        MonitorError::Container { id, step, why }
    }

    pub(super) fn unexpected(&self, step: &'static str, event: Event) -> MonitorError {
        let why = match event {
            Event::Failed { text } => Why::Refused(text),
            _ => Why::Protocol,
        };
        self.failed(step, why)
    }

    pub(super) async fn ask(
        &self,
        step: &'static str,
        request: Request,
        limit: Duration,
    ) -> Result<Answer, MonitorError> {
        self.ask_with_end(step, request, limit, None).await
    }

    /// Sends a request and waits for its answer. `end` receives the event of an exec's end.
    pub(super) async fn ask_with_end(
        &self,
        step: &'static str,
        request: Request,
        limit: Duration,
        end: Option<oneshot::Sender<Event>>,
    ) -> Result<Answer, MonitorError> {
        let id = self.inner.next.fetch_add(1, Ordering::Relaxed).max(1);
        let frame = request.encode(id);
        if frame.len() > wire::MAX_FRAME {
            let text = format!(
                "request of {} bytes exceeds the limit of {}",
                frame.len(),
                wire::MAX_FRAME
            );
            return Err(self.failed(step, Why::Refused(text)));
        }
        let (tx, rx) = oneshot::channel();
        {
            let mut waiting = self.inner.shared.waiting.lock();
            if waiting.closed {
                return Err(self.failed(step, Why::Lost));
            }
            waiting.answers.insert(id, tx);
            if let Some(end) = end {
                waiting.exec_ends.insert(id, end);
            }
        }
        let mut place = Place {
            shared: &self.inner.shared,
            id,
            answered: false,
        };
        let answer = tokio::time::timeout(limit, async {
            self.inner.frames.send(frame).await.ok()?;
            rx.await.ok()?.take()
        })
        .await;
        match answer {
            Ok(Some(answer)) => {
                place.answered = true;
                Ok(answer)
            }
            Ok(None) => Err(self.failed(step, Why::Lost)),
            Err(_) => Err(self.failed(step, Why::Silent(limit))),
        }
    }
}

/// The time limit for requests that the monitor answers by itself.
pub(super) const ANSWER: Duration = Duration::from_secs(30);
/// The time limit for requests that wait for `cairn-create`, for OCI hooks or for many processes to
/// die.
const START: Duration = Duration::from_secs(180);

/// The id of requests whose answers nobody awaits.
const UNDO: u32 = u32::MAX;

async fn write_frames(
    stream: Arc<UnixStream>,
    mut queue: mpsc::Receiver<Vec<u8>>,
    shared: Arc<Shared>,
) {
    loop {
        let (is_last, frame) = tokio::select! {
            frame = queue.recv() => (frame.is_none(), frame.unwrap_or_default()),
            () = shared.to_undo.notified() => (false, Vec::new()),
        };
        let undo = std::mem::take(&mut *shared.undoing.lock());
        let undo = undo.into_iter().map(|undo| undo.encode(UNDO));
        for frame in std::iter::once(frame).chain(undo) {
            if write(&stream, &frame).await.is_err() {
                return; // the reader sees the end and notifies all callers
            }
        }
        if is_last {
            return;
        }
    }
}

async fn write(stream: &UnixStream, frame: &[u8]) -> std::io::Result<()> {
    let mut rest = frame;
    while !rest.is_empty() {
        let n = stream
            .async_io(Interest::WRITABLE, || Ok(rustix::io::write(stream, rest)?))
            .await?;
        rest = &rest[n..];
    }
    Ok(())
}

async fn read_events(mut incoming: Incoming, shared: Arc<Shared>) {
    // After the loop ends (end of file, an error or an invalid frame), this monitor sends no more
    // events.
    while let Ok(Some((id, event, fds))) = incoming.next().await {
        match event {
            Event::Exited(exit) => {
                shared.ending.send_replace(Some(Ending::Exited(exit)));
            }
            Event::ExecExited { .. } => {
                if let Some(end) = shared.waiting.lock().exec_ends.remove(&id) {
                    let _gone = end.send(event);
                }
            }
            event => {
                let mut waiting = shared.waiting.lock();
                if matches!(event, Event::Failed { .. }) {
                    waiting.exec_ends.remove(&id);
                }
                let caller = waiting.answers.remove(&id);
                drop(waiting);
                let delivery = Delivery {
                    answer: Some((event, fds)),
                    shared: shared.clone(),
                };
                if let Some(caller) = caller {
                    let _undone = caller.send(delivery);
                }
            }
        }
    }
    let mut waiting = shared.waiting.lock();
    waiting.closed = true;
    waiting.answers.clear();
    waiting.exec_ends.clear();
    drop(waiting);
    shared.ending.send_if_modified(|ending| {
        let lost = ending.is_none();
        ending.get_or_insert(Ending::Lost);
        lost
    });
}

//! Monitors in memory, which speak the monitor's protocol over socket pairs. Their state outlives
//! the daemon; their tasks and sockets belong to the daemon's runtime.

use std::{
    borrow::Cow,
    fmt, fs, io,
    os::unix::net::UnixStream as StdUnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use cairn::monitor::Monitors;
use cairn_monitor::{
    codec::VERSION,
    record::{EXIT, Exit, LAUNCH, Launch},
    wire::{self, Event, Phase, Request},
};
use futures_util::future::BoxFuture;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
    time::Instant,
};

use crate::{
    drawn::{drawn, some_ms},
    kept::Kept,
    memory::Memory,
    plan::Hazard,
    rule::Rule,
};

/// The container of a monitor's directory.
fn name_of(dir: &Path) -> Cow<'_, str> {
    dir.file_name().unwrap_or_default().to_string_lossy()
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

impl Monitors for Memory {
    fn spawn(&self, dir: &Path, socket: StdUnixStream) -> io::Result<BoxFuture<'static, ()>> {
        let launch = fs::read(dir.join(LAUNCH)).expect("launched with a file");
        let launch = Launch::decode(&launch).expect("a launch file");
        let (alive, mut gone) = watch::channel(());
        let kept = Kept {
            phase: Phase::Empty,
            pid: 0,
            cgroups: launch
                .cgroups
                .iter()
                .map(|group| group.path.clone().into())
                .collect(),
            clients: 0,
            stuck: None,
            exit: watch::Sender::new(None),
            _alive: alive,
            gone: gone.clone(),
        };
        if self
            .0
            .lock()
            .monitors
            .insert(dir.to_owned(), kept)
            .is_some()
        {
            self.fault(
                Rule::Order,
                format!("two monitors at once: {}", name_of(dir)),
            );
        }
        self.serve(dir, socket)?;
        Ok(Box::pin(
            async move { while gone.changed().await.is_ok() {} },
        ))
    }

    fn connect(&self, dir: &Path) -> io::Result<StdUnixStream> {
        if !self.0.lock().monitors.contains_key(dir) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (ours, theirs) = StdUnixStream::pair()?;
        self.serve(dir, theirs)?;
        Ok(ours)
    }

    fn end<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            some_ms(3).await;
            self.lose(dir);
            Ok(())
        })
    }

    fn clean<'a>(&'a self, dir: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            some_ms(3).await;
            if self.0.lock().monitors.contains_key(dir) {
                self.fault(
                    Rule::Order,
                    format!("cleaned beside its monitor: {}", name_of(dir)),
                );
            }
            Ok(())
        })
    }

    fn program(&self) -> PathBuf {
        "/nowhere".into()
    }
}

impl Memory {
    fn serve(&self, dir: &Path, socket: StdUnixStream) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let (reader, writer) = UnixStream::from_std(socket)?.into_split();
        let session = Session::new(self, dir);
        tokio::spawn(session.run(reader, writer));
        Ok(())
    }

    /// Ends its container's process; the monitor writes the exit file and notifies its clients.
    pub(crate) fn exit(&self, dir: &Path, code: i32) {
        let mut inner = self.0.lock();
        let Some(kept) = inner.monitors.get_mut(dir) else {
            return;
        };
        if !matches!(kept.phase, Phase::Created | Phase::Running) {
            return;
        }
        let missing = kept.leave();
        let started = kept.phase == Phase::Running;
        let exit = Exit {
            code,
            signal: 0,
            finished_at: 1,
            oom_killed: false,
            log_lost: 0,
            started,
        };
        // Only the end of the monitor removes the directory.
        fs::write(dir.join(EXIT), exit.to_text()).expect("the exit file");
        kept.phase = Phase::Exited;
        kept.exit.send_replace(Some(exit));
        let ended = inner.begun.map(|_| Instant::now());
        inner.exits.insert(dir.to_owned(), (code, ended));
        drop(inner);
        self.log(format!("exits with {code}: {}", name_of(dir)));
        self.early(missing);
    }

    fn early(&self, missing: Option<PathBuf>) {
        if let Some(group) = missing {
            let text = format!("its cgroup went before it: {}", name_of(&group));
            self.fault(Rule::Order, text);
        }
    }

    /// Kills the monitor, and its container with it.
    pub(crate) fn lose(&self, dir: &Path) {
        let mut inner = self.0.lock();
        let Some(lost) = inner.monitors.remove(dir) else {
            return;
        };
        if !lost.is_alive() {
            return;
        }
        let missing = lost.leave();
        let ended = inner.begun.map(|_| Instant::now());
        inner.lost.insert(dir.to_owned(), ended);
        drop(inner);
        self.log(format!("is killed: the monitor of {}", name_of(dir)));
        self.early(missing);
    }

    /// All processes are gone, and so are their cgroups and exit files.
    pub(crate) fn lose_all(&self) {
        let mut inner = self.0.lock();
        let monitors = inner.monitors.keys().chain(inner.exits.keys());
        let dirs: Vec<_> = monitors.cloned().collect();
        inner.lost.extend(dirs.into_iter().map(|dir| (dir, None)));
        inner.monitors.clear();
    }

    /// Some monitors stop running for a while.
    pub(crate) fn stop_some(&self) {
        let dirs: Vec<_> = self.0.lock().monitors.keys().cloned().collect();
        for dir in dirs {
            self.stop_one(&dir);
        }
    }

    fn stop_one(&self, dir: &Path) {
        let stuck = self.happens(Hazard::Stuck).then(|| {
            let seconds = [3, 15, 45, 1000][drawn(4) as usize];
            Instant::now() + Duration::from_secs(seconds)
        });
        if let Some(kept) = self.0.lock().monitors.get_mut(dir) {
            kept.stuck = stuck;
        }
    }

    /// Returns when the monitor runs.
    async fn until_it_runs(&self, dir: &Path) {
        loop {
            let stuck = self.0.lock().monitors.get(dir).and_then(|kept| kept.stuck);
            match stuck {
                Some(until) if until > Instant::now() => tokio::time::sleep_until(until).await,
                _ => return,
            }
        }
    }

    /// Directories of monitors with running containers.
    pub(crate) fn running(&self) -> Vec<PathBuf> {
        let inner = self.0.lock();
        let running = inner
            .monitors
            .iter()
            .filter(|(_, kept)| kept.phase == Phase::Running);
        running.map(|(dir, _)| dir.clone()).collect()
    }

    /// Ends at a random moment, or only when killed.
    pub(crate) fn live(&self, dir: &Path) {
        let (memory, dir) = (self.clone(), dir.to_owned());
        let lifetime = match drawn(3) {
            0 => return,
            1 => Duration::from_millis(drawn(20)),
            _ => Duration::from_millis(drawn(8000)),
        };
        tokio::spawn(async move {
            tokio::time::sleep(lifetime).await;
            memory.until_it_runs(&dir).await;
            match drawn(8) {
                0 => memory.lose(&dir),
                _ => memory.exit(&dir, 0),
            }
        });
    }
}

/// One connection.
struct Session {
    asked: Asked,
}

/// A request to a monitor, which may outlive its connection.
#[derive(Clone)]
struct Asked {
    memory: Memory,
    dir: PathBuf,
}

impl Session {
    fn new(memory: &Memory, dir: &Path) -> Self {
        if let Some(kept) = memory.0.lock().monitors.get_mut(dir) {
            kept.clients += 1;
        }
        let asked = Asked {
            memory: memory.clone(),
            dir: dir.to_owned(),
        };
        Self { asked }
    }

    async fn run(self, mut reader: OwnedReadHalf, mut writer: OwnedWriteHalf) {
        let asked = &self.asked;
        asked.memory.until_it_runs(&asked.dir).await;
        let Some((hello, mut exit, mut gone)) = asked.with(|kept| {
            let hello = Event::Hello {
                version: VERSION,
                phase: kept.phase,
                pid: kept.pid,
                start_time: 1,
                exit: *kept.exit.borrow(),
            };
            (hello, kept.exit.subscribe(), kept.gone.clone())
        }) else {
            return;
        };
        if writer.write_all(&hello.encode(0)).await.is_err() {
            return;
        }
        let mut bytes = Vec::new();
        let (answers, mut answered) = mpsc::channel(16);
        loop {
            while let Ok(Some(frame)) = wire::split(&bytes) {
                let request = Request::decode(frame.kind, frame.payload).expect("a request");
                let (id, size) = (frame.id, frame.size);
                bytes.drain(..size);
                let (asked, answers) = (asked.clone(), answers.clone());
                tokio::spawn(async move {
                    let last = request == Request::Delete;
                    // Nobody waits for the answer of a killed monitor.
                    if let Some(answer) = asked.answer(request).await {
                        let last = last && answer == Event::Done;
                        let _ = answers.send((id, answer, last)).await;
                    }
                });
            }
            tokio::select! {
                biased;
                Some((id, answer, last)) = answered.recv() => {
                    if writer.write_all(&answer.encode(id)).await.is_err() || last {
                        return;
                    }
                }
                changed = exit.changed() => {
                    let exit = *exit.borrow_and_update();
                    if changed.is_err() {
                        return;
                    }
                    if let Some(exit) = exit
                        && writer.write_all(&Event::Exited(exit).encode(0)).await.is_err()
                    {
                        return;
                    }
                }
                _ = gone.changed() => return,
                read = reader.read_buf(&mut bytes) => match read {
                    Ok(1..) => {}
                    _ => return,
                },
            }
        }
    }
}

impl Drop for Session {
    /// A monitor whose daemon vanished before the start undoes itself.
    fn drop(&mut self) {
        let alone = self.asked.with(|kept| {
            kept.clients -= 1;
            kept.clients == 0
                && matches!(kept.phase, Phase::Empty | Phase::Creating | Phase::Created)
        });
        if alone == Some(true) {
            self.asked.memory.lose(&self.asked.dir);
        }
    }
}

fn failed(text: &str) -> Event {
    Event::Failed {
        text: text.to_owned(),
    }
}

impl Asked {
    fn with<T>(&self, work: impl FnOnce(&mut Kept) -> T) -> Option<T> {
        self.memory.0.lock().monitors.get_mut(&self.dir).map(work)
    }

    /// `None`: it was killed meanwhile.
    async fn answer(&self, request: Request) -> Option<Event> {
        some_ms(8).await;
        self.memory.until_it_runs(&self.dir).await;
        match request {
            Request::Create => self.create().await,
            Request::Start => self.start().await,
            Request::Kill { signal, all } => {
                let heeds = signal == libc::SIGKILL || drawn(2) == 0;
                let alive = self.with(|kept| kept.is_alive())?;
                if heeds {
                    self.memory.exit(&self.dir, 128 + signal);
                }
                Some(if alive || all {
                    Event::Done
                } else {
                    failed("kill: it has exited")
                })
            }
            Request::ReopenLog => Some(Event::Done),
            Request::Delete => {
                self.hook("poststop").await?;
                match self.with(|kept| kept.phase)? {
                    Phase::Exited => {
                        self.memory.0.lock().monitors.remove(&self.dir);
                        Some(Event::Done)
                    }
                    _ => Some(failed("delete: it has not exited")),
                }
            }
            other => Some(failed(&format!("{other:?}: not in the model"))),
        }
    }

    async fn create(&self) -> Option<Event> {
        if self.memory.happens(Hazard::Fails) {
            return Some(failed("create: the seed has it so"));
        }
        self.with(|kept| kept.phase = Phase::Creating)?;
        self.hook("createRuntime").await?;
        let pid = {
            let mut inner = self.memory.0.lock();
            inner.next_pid += 1;
            1000 + inner.next_pid
        };
        let created = self.with(|kept| {
            kept.join().map(|()| {
                kept.phase = Phase::Created;
                kept.pid = pid;
            })
        })?;
        self.memory.stop_one(&self.dir);
        Some(match created {
            Ok(()) => Event::Created { pid, start_time: 1 },
            Err(error) => failed(&format!("join the cgroup: {error}")),
        })
    }

    async fn start(&self) -> Option<Event> {
        if self.memory.happens(Hazard::Fails) {
            return Some(failed("start: the seed has it so"));
        }
        self.hook("startContainer").await?;
        let started = self.with(|kept| {
            let created = kept.phase == Phase::Created;
            if created {
                kept.phase = Phase::Running;
            }
            created
        })?;
        if !started {
            return Some(failed("start: it is not created"));
        }
        if !self.is_pause() || drawn(8) == 0 {
            self.memory.live(&self.dir);
        }
        self.hook("poststart").await?;
        Some(Event::Done)
    }

    /// An OCI hook. It ends with its container. `None`: so does its monitor.
    async fn hook(&self, name: &str) -> Option<()> {
        let (mut exit, mut gone) = self.with(|kept| (kept.exit.subscribe(), kept.gone.clone()))?;
        if self.is_pause() || !self.memory.happens(Hazard::Hooks) {
            return Some(());
        }
        let seconds = [1, 10, 100, 100_000][drawn(4) as usize];
        let of = name_of(&self.dir);
        self.memory
            .log(format!("hook {name} takes {seconds} s: {of}"));
        tokio::select! {
            biased;
            _ = gone.changed() => None,
            _ = exit.changed() => Some(()),
            () = tokio::time::sleep(Duration::from_secs(seconds)) => Some(()),
        }
    }

    fn is_pause(&self) -> bool {
        self.dir
            .components()
            .any(|part| part.as_os_str() == "pause")
    }
}

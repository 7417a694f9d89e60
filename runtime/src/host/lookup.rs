//! Look-ups of paths named by others: mount sources, devices, profiles, log and configuration
//! files.
//!
//! Such a path may be on a file system that never answers (NFS without its server, FUSE without its
//! program). Only the process `cairn look` accesses that file system: the daemon can abandon it
//! even when the kernel cannot kill it. A path that crosses no mount and is in the kernel's cache
//! is looked up here, since that cannot block.
//!
//! ```text
//!  run ──► Session, on its own thread ── the pod's permit, question ──► cairn look
//!   │                                                       ◄── answer ──
//!   └─ deadline, stop, removal or dropped future: shut the socket, kill the process,
//!      keep the permit until it is reaped
//! ```

use std::{
    collections::HashMap,
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use serde::de::DeserializeOwned;
use tokio::{
    process::{Child, Command},
    time::Instant,
};

use super::{
    facts::{self, View},
    lookup_helper::{DEPTH, Question, exchange},
};
use crate::{
    blocking::on_a_thread,
    inherited,
    oci::{BindSource, CdiRegistry, HostDevice, HostView},
};

/// Limit of a pod's concurrent look-ups, abandoned ones included.
const PER_POD: usize = 8;
/// Limit of concurrent look-ups of all pods.
const ALL: usize = 256;
/// Idle processes kept for the next look-up, and for how long.
const IDLE: usize = 2;
const IDLE_TIME: Duration = Duration::from_secs(60);
/// Largest configuration directory that is checked here; larger ones are asked for.
const FEW: usize = 64;
/// Time for an abandoned process to end; afterwards its path counts as stuck.
const ENDING: Duration = Duration::from_secs(1);
/// Limit for a configuration directory to answer.
const CONFIGURED: Duration = Duration::from_secs(3);

/// A handle; clones share everything.
#[derive(Clone, Debug)]
pub struct Lookups(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The path of `cairn`.
    program: PathBuf,
    timeout: Duration,
    idle: Mutex<Vec<(Instant, Helper)>>,
    counts: Mutex<Counts>,
    /// Notified when `counts` changes or a session ends.
    changed: Condvar,
}

/// Running look-ups, including abandoned processes that have not ended.
#[derive(Debug, Default)]
struct Counts {
    /// By pod; look-ups of the configuration have the empty name.
    pods: HashMap<String, usize>,
    all: usize,
    /// Paths of abandoned processes; not asked for again until these end.
    stuck: HashMap<String, Stuck>,
}

impl Counts {
    fn has_room(&self, pod: &str) -> bool {
        let of_pod = self.pods.get(pod).copied().unwrap_or(0);
        of_pod < PER_POD && (pod.is_empty() || self.all < ALL)
    }
}

#[derive(Debug)]
struct Stuck {
    processes: usize,
    since: Instant,
}

/// The right to one process, for a pod or the configuration.
#[derive(Debug)]
struct Permit {
    lookups: Lookups,
    pod: String,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let shared = &self.lookups.0;
        let mut counts = shared.counts.lock();
        if let Some(of_pod) = counts.pods.get_mut(&self.pod) {
            *of_pod -= 1;
            if *of_pod == 0 {
                counts.pods.remove(&self.pod);
            }
        }
        if !self.pod.is_empty() {
            counts.all -= 1;
        }
        drop(counts);
        shared.changed.notify_all();
    }
}

/// Owns the process: dropping it kills the process, which is reaped later.
#[derive(Debug)]
struct Helper {
    process: Child,
    socket: Arc<UnixStream>,
}

/// The reason for a missing answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Unanswered {
    #[error("path {path:?} did not answer within {} s", after.as_secs_f32())]
    TimedOut { path: String, after: Duration },
    #[error("path {0:?} does not answer; an earlier look-up still waits for it")]
    Stuck(String),
    #[error("path {0:?} did not answer before the stop or removal")]
    Ended(String),
    #[error(
        "path {0:?} was not looked up: {PER_POD} look-ups of the pod, or {ALL} of the node, do not answer"
    )]
    Crowded(String),
    #[error("look up {path:?}: {cause}")]
    Helper { path: String, cause: String },
}

impl Lookups {
    /// `timeout` limits all client and plugin paths of one call together.
    pub fn new(program: PathBuf, timeout: Duration) -> Self {
        Self(Arc::new(Shared {
            program,
            timeout,
            idle: Mutex::default(),
            counts: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Runs `work`, which asks for paths, off the async threads. The end of `ending` also cancels
    /// it.
    ///
    /// # Errors
    /// The path that did not answer; the result of `work` is then dropped.
    pub async fn run<T: Send + 'static>(
        &self,
        pod: &str,
        ending: impl Future<Output = ()>,
        work: impl FnOnce(&Session) -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        self.within(self.0.timeout, pod, ending, work).await
    }

    /// Checks that files and directories of the configuration answer, with all their content.
    ///
    /// # Errors
    /// The first path that does not.
    pub async fn answer(&self, paths: Vec<PathBuf>) -> Result<(), Unanswered> {
        let timeout = self.0.timeout.min(CONFIGURED);
        let asked = self.within(timeout, "", std::future::pending(), move |session| {
            for path in paths.iter().filter(|path| !is_local(path, DEPTH)) {
                session.answers(path);
            }
        });
        asked.await
    }

    async fn within<T: Send + 'static>(
        &self,
        timeout: Duration,
        pod: &str,
        ending: impl Future<Output = ()>,
        work: impl FnOnce(&Session) -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        let begun = Instant::now();
        let given_up = async {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(begun + timeout) => true,
                () = ending => false,
            }
        };
        tokio::pin!(given_up);
        let session = Arc::new(Session {
            lookups: self.clone(),
            pod: pod.to_owned(),
            state: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let guard = Guard(Arc::clone(&session));
        let done = tokio::select! {
            biased;
            done = on_a_thread({
                let session = Arc::clone(&session);
                move || work(&session)
            }) => done.map_err(|cause| Unanswered::Helper {
                path: String::new(),
                cause: cause.to_string(),
            })?,
            timed_out = &mut given_up => {
                let path = session.state.lock().asking.clone();
                return Err(if timed_out {
                    Unanswered::TimedOut { path, after: timeout }
                } else {
                    Unanswered::Ended(path)
                });
            }
        };
        drop(guard);
        match session.state.lock().lost.take() {
            None => Ok(done),
            Some(lost) => Err(lost),
        }
    }

    fn helper(&self) -> io::Result<Helper> {
        while let Some((_, mut helper)) = self.0.idle.lock().pop() {
            if matches!(helper.process.try_wait(), Ok(None)) {
                return Ok(helper);
            }
        }
        let (ours, theirs) = UnixStream::pair()?;
        let process = Command::new(&self.0.program)
            .arg("look")
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        process.id().into_iter().for_each(inherited::reset);
        Ok(Helper {
            process,
            socket: Arc::new(ours),
        })
    }

    fn keep(&self, helper: Helper) {
        let now = Instant::now();
        let mut idle = self.0.idle.lock();
        if idle.len() >= IDLE {
            return;
        }
        idle.push((now, helper));
        drop(idle);
        let lookups = self.clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            tokio::time::sleep_until(now + IDLE_TIME).await;
            lookups.0.idle.lock().retain(|(since, _)| *since > now);
        });
    }

    /// Kills the process. Its path is stuck until the kernel lets it go, possibly never.
    fn abandon(&self, mut helper: Helper, path: String, permit: Option<Permit>) {
        let _ = helper.socket.shutdown(std::net::Shutdown::Both);
        let _ = helper.process.start_kill();
        let new = || Stuck {
            processes: 0,
            since: Instant::now(),
        };
        let mut counts = self.0.counts.lock();
        let stuck = counts.stuck.entry(path.clone());
        stuck.or_insert_with(new).processes += 1;
        drop(counts);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let lookups = self.clone();
        runtime.spawn(async move {
            let _ = helper.process.wait().await;
            let mut counts = lookups.0.counts.lock();
            if let Some(one) = counts.stuck.get_mut(&path) {
                one.processes -= 1;
                counts.stuck.retain(|_, one| one.processes > 0);
            }
            drop(counts);
            lookups.0.changed.notify_all();
            drop(permit);
        });
    }
}

/// Ends a session, even if its future is dropped: its work gets no more answers.
struct Guard(Arc<Session>);

impl Drop for Guard {
    fn drop(&mut self) {
        let Session {
            lookups,
            state,
            over,
            ..
        } = &*self.0;
        {
            // Under the lock of the waiting threads.
            let _counts = lookups.0.counts.lock();
            over.store(true, Ordering::Release);
        }
        lookups.0.changed.notify_all();
        let (helper, permit, waits, path) = {
            let mut state = state.lock();
            let (helper, permit) = (state.helper.take(), state.permit.take());
            (helper, permit, state.waits, state.asking.clone())
        };
        match helper {
            None => {}
            Some(helper) if waits => lookups.abandon(helper, path, permit),
            Some(helper) => lookups.keep(helper),
        }
    }
}

/// The look-ups of one call, one at a time.
pub struct Session {
    lookups: Lookups,
    pod: String,
    state: Mutex<State>,
    /// The caller no longer needs answers.
    over: AtomicBool,
}

#[derive(Default)]
struct State {
    helper: Option<Helper>,
    permit: Option<Permit>,
    /// The latest path.
    asking: String,
    /// Its answer is outstanding.
    waits: bool,
    lost: Option<Unanswered>,
}

enum Turn {
    /// With a new permit, if the session had none.
    Yours(Option<Permit>),
    Stuck,
    Crowded,
    Over,
}

/// The result of resolving a path without blocking.
enum Place {
    /// The opened object on the daemon's root file system; the path is not resolved again.
    Root(OwnedFd),
    Nowhere,
    /// Crosses a mount, or is not in the kernel's cache.
    Mounted,
}

impl Place {
    /// Never blocks: the kernel answers from its cache or fails.
    fn of(path: &Path) -> Self {
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::CACHED;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve) {
            Ok(found) => Self::Root(found),
            Err(rustix::io::Errno::NOENT) => Self::Nowhere,
            Err(_) => Self::Mounted,
        }
    }
}

/// Whether a path and its content, to `depth`, are on the root file system. Never blocks.
fn is_local(path: &Path, depth: u32) -> bool {
    let found = match Place::of(path) {
        Place::Root(found) => found,
        Place::Nowhere => return true,
        Place::Mounted => return false,
    };
    let is_dir = rustix::fs::fstat(&found)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
    if !is_dir || depth == 0 {
        return true;
    }
    let opened = std::fs::read_dir(format!("/proc/self/fd/{}", found.as_raw_fd()));
    opened.is_ok_and(|entries| {
        let mut entries = entries.take(FEW + 1).enumerate();
        entries.all(|(n, entry)| {
            n < FEW && entry.is_ok_and(|entry| is_local(&path.join(entry.file_name()), depth - 1))
        })
    })
}

impl Session {
    /// Reads a file of at most `most` bytes; `None` if it is longer.
    ///
    /// # Errors
    /// The file system's, or a missing answer.
    pub fn text(&self, path: &str, most: u64) -> io::Result<Option<String>> {
        let path = path.to_owned();
        self.ask(Question::Text { path, most })
    }

    /// Makes the directories of a log (`cairn_monitor::log_path`).
    ///
    /// # Errors
    /// As [`Self::text`].
    pub fn make_log_parents(&self, path: &str) -> io::Result<()> {
        match Path::new(path).parent().map(Place::of) {
            Some(Place::Root(_)) => Ok(()),
            _ => self.ask(Question::MakeLogParents(path.to_owned())),
        }
    }

    /// Waits for a file or directory of the configuration, with its content, to answer.
    fn answers(&self, path: &Path) {
        let path = path.to_string_lossy().into_owned();
        let _: io::Result<()> = self.ask(Question::Answers(path));
    }

    /// Waits until the path is not stuck and a process may be used.
    fn turn(&self, path: &str, has_permit: bool) -> Turn {
        let shared = &self.lookups.0;
        let begun = Instant::now();
        let mut counts = shared.counts.lock();
        loop {
            if self.is_over() {
                return Turn::Over;
            }
            // A process abandoned just now, because its caller left, usually ends soon.
            let until = match counts.stuck.get(path).map(|one| one.since + ENDING) {
                Some(until) if until <= Instant::now() => return Turn::Stuck,
                Some(until) => until,
                None if has_permit => return Turn::Yours(None),
                None if counts.has_room(&self.pod) => break,
                None if begun.elapsed() >= ENDING => return Turn::Crowded,
                None => begun + ENDING,
            };
            shared.changed.wait_until(&mut counts, until.into_std());
        }
        *counts.pods.entry(self.pod.clone()).or_default() += 1;
        if !self.pod.is_empty() {
            counts.all += 1;
        }
        Turn::Yours(Some(Permit {
            lookups: self.lookups.clone(),
            pod: self.pod.clone(),
        }))
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn ask<T: DeserializeOwned>(&self, question: Question) -> io::Result<T> {
        let path = question.path().to_owned();
        let has_permit = {
            let mut state = self.state.lock();
            if state.lost.is_some() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            state.asking.clone_from(&path);
            state.permit.is_some()
        };
        let turn = self.turn(&path, has_permit);
        let socket = {
            let mut state = self.state.lock();
            match turn {
                Turn::Over => return Err(io::ErrorKind::BrokenPipe.into()),
                Turn::Stuck => {
                    state.lost = Some(Unanswered::Stuck(path));
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Turn::Crowded => {
                    state.lost = Some(Unanswered::Crowded(path));
                    return Err(io::ErrorKind::ResourceBusy.into());
                }
                Turn::Yours(Some(permit)) => state.permit = Some(permit),
                Turn::Yours(None) => {}
            }
            if self.is_over() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if state.helper.is_none() {
                state.helper = Some(self.lookups.helper().inspect_err(|cause| {
                    let (path, cause) = (path.clone(), cause.to_string());
                    state.lost = Some(Unanswered::Helper { path, cause });
                })?);
            }
            state.waits = true;
            state
                .helper
                .as_ref()
                .map(|helper| Arc::clone(&helper.socket))
        };
        let socket = socket.ok_or(io::ErrorKind::BrokenPipe)?;
        let answer = exchange(&socket, &question);
        let mut state = self.state.lock();
        match answer {
            Ok(answer) => {
                state.waits = false;
                answer
            }
            Err(cause) => {
                let why = cause.to_string();
                state
                    .lost
                    .get_or_insert(Unanswered::Helper { path, cause: why });
                Err(cause)
            }
        }
    }
}

impl HostView for Session {
    fn bind_source(&self, host_path: &str) -> Option<BindSource> {
        match Place::of(Path::new(host_path)) {
            Place::Root(found) => facts::source(&found),
            Place::Nowhere => None,
            Place::Mounted => self.ask(Question::BindSource(host_path.to_owned())).ok()?,
        }
    }

    fn made_source(&self, host_path: &str) -> Option<BindSource> {
        match Place::of(Path::new(host_path)) {
            Place::Root(found) => facts::source(&found),
            Place::Nowhere | Place::Mounted => {
                self.ask(Question::MadeSource(host_path.to_owned())).ok()?
            }
        }
    }

    fn devices(&self, host_path: &str) -> Vec<HostDevice> {
        self.ask(Question::Devices(host_path.to_owned()))
            .unwrap_or_default()
    }

    fn namespace(&self, path: &str) -> Option<String> {
        self.ask(Question::Namespace(path.to_owned())).ok()?
    }

    fn online_cpus(&self) -> String {
        View.online_cpus()
    }

    fn memory_nodes(&self) -> String {
        View.memory_nodes()
    }

    fn max_open_files(&self) -> u64 {
        View.max_open_files()
    }

    fn has_apparmor_profile(&self, name: &str) -> bool {
        View.has_apparmor_profile(name)
    }

    fn knows_selinux_label(&self, label: &str) -> bool {
        View.knows_selinux_label(label)
    }

    fn cdi(&self) -> CdiRegistry {
        for directory in crate::oci::cdi::DIRECTORIES {
            self.answers(Path::new(directory));
        }
        match self.state.lock().lost {
            None => View.cdi(),
            Some(_) => CdiRegistry::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_over_a_mount_is_never_looked_up_here() {
        let place = |path: &str| Place::of(Path::new(path));
        // The kernel caches it after an access, and a mount or rename at the same moment delays that.
        let found = || {
            assert!(std::fs::metadata("/etc").is_ok());
            matches!(place("/etc"), Place::Root(_))
        };
        assert!((0..1000).any(|_| found()));
        assert!(matches!(place("/proc/self/status"), Place::Mounted));
        assert!(matches!(place("/sys/fs/cgroup/nothing"), Place::Mounted));
    }

    #[tokio::test]
    async fn a_look_up_that_nobody_answers_is_abandoned_by_its_path_and_not_repeated() {
        // A program that reads no question.
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("mute");
        std::fs::write(&program, "#!/bin/sh\nexec sleep 1000\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).unwrap();
        let lookups = Lookups::new(program, Duration::from_millis(50));
        let ask = async || {
            let removal = std::future::pending();
            let asked = lookups.run("pod", removal, |session| session.devices("/x").len());
            asked.await.unwrap_err()
        };
        let late = ask().await;
        assert!(
            matches!(&late, Unanswered::TimedOut { path, .. } if path == "/x"),
            "{late}"
        );
        let reaped = async {
            while !lookups.0.counts.lock().stuck.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let reaped = tokio::time::timeout(Duration::from_secs(10), reaped).await;
        reaped.expect("the process ends");
        // A removal cancels it too.
        let (end, removal) = tokio::sync::oneshot::channel::<()>();
        let lookups = Lookups::new(dir.path().join("mute"), Duration::from_secs(60));
        let removal = async {
            let _ = removal.await;
        };
        drop(end);
        let removed = lookups.run("pod", removal, |session| session.devices("/x").len());
        assert!(matches!(removed.await.unwrap_err(), Unanswered::Ended(_)));
    }

    #[tokio::test]
    async fn a_look_up_beyond_the_bound_of_its_pod_fails_and_those_of_others_do_not() {
        let lookups = Lookups::new("/nowhere".into(), Duration::from_secs(60));
        lookups
            .0
            .counts
            .lock()
            .pods
            .insert("pod".to_owned(), PER_POD);
        let ask = async |pod: &str| {
            let ending = std::future::pending();
            let asked = lookups.run(pod, ending, |session| session.devices("/x").len());
            asked.await.unwrap_err()
        };
        assert!(matches!(ask("pod").await, Unanswered::Crowded(path) if path == "/x"));
        // It fails only at its missing program.
        assert!(matches!(ask("other").await, Unanswered::Helper { .. }));
        assert_eq!(lookups.0.counts.lock().all, 0, "its permit is back");
    }

    #[tokio::test]
    async fn a_path_that_an_abandoned_look_up_waits_for_fails_at_once() {
        let lookups = Lookups::new("/nowhere".into(), Duration::from_secs(60));
        let long = Stuck {
            processes: 1,
            since: Instant::now() - ENDING,
        };
        lookups.0.counts.lock().stuck.insert("/x".to_owned(), long);
        let removal = std::future::pending();
        let asked = lookups.run("pod", removal, |session| session.devices("/x").len());
        assert!(matches!(asked.await.unwrap_err(), Unanswered::Stuck(path) if path == "/x"));
    }
}

//! Look-ups of paths that others name: sources of mounts, devices, profiles, directories of logs and of the configuration.
//!
//! Such a path may be on a file system that never answers (NFS without its server, FUSE without its program). No thread of
//! the daemon asks that file system: the process `cairn look` does, which can be abandoned where the kernel does not even let it be
//! killed. A path that leads over no mount and is in the kernel's cache is looked up here, since nothing can block there.
//!
//! ```text
//!  run ── permit of the pod ──► Session, on a blocking thread ── question ──► cairn look
//!   │                                                          ◄── answer ──
//!   └─ deadline, removal or dropped future: the socket is shut, the process killed, and the permit kept until it is reaped
//! ```

use std::{
    collections::HashMap,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cairn_monitor::log_path;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use serde::de::DeserializeOwned;
use tokio::{
    process::{Child, Command},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::{
    facts::View,
    lookup_helper::{Question, exchange},
};
use crate::{
    blocking::blocking,
    inherited,
    oci::{BindSource, CdiRegistry, HostDevice, HostView},
};

/// Look-ups of one pod at a time, abandoned ones included.
const PER_POD: usize = 8;
/// Look-ups of all pods at a time.
const ALL: usize = 256;
/// Processes that are kept for the next look-up, and for how long.
const IDLE: usize = 2;
const IDLE_TIME: Duration = Duration::from_secs(60);
/// An abandoned process that does not end by then waits for a path that does not answer.
const ENDING: Duration = Duration::from_secs(1);
/// Longest wait for a directory of the configuration.
const CONFIGURED: Duration = Duration::from_secs(5);

/// A handle; clones share everything.
#[derive(Clone, Debug)]
pub struct Lookups(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// `cairn` itself.
    program: PathBuf,
    timeout: Duration,
    idle: Mutex<Vec<(Instant, Helper)>>,
    stuck: Mutex<HashMap<String, Stuck>>,
    /// Something of `stuck` has changed, or a session is over.
    changed: Condvar,
    all: Arc<Semaphore>,
    pods: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// A path that abandoned processes still wait for: nobody asks for it again until then.
#[derive(Debug)]
struct Stuck {
    processes: usize,
    since: Instant,
}

/// Owns the process: it is killed when this is dropped, and reaped later.
#[derive(Debug)]
struct Helper {
    process: Child,
    socket: Arc<UnixStream>,
}

/// Why a look-up has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Unanswered {
    #[error("path {path:?} did not answer within {} s", after.as_secs_f32())]
    TimedOut { path: String, after: Duration },
    #[error("path {0:?} does not answer; an earlier look-up still waits for it")]
    Stuck(String),
    #[error("path {0:?} did not answer before the removal")]
    Removed(String),
    #[error("{PER_POD} look-ups of host paths do not answer")]
    Crowded,
    #[error("look up {path:?}: {cause}")]
    Helper { path: String, cause: String },
}

impl Lookups {
    /// `timeout`: how long paths that a client or a plugin names may take, all of one call together.
    pub fn new(program: PathBuf, timeout: Duration) -> Self {
        Self(Arc::new(Shared {
            program,
            timeout,
            idle: Mutex::default(),
            stuck: Mutex::default(),
            changed: Condvar::new(),
            all: Arc::new(Semaphore::new(ALL)),
            pods: Mutex::default(),
        }))
    }

    /// Does `work`, which asks for paths, off the async threads. It is given up when `removal` ends, too.
    ///
    /// # Errors
    /// The path that did not answer. What `work` made of the missing answer is dropped.
    pub async fn run<T: Send + 'static>(
        &self,
        pod: &str,
        removal: impl Future<Output = ()>,
        work: impl FnOnce(&Session) -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        self.within(self.0.timeout, pod, removal, work).await
    }

    /// Whether files and directories of the configuration answer, and all that is in them.
    ///
    /// # Errors
    /// The first that does not.
    pub async fn answer(&self, paths: Vec<PathBuf>) -> Result<(), Unanswered> {
        if paths.iter().all(|path| Place::of(path) != Place::Mounted) {
            return Ok(());
        }
        let timeout = self.0.timeout.min(CONFIGURED);
        let asked = self.within(timeout, "", std::future::pending(), move |session| {
            for path in paths {
                session.answers(&path);
            }
        });
        asked.await
    }

    async fn within<T: Send + 'static>(
        &self,
        timeout: Duration,
        pod: &str,
        removal: impl Future<Output = ()>,
        work: impl FnOnce(&Session) -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        let begun = Instant::now();
        let given_up = async {
            tokio::select! {
                () = tokio::time::sleep_until(begun + timeout) => true,
                () = removal => false,
            }
        };
        tokio::pin!(given_up);
        let permit = tokio::select! {
            biased;
            permit = self.permit(pod) => permit,
            _ = &mut given_up => return Err(Unanswered::Crowded),
        };
        let session = Arc::new(Session {
            lookups: self.clone(),
            state: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let guard = Guard(Arc::clone(&session), Some(permit));
        let done = tokio::select! {
            done = blocking({
                let session = Arc::clone(&session);
                move || work(&session)
            }) => done,
            timed_out = &mut given_up => {
                let path = session.state.lock().asking.clone();
                return Err(match timed_out {
                    true => Unanswered::TimedOut { path, after: timeout },
                    false => Unanswered::Removed(path),
                });
            }
        };
        drop(guard);
        match session.state.lock().lost.take() {
            None => Ok(done),
            Some(lost) => Err(lost),
        }
    }

    /// Of the pod, and of all.
    async fn permit(&self, pod: &str) -> [Option<OwnedSemaphorePermit>; 2] {
        let of_pod = {
            let mut pods = self.0.pods.lock();
            // Those that nobody waits for or holds a permit of.
            pods.retain(|_, all| Arc::strong_count(all) > 1);
            let new = || Arc::new(Semaphore::new(PER_POD));
            Arc::clone(pods.entry(pod.to_owned()).or_insert_with(new))
        };
        // Neither is ever closed.
        let of_pod = of_pod.acquire_owned().await.ok();
        [of_pod, Arc::clone(&self.0.all).acquire_owned().await.ok()]
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
        process.id().into_iter().for_each(inherited::give_back);
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
        tokio::spawn(async move {
            tokio::time::sleep_until(now + IDLE_TIME).await;
            lookups.0.idle.lock().retain(|(since, _)| *since > now);
        });
    }

    /// The process is killed. Until the kernel lets it go, which may be never, its path is not asked for again.
    fn abandon(&self, mut helper: Helper, path: String, permit: Permit) {
        let _ = helper.socket.shutdown(std::net::Shutdown::Both);
        let _ = helper.process.start_kill();
        let new = || Stuck {
            processes: 0,
            since: Instant::now(),
        };
        let mut stuck = self.0.stuck.lock();
        stuck.entry(path.clone()).or_insert_with(new).processes += 1;
        drop(stuck);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let lookups = self.clone();
        runtime.spawn(async move {
            let _ = helper.process.wait().await;
            let mut stuck = lookups.0.stuck.lock();
            if let Some(one) = stuck.get_mut(&path) {
                one.processes -= 1;
                stuck.retain(|_, one| one.processes > 0);
            }
            drop((stuck, permit));
            lookups.0.changed.notify_all();
        });
    }
}

type Permit = [Option<OwnedSemaphorePermit>; 2];

/// Ends a session, also one whose future is dropped: the work that goes on gets no more answers.
struct Guard(Arc<Session>, Option<Permit>);

impl Drop for Guard {
    fn drop(&mut self) {
        let Session {
            lookups,
            state,
            over,
        } = &*self.0;
        over.store(true, Ordering::Release);
        lookups.0.changed.notify_all();
        let (helper, waits, path) = {
            let mut state = state.lock();
            (state.helper.take(), state.waits, state.asking.clone())
        };
        let Some(helper) = helper else {
            return;
        };
        match waits {
            false => lookups.keep(helper),
            true => {
                let permit = self.1.take().unwrap_or_default();
                lookups.abandon(helper, path, permit);
            }
        }
    }
}

/// The look-ups of one call, one after the other.
pub struct Session {
    lookups: Lookups,
    state: Mutex<State>,
    /// Nobody wants more answers.
    over: AtomicBool,
}

#[derive(Default)]
struct State {
    helper: Option<Helper>,
    /// The path that was asked for last.
    asking: String,
    /// No answer has come yet.
    waits: bool,
    lost: Option<Unanswered>,
}

/// Where a path leads, as far as this can be seen without waiting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// On the file system that the daemon's root is on.
    Root,
    Nowhere,
    /// Over a mount, or not yet known to the kernel.
    Mounted,
}

impl Place {
    /// Never blocks: the kernel answers from its cache, or not at all.
    fn of(path: &Path) -> Self {
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::CACHED;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve) {
            Ok(_) => Self::Root,
            Err(rustix::io::Errno::NOENT) => Self::Nowhere,
            Err(_) => Self::Mounted,
        }
    }
}

impl Session {
    /// A file of at most `most` bytes; `None` for a longer one.
    ///
    /// # Errors
    /// Of the file system, or that there is no answer.
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
            Some(Place::Root | Place::Nowhere) => log_path::make_parents(path),
            _ => self.ask(Question::MakeLogParents(path.to_owned())),
        }
    }

    /// Waits until a file or directory of the configuration, and what is in it, has answered.
    fn answers(&self, path: &Path) {
        let path = path.to_string_lossy().into_owned();
        let _: io::Result<()> = self.ask(Question::Answers(path));
    }

    /// Whether an abandoned process waits for the path. One that was abandoned just now, since its caller had left, is most
    /// likely about to end.
    fn is_stuck(&self, path: &str) -> bool {
        let shared = &self.lookups.0;
        let mut stuck = shared.stuck.lock();
        while let Some(one) = stuck.get(path) {
            let fresh = ENDING.checked_sub(one.since.elapsed());
            let Some(fresh) = fresh.filter(|_| !self.is_over()) else {
                return true;
            };
            shared.changed.wait_for(&mut stuck, fresh);
        }
        false
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn ask<T: DeserializeOwned>(&self, question: Question) -> io::Result<T> {
        let path = question.path().to_owned();
        self.state.lock().asking.clone_from(&path);
        let is_stuck = self.is_stuck(&path);
        let socket = {
            let mut state = self.state.lock();
            if state.lost.is_some() || self.is_over() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if is_stuck {
                state.lost = Some(Unanswered::Stuck(path));
                return Err(io::ErrorKind::TimedOut.into());
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
            Place::Mounted => self.ask(Question::BindSource(host_path.to_owned())).ok()?,
            Place::Root | Place::Nowhere => View.bind_source(host_path),
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
        // Known to the kernel once somebody has asked.
        assert!(std::fs::metadata("/etc").is_ok());
        assert!(place("/etc") == Place::Root);
        assert!(place("/proc/self/status") == Place::Mounted);
        assert!(place("/sys/fs/cgroup/nothing") == Place::Mounted);
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
        let pid_gone = || lookups.0.stuck.lock().is_empty();
        while !pid_gone() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The removal ends it, too.
        let (end, removal) = tokio::sync::oneshot::channel::<()>();
        let lookups = Lookups::new(dir.path().join("mute"), Duration::from_secs(60));
        let removal = async {
            let _ = removal.await;
        };
        drop(end);
        let removed = lookups.run("pod", removal, |session| session.devices("/x").len());
        assert!(matches!(removed.await.unwrap_err(), Unanswered::Removed(_)));
    }

    #[tokio::test]
    async fn a_path_that_an_abandoned_look_up_waits_for_fails_at_once() {
        let lookups = Lookups::new("/nowhere".into(), Duration::from_secs(60));
        let long = Stuck {
            processes: 1,
            since: Instant::now() - 2 * ENDING,
        };
        lookups.0.stuck.lock().insert("/x".to_owned(), long);
        let removal = std::future::pending();
        let asked = lookups.run("pod", removal, |session| session.devices("/x").len());
        assert!(matches!(asked.await.unwrap_err(), Unanswered::Stuck(path) if path == "/x"));
    }
}

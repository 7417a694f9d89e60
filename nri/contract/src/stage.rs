//! The environment of one point: names of its own, plugins, pods, and hooks that block during an
//! inspection.

use std::{
    future::Future,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use nri::proto::{Event, FailurePolicy};
use parking_lot::Mutex;
use testkit::{client::Client, cri};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
};
use tonic::Status;

use crate::{
    cri::{Common, Container, Cri, Pod, SLEEPER},
    restart::Restart,
};
use testkit::{
    journal::{Journal, Seen},
    plugin::{Behavior, Plugin, Wanted},
    verdict::{Answer, Checked, Miss, miss, reported},
};

/// The time that a point waits for an expected event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// The values that all points of a run share.
pub(crate) struct Run {
    /// A prefix of the names of pods and plugins, and a value of labels.
    pub id: String,
    pub client: Mutex<Client>,
    pub common: Arc<Common>,
    pub nri: PathBuf,
    pub restart: Option<Restart>,
    /// The directory from which the runtime launches plugins.
    pub plugin_dir: Option<PathBuf>,
    /// The runtime accepts addresses of pods in answers to RunPodSandbox.
    pub pod_ips: bool,
    /// The runtime's timeout for one event, from Configure.
    pub request_timeout: Duration,
    /// The version of the runtime's NRI, such as `v0.12.5`, if known.
    pub nri_version: String,
    /// Scripts and files for containers.
    pub scratch: PathBuf,
}

impl Run {
    /// Returns the CRI client for one point; an empty `point` means the complete run.
    pub(crate) fn cri(&self, point: &str) -> Cri {
        Cri {
            client: self.client.lock().clone(),
            common: self.common.clone(),
            run: self.id.clone(),
            point: point.to_owned(),
        }
    }
    /// Sets the new client after a restart of the runtime.
    pub(crate) fn connected(&self, client: Client) {
        *self.client.lock() = client;
    }
}

/// One attempt at one point.
pub(crate) struct Stage {
    pub run: Arc<Run>,
    pub journal: Arc<Journal>,
    number: String,
    /// The number of unfinished calls of this stage.
    calls: watch::Sender<usize>,
    /// A hook was blocked for longer than the runtime waits, so the observations are invalid.
    hurried: Arc<Mutex<bool>>,
}

impl Stage {
    pub(crate) fn new(run: &Arc<Run>, number: String) -> Arc<Self> {
        let prefix = format!("{}-{number}-", run.id);
        Arc::new(Self {
            run: run.clone(),
            journal: Arc::new(Journal::new(prefix, PATIENCE)),
            number,
            calls: watch::channel(0).0,
            hurried: Arc::default(),
        })
    }

    pub(crate) fn cri(&self) -> Cri {
        self.run.cri(&self.number)
    }
    /// Whether a hook was blocked for too long.
    pub(crate) fn was_hurried(&self) -> bool {
        *self.hurried.lock()
    }
    /// Marks the attempt as too slow. On a busy host, a first attempt may miss a deadline.
    pub(crate) fn hurry(&self) {
        *self.hurried.lock() = true;
    }
    /// Makes a directory for the point on the host.
    pub(crate) fn directory(&self) -> Checked<PathBuf> {
        use std::os::unix::fs::PermissionsExt;
        let dir = self.run.scratch.join(&self.number);
        let made = std::fs::create_dir_all(&dir)
            .and_then(|()| std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)));
        testkit::verdict::done("a scratch directory can be made", made).map(|()| dir)
    }

    /// A plugin before it connects, subscribed to all events except the validation.
    pub(crate) fn wanted(&self, index: &str, name: &str) -> Wanted {
        let name = format!("{}-{name}", self.run.id);
        Wanted::new(&self.run.nri, index, &name, self.journal.clone())
    }
    /// Connects a plugin.
    pub(crate) async fn plugin(&self, index: &str, name: &str) -> Checked<Plugin> {
        self.wanted(index, name).join().await
    }
    /// Connects a plugin that sends a failure policy.
    pub(crate) async fn plugin_with(
        &self,
        index: &str,
        name: &str,
        policy: Option<FailurePolicy>,
    ) -> Checked<Plugin> {
        let wanted = self.wanted(index, name);
        match policy {
            Some(policy) => wanted.policy(policy.fail_request, policy.keep_connected),
            None => wanted,
        }
        .join()
        .await
    }

    /// Returns the full name of a pod of the point.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}{name}", self.journal.prefix)
    }
    pub(crate) fn pod_config(&self, name: &str) -> cri::PodSandboxConfig {
        self.cri().pod_config(&self.name(name))
    }
    /// Runs a pod; an error fails the point.
    pub(crate) async fn pod(&self, name: &str) -> Checked<Pod> {
        let ran = self.cri().run(self.pod_config(name)).await;
        ran.succeeds("RunPodSandbox")
    }
    /// Runs a pod with one container `c` that runs until it is stopped.
    pub(crate) async fn sleeper(&self, name: &str) -> Checked<(Pod, Container)> {
        let pod = self.pod(name).await?;
        let container = pod.start("c", &SLEEPER).await;
        Ok((pod, container.succeeds("CreateContainer, StartContainer")?))
    }

    /// Starts a call. The stage waits for it at its end.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        struct Counted(watch::Sender<usize>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.send_modify(|n| *n -= 1);
            }
        }
        self.calls.send_modify(|n| *n += 1);
        let counted = Counted(self.calls.clone());
        tokio::spawn(async move {
            let _counted = counted;
            call.await
        })
    }
    /// Waits until every call has returned.
    pub(crate) async fn settled(&self) {
        let mut calls = self.calls.subscribe();
        let wait = calls.wait_for(|n| *n == 0);
        let _ = tokio::time::timeout(PATIENCE, wait).await;
    }

    /// Makes a call whose hook for `of` blocks in a plugin until [`Hook::returns`].
    pub(crate) async fn hold<T: Send + 'static>(
        &self,
        plugin: &Plugin,
        event: Event,
        of: &str,
        call: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Checked<Hook<T>> {
        let gate = Gate {
            semaphore: Arc::new(Semaphore::new(0)),
            begun: Mutex::new(None),
            limit: self.run.request_timeout,
            hurried: self.hurried.clone(),
        };
        plugin.does(event, Behavior::Wait(gate.semaphore.clone()));
        let call = self.call(call);
        let reached = tokio::select! {
            seen = plugin.sees(event, of) => Some(seen),
            () = finished(&call) => None,
        };
        let seen = match reached {
            Some(seen) => seen?,
            None if plugin.count(event, of) > 0 => plugin.sees(event, of).await?,
            None => {
                let expected = format!("the call waits for {event:?} of {of} in {}", plugin.id());
                return match call.await {
                    Ok(Err(status)) => miss(expected, reported(&status)),
                    _ => miss(expected, "it returned without the event"),
                };
            }
        };
        *gate.begun.lock() = Some(seen.at);
        Ok(Hook { seen, gate, call })
    }

    /// Runs a pod that a plugin blocks in C-01.
    pub(crate) async fn hold_run(
        &self,
        plugin: &Plugin,
        config: cri::PodSandboxConfig,
    ) -> Checked<Hook<Pod>> {
        let cri = self.cri();
        let name = config.metadata.clone().unwrap_or_default().name;
        let short = name.trim_start_matches(&self.journal.prefix).to_owned();
        let call = async move { cri.run(config).await };
        self.hold(plugin, Event::RunPodSandbox, &short, call).await
    }
}

async fn finished<T>(call: &JoinHandle<T>) {
    while !call.is_finished() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The plugin may get the event at the same moment.
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// Opens when it is dropped, and records whether the hook was blocked for too long.
struct Gate {
    semaphore: Arc<Semaphore>,
    begun: Mutex<Option<Instant>>,
    limit: Duration,
    hurried: Arc<Mutex<bool>>,
}

impl Drop for Gate {
    fn drop(&mut self) {
        let begun = self.begun.lock();
        if begun.is_some_and(|at| at.elapsed() >= self.limit) {
            *self.hurried.lock() = true;
        }
        self.semaphore.add_permits(1_000);
    }
}

/// A blocked hook. Dropping it releases the hook.
pub(crate) struct Hook<T> {
    /// The event at the blocking plugin.
    pub seen: Seen,
    gate: Gate,
    call: JoinHandle<Result<T, Status>>,
}

impl<T> Hook<T> {
    /// Releases the hook, and returns the result of the call.
    pub(crate) async fn returns(self) -> Checked<Result<T, Status>> {
        let over = self.call.is_finished();
        let Self { gate, call, seen } = self;
        let event = seen.event;
        drop(gate);
        if over {
            return miss(
                format!("the call waits for {event:?}"),
                "it returned while the plugin was in its handler",
            );
        }
        match tokio::time::timeout(PATIENCE, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => miss("the call is made", error),
            Err(_) => miss(
                format!("the call returns after {event:?}"),
                format!("not within {PATIENCE:?}"),
            ),
        }
    }
    /// Releases the hook; an error of the call fails the point.
    pub(crate) async fn passes(self, call: &str) -> Checked<T> {
        self.returns().await?.succeeds(call)
    }
}

/// Waits until a condition holds; `None` continues waiting.
pub(crate) async fn eventually<T, F, Fut>(what: &str, mut asked: F) -> Checked<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let begun = Instant::now();
    loop {
        match asked().await {
            Ok(value) => return Ok(value),
            Err(seen) if begun.elapsed() >= PATIENCE => {
                return miss(what, format!("{seen} (for {PATIENCE:?})"));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Checks that an error text is one line that contains all these words.
pub(crate) fn one_line_with(status: &Status, words: &[&str]) -> Checked {
    let text = status.message();
    let lacking: Vec<_> = words.iter().filter(|word| !text.contains(**word)).collect();
    if lacking.is_empty() && !text.trim().contains('\n') {
        return Ok(());
    }
    let expected = format!("the error is one line with {}", words.join(", "));
    Err(Miss::Fail {
        expected,
        seen: reported(status),
    })
}

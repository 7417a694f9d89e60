//! The runtime side as a runtime uses it: built, called once per event, stopped.

use std::{collections::BTreeMap, ops::Deref, path::PathBuf, sync::Arc, time::Duration};

use proto_nri::*;
use tokio::time::Instant;

use crate::{
    dispatch::dispatch,
    join,
    launch::StartError,
    merge::{CreateMerge, RunMerge, StopMerge, UpdateMerge},
    observe::{Kind, Observer, PluginInfo},
    operation::{self, Created, Ran, Refused, Stopped, Told, Updated},
    owners::PluginId,
    plugin::Session,
    plugin_side::{builtin, handlers::Handlers},
    settings::{PluginSettings, Settings, Timeouts},
    shared::Shared,
    source::Source,
    validate::DefaultValidator,
    validators, violate,
    wire::{event::HookRequest, mux::Watches, rpc::Metadata, transport},
};

/// How long shutdown waits for plugins to end.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);

/// The NRI turn: one holder at a time, first come first served. Events that carry updates need it,
/// because updates cross containers; hold it until the updates are applied, and await nothing else
/// meanwhile (no network, image, process or grace period).
#[derive(Debug)]
pub struct Turn {
    _guard: tokio::sync::OwnedMutexGuard<()>,
}

/// Keeps plugins from joining while it, or a clone of it, lives (NRI-319). For runtimes that cannot
/// keep the rule about [`Source::snapshot`]; others do without. Hand the one you have down instead of
/// taking another.
#[derive(Debug, Clone)]
pub struct BlockSync {
    _guard: Arc<tokio::sync::OwnedRwLockReadGuard<()>>,
}

/// Collects what [`Adaptation`] needs.
#[derive(Default)]
pub struct Builder {
    runtime_name: String,
    runtime_version: String,
    settings: Settings,
    source: Option<Arc<dyn Source>>,
    observer: Option<Arc<dyn Observer>>,
    in_process: Vec<(PluginId, Handlers)>,
    metadata: Option<Metadata>,
    watches: Option<Watches>,
}

impl Builder {
    /// All settings at once; the methods below change single ones.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Socket for plugins to connect to.
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.socket = Some(path.into());
        self
    }

    /// No socket: launched and in-process plugins only (NRI-210).
    pub fn no_external_plugins(mut self) -> Self {
        self.settings.socket = None;
        self
    }

    pub fn plugin_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.settings.plugin_dir = Some(dir.into());
        self
    }

    pub fn plugin_config_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.settings.plugin_config_dir = Some(dir.into());
        self
    }

    pub fn registration_timeout(mut self, limit: Duration) -> Self {
        self.settings.timeouts.registration = limit;
        self
    }

    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.settings.timeouts.request = limit;
        self
    }

    /// For one setup event at all plugins together; none by default, so that it may last the request
    /// timeout for each.
    pub fn operation_timeout(mut self, limit: Duration) -> Self {
        self.settings.timeouts.operation = Some(limit);
        self
    }

    pub fn sync_timeout(mut self, limit: Duration) -> Self {
        self.settings.timeouts.sync = limit;
        self
    }

    /// Settings of single plugins, by id.
    pub fn plugins(mut self, plugins: BTreeMap<PluginId, PluginSettings>) -> Self {
        self.settings.plugins = plugins;
        self
    }

    /// For all parts of Synchronize together; three times as long as for one by default.
    pub fn sync_total_timeout(mut self, limit: Duration) -> Self {
        self.settings.timeouts.sync_total = Some(limit);
        self
    }

    /// Whether the newer of two plugins with one id is called alone ([`Settings::replace_same_name`]).
    pub fn replace_same_name(mut self, newer_alone: bool) -> Self {
        self.settings.replace_same_name = newer_alone;
        self
    }

    /// Experimental: whether answers to RunPodSandbox may give the pod addresses ([`Settings::pod_ips`]).
    pub fn pod_ips(mut self, taken: bool) -> Self {
        self.settings.pod_ips = taken;
        self
    }

    /// The runtime. Mandatory (NRI-213).
    pub fn source(mut self, source: Arc<dyn Source>) -> Self {
        self.source = Some(source);
        self
    }

    /// What each call to a plugin carries beside its request, such as the context of a trace. Called with the
    /// method's name by the task that calls; keys in lower case.
    pub fn call_metadata(
        mut self,
        metadata: impl Fn(&str) -> Vec<(String, String)> + Send + Sync + 'static,
    ) -> Self {
        self.metadata = Some(Arc::new(metadata));
        self
    }

    /// Records what is said on every connection of a plugin.
    #[cfg(feature = "record")]
    pub fn record(mut self, recorder: crate::record::Recorder) -> Self {
        self.watches = Some(Arc::new(move || Box::new(recorder.connection())));
        self
    }

    /// Observer of every outcome.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// A plugin of this process: a [`Plugin`](crate::Plugin), or a table of handlers. Several are started in
    /// the order of these calls.
    pub fn in_process(mut self, id: PluginId, plugin: impl Into<Handlers>) -> Self {
        self.in_process.push((id, plugin.into()));
        self
    }

    /// The default validator as a plugin of this process, in front of all others (NRI-206). Does
    /// nothing unless it is enabled.
    pub fn default_validator(mut self, validator: DefaultValidator) -> Self {
        if validator.enable {
            self.in_process
                .insert(0, builtin::default_validator(validator));
        }
        self
    }

    /// Starts: launches, configures and synchronises the pre-installed plugins, then listens.
    ///
    /// # Errors
    ///
    /// Someone else answers at the socket, something that is no socket is in its place, the plugin
    /// directory cannot be read, or an in-process plugin fails. A launched plugin that fails is
    /// reported and left out.
    pub async fn start(self) -> Result<Adaptation, StartError> {
        let source = self.source.ok_or(StartError::NoSource)?;
        if self.runtime_name.is_empty() || self.runtime_version.is_empty() {
            return Err(StartError::NoName);
        }
        let ids = self.in_process.iter().map(|(id, _)| id.clone());
        let shared = Arc::new(Shared::new(
            (self.runtime_name, self.runtime_version),
            self.settings,
            source,
            (self.observer, self.metadata, self.watches),
            ids.collect(),
        ));
        // Lets go of everything should a later step fail.
        let handle = Arc::new(Handle(shared.clone()));
        if let Some(path) = &shared.settings.socket {
            transport::ensure_free(path).await?;
        }
        let in_process = shared.clone().start_in_process(self.in_process).await?;
        let launched = shared.clone().launch_all().await?;
        shared.clone().join_preinstalled(in_process, launched).await;
        if let Some(path) = &shared.settings.socket {
            let listener = transport::listen(path, shared.settings.socket_mode).await?;
            tokio::spawn(shared.clone().accept(listener));
        }
        Ok(Adaptation { shared: handle })
    }
}

/// The runtime side of NRI. Clones are handles to the same thing; when the last is dropped, plugins
/// are let go as by [`Adaptation::shutdown`].
#[derive(Clone)]
pub struct Adaptation {
    pub(crate) shared: Arc<Handle>,
}

macro_rules! pod_events {
    ($($(#[$doc:meta])* $name:ident($request:ident);)*) => {
        $($(#[$doc])*
        pub async fn $name(&self, pod: PodSandbox) -> Told {
            never_refused(self.told($request { pod: Some(pod) }).await)
        })*
    };
}

macro_rules! container_events {
    ($($(#[$doc:meta])* $name:ident($request:ident) $kind:ident;)*) => {
        $(container_events!(@one $kind $(#[$doc])* $name $request);)*
    };
    (@one setup $(#[$doc:meta])* $name:ident $request:ident) => {
        $(#[$doc])*
        pub async fn $name(&self, pod: PodSandbox, container: Container) -> Result<Told, Refused> {
            let (pod, container) = (Some(pod), Some(container));
            self.told($request { pod, container }).await
        }
    };
    (@one tell $(#[$doc:meta])* $name:ident $request:ident) => {
        $(#[$doc])*
        pub async fn $name(&self, pod: PodSandbox, container: Container) -> Told {
            let (pod, container) = (Some(pod), Some(container));
            never_refused(self.told($request { pod, container }).await)
        }
    };
}

/// `policy.rs` lets no outcome abort a teardown or a notification; the type cannot say so.
fn never_refused(told: Result<Told, Refused>) -> Told {
    told.unwrap_or_else(|refused| Told {
        deliveries: refused.deliveries,
        failed: None,
    })
}

impl Adaptation {
    /// Begins with the names that plugins are told.
    pub fn builder(name: impl Into<String>, version: impl Into<String>) -> Builder {
        Builder {
            runtime_name: name.into(),
            runtime_version: version.into(),
            ..Builder::default()
        }
    }

    /// Waits for the NRI turn.
    pub async fn turn(&self) -> Turn {
        let turn = match violate::is("no-turn") {
            true => Arc::default(),
            false => self.shared.turn.clone(),
        };
        Turn {
            _guard: turn.lock_owned().await,
        }
    }

    /// Runs `change` under the mutex of the cut: a plugin that joins sees what it changes in
    /// [`Source::snapshot`] wholly or not at all. Keep it short; do not call the [`Adaptation`] in it.
    pub fn cut<T>(&self, change: impl FnOnce() -> T) -> T {
        self.shared.roster.cut(change)
    }

    /// Keeps plugins from joining until the result is dropped. See [`BlockSync`].
    pub async fn block_plugin_sync(&self) -> BlockSync {
        BlockSync {
            _guard: Arc::new(self.shared.joins.clone().read_owned().await),
        }
    }

    async fn told<R: HookRequest>(&self, request: R) -> Result<Told, Refused> {
        let mut step = operation::Plain(request);
        dispatch(&self.shared, &mut step).await
    }

    /// The sandbox is ready but for this (NRI-1110…1117).
    pub async fn run_pod_sandbox(&self, pod: PodSandbox) -> Result<Ran, Refused> {
        let mut step = operation::Run {
            merge: RunMerge::new(RunPodSandboxRequest { pod: Some(pod) }),
            takes_ips: self.shared.settings.pod_ips,
        };
        let deliveries = dispatch(&self.shared, &mut step).await?.deliveries;
        Ok(Ran {
            ips: step.merge.finish(),
            deliveries,
        })
    }

    pod_events! {
        /// The pod's resources have changed.
        post_update_pod_sandbox(PostUpdatePodSandboxRequest);
        /// All containers are stopped, nothing is torn down yet (NRI-1130…1134).
        stop_pod_sandbox(StopPodSandboxRequest);
        /// The pod is about to leave the list (NRI-1140…1143).
        remove_pod_sandbox(RemovePodSandboxRequest);
    }

    container_events! {
        /// The container is in the runtime's list.
        post_create_container(PostCreateContainerRequest) tell;
        /// The container's process is there but for its exec.
        start_container(StartContainerRequest) setup;
        /// The container's process runs.
        post_start_container(PostStartContainerRequest) tell;
        /// The container's resources have changed.
        post_update_container(PostUpdateContainerRequest) tell;
        /// The container is about to be removed.
        remove_container(RemoveContainerRequest) tell;
    }

    /// The pod's resources are about to change.
    pub async fn update_pod_sandbox(
        &self,
        pod: PodSandbox,
        overhead: LinuxResources,
        resources: LinuxResources,
    ) -> Result<Told, Refused> {
        self.told(UpdatePodSandboxRequest {
            pod: Some(pod),
            overhead_linux_resources: Some(overhead),
            linux_resources: Some(resources),
        })
        .await
    }

    /// The container's spec is ready, nothing of it is made. Plugins adjust it one after the other,
    /// each seeing what those before it did; then validators judge the sum.
    pub async fn create_container(
        &self,
        turn: &Turn,
        pod: PodSandbox,
        container: Container,
    ) -> Result<Created, Refused> {
        let _ = turn;
        let mut merge = CreateMerge::new(CreateContainerRequest {
            pod: Some(pod),
            container: Some(container),
        });
        let deadline = self.shared.deadline_of(Event::CreateContainer);
        let mut deliveries = dispatch(&self.shared, &mut merge).await?.deliveries;
        let merged = merge.finish();
        validators::validate(&self.shared, &merged, &mut deliveries, deadline).await?;
        Ok(Created { merged, deliveries })
    }

    /// The container's resources are about to change, to `resources`.
    pub async fn update_container(
        &self,
        turn: &Turn,
        pod: PodSandbox,
        container: Container,
        resources: LinuxResources,
    ) -> Result<Updated, Refused> {
        let _ = turn;
        let mut merge = UpdateMerge::new(UpdateContainerRequest {
            pod: Some(pod),
            container: Some(container),
            linux_resources: Some(resources),
        });
        let deliveries = dispatch(&self.shared, &mut merge).await?.deliveries;
        Ok(Updated {
            merged: merge.finish(),
            deliveries,
        })
    }

    /// The container's process has ended.
    pub async fn stop_container(
        &self,
        turn: &Turn,
        pod: PodSandbox,
        container: Container,
    ) -> Stopped {
        let _ = turn;
        let mut step = operation::Stop {
            request: StopContainerRequest {
                pod: Some(pod),
                container: Some(container),
            },
            merge: StopMerge::new(),
        };
        let told = never_refused(dispatch(&self.shared, &mut step).await);
        Stopped {
            merged: step.merge.finish(),
            deliveries: told.deliveries,
            failed: told.failed,
        }
    }

    /// True while any plugin is there or being synchronised: somebody to tell. Cheap, for before each
    /// operation.
    pub fn has_plugins(&self) -> bool {
        self.shared.roster.is_taken()
    }

    /// An update or an eviction that this plugin asked for in an answer could not be had (`merged.askers` says whose it
    /// was): logged, and counted as an error of the plugin.
    pub fn wish_failed(&self, plugin: &PluginId, what: &str) {
        self.shared.wish_failed(plugin, what);
    }

    /// How long plugins have.
    pub fn timeouts(&self) -> Timeouts {
        self.shared.timeouts()
    }

    /// Changes how long plugins have, from the next call on.
    pub fn set_timeouts(&self, timeouts: Timeouts) {
        self.shared.set_timeouts(timeouts);
    }

    /// Every plugin that is there, and every required or must-run one that is not.
    pub fn plugins(&self) -> Vec<PluginInfo> {
        self.shared.plugins()
    }

    /// Counts and latencies as Prometheus text; `prefix` stands before each name, such as
    /// `containerd_nri` does in containerd (NRI-451).
    pub fn metrics(&self, prefix: &str) -> String {
        self.shared.metrics(prefix)
    }

    /// Stops listening, says goodbye to all plugins, ends those that were launched. Bounded.
    pub async fn shutdown(&self, reason: &str) {
        shutdown(&self.shared, reason).await;
    }
}

/// The handle's share: when the last handle goes, plugins are let go.
pub(crate) struct Handle(Arc<Shared>);

impl Deref for Handle {
    type Target = Arc<Shared>;

    fn deref(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        begin_stop(&self.0, "its handle was dropped");
    }
}

/// No new plugins; those there are, are asked to go.
fn begin_stop(shared: &Shared, reason: &str) -> Vec<Arc<Session>> {
    shared.stopping.send_replace(true);
    let mut sessions: Vec<_> = shared
        .roster
        .slots()
        .iter()
        .filter_map(|slot| slot.session())
        .collect();
    sessions.extend(shared.shadows());
    for session in &sessions {
        shared.close(session, format!("runtime-stopping: {reason}"));
    }
    sessions
}

async fn shutdown(shared: &Shared, reason: &str) {
    let sessions = begin_stop(shared, reason);
    let deadline = Instant::now() + SHUTDOWN_WAIT;
    for session in sessions {
        if session.kind == Kind::InProcess {
            join::shutdown_in_process(&session).await;
        }
        let ended = tokio::time::timeout_at(deadline, session.ended()).await;
        if ended.is_err() {
            tracing::warn!(plugin = %session.name(), "did not end within {SHUTDOWN_WAIT:?}");
        }
    }
}

//! NRI, the Node Resource Interface, as a library.
//!
//! A container runtime tells *plugins* of the life of its pods and containers, and lets them adjust
//! containers as they are made. A plugin is a program of its own, started by the runtime or connected
//! to its socket; or an object in the runtime's process. This crate is both ends of that wire:
//!
//! - **the runtime side**, [`Adaptation`]: knows plugins, not pods;
//! - **the plugin side**, [`Handlers`] and, with feature `stub`, `stub::Stub`.
//!
//! # The events
//!
//! | | a plugin may veto | everyone is told | told, nothing more |
//! |---|---|---|---|
//! | pods | RunPodSandbox, UpdatePodSandbox | StopPodSandbox, RemovePodSandbox | PostUpdatePodSandbox |
//! | containers | CreateContainer, StartContainer, UpdateContainer | StopContainer, RemoveContainer | PostCreate-, PostStart-, PostUpdateContainer |
//!
//! Answers to CreateContainer carry an adjustment of the container; those to Create-, Update- and
//! StopContainer also updates of other containers. Each field and key has one owner: two plugins that
//! set the same thing fail the creation, by name ([`owners`], [`merge`]). Then *validators*, plugins
//! with the fourteenth event, judge the sum ([`validate`]).
//!
//! # What becomes of a plugin that fails
//!
//! An error is a veto at setup, and only reported at teardown. A plugin that does not answer in time,
//! loses its connection or breaks the protocol is closed, and the operation goes on without it, unless
//! the plugin is *required*. [`policy`] is the whole table; [`PluginSettings`] changes it per plugin.
//!
//! # A plugin
//!
//! ```
//! use nri::{Handlers, adjust::Adjust, proto::ContainerAdjustment};
//!
//! let handlers = Handlers::new()
//!     .run_pod_sandbox(|pod| async move {
//!         if pod.name.is_empty() {
//!             return Err("a pod without a name".into());
//!         }
//!         Ok(())
//!     })
//!     .create_container(|pod, _container| async move {
//!         let mut adjust = ContainerAdjustment::default();
//!         adjust.add_env("POD", &pod.name);
//!         Ok((Some(adjust), Vec::new()))
//!     });
//! assert_eq!(handlers.events().to_string(), "RunPodSandbox,CreateContainer");
//! // stub::Stub::builder(handlers).name("example").index("10").run().await
//! // or Adaptation::builder(..).in_process("10-example".parse()?, handlers)
//! ```
//!
//! # A runtime
//!
//! ```no_run
//! use std::sync::Arc;
//! use nri::{Adaptation, BoxFuture, Snapshot, Source, proto::*};
//!
//! struct Runtime;
//!
//! impl Source for Runtime {
//!     fn snapshot(&self) -> Snapshot {
//!         Snapshot::default()
//!     }
//!     fn update(&self, updates: Vec<ContainerUpdate>) -> BoxFuture<'_, Vec<ContainerUpdate>> {
//!         Box::pin(async move { updates })
//!     }
//!     fn evict(&self, _: String, _: String) -> BoxFuture<'_, Result<(), String>> {
//!         Box::pin(async { Err("not supported".into()) })
//!     }
//! }
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let nri = Adaptation::builder("my-runtime", "1.0").source(Arc::new(Runtime)).start().await?;
//! nri.run_pod_sandbox(PodSandbox { id: "pod1".into(), ..Default::default() }).await?;
//!
//! let turn = nri.turn().await;
//! let created = nri.create_container(&turn, PodSandbox::default(), Container::default()).await?;
//! // apply created.evict, created.update, then created.adjust
//! drop(turn);
//! # Ok(())
//! # }
//! ```
//!
//! # What to call when
//!
//! One method per event. Methods of setup events fail with [`Refused`] when a plugin vetoes; then
//! the runtime tells everyone with the stop and remove methods (NRI-430). Teardown and notification
//! methods never fail.
//!
//! The order of waiting is: the runtime's own step → [`Adaptation::turn`] → applying updates. Let each
//! call run to its end: one that is dropped half way leaves a plugin busy with an event, and the next
//! one may reach it meanwhile.
//!
//! # Plugins that connect while things happen
//!
//! Put a pod or container into what [`Source::snapshot`] gives at any time **before** you call
//! [`Adaptation::run_pod_sandbox`] or [`Adaptation::create_container`] for it, and keep it there until
//! its remove hook has begun. The library leaves it out of plugins' lists until its hook is done, and
//! again once its removal has begun; what was there at [`Builder::start`] counts as done. Then each
//! plugin has each object in its list or gets its Run/Create event; never both, never neither.

#![allow(
    clippy::result_large_err,
    reason = "an error is made once per failed operation, and its fields are for the caller"
)]

pub mod adjust;
mod builtin;
mod call;
mod chain;
mod chunks;
mod event;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handlers;
mod journal;
mod launch;
pub mod mask;
pub mod merge;
mod mux;
mod observe;
pub mod owners;
pub mod permit;
pub mod policy;
mod request;
mod rpc;
mod session;
mod settings;
mod shared;
mod step;
#[cfg(feature = "stub")]
pub mod stub;
mod sync;
mod transport;
pub mod validate;
mod validators;
mod version;

use std::{collections::BTreeMap, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

/// The messages on the wire.
pub use proto_nri as proto;

pub use event::HookRequest;
pub use handlers::{Error, Handlers, Result};
pub use mask::EventMask;
pub use observe::{Delivery, Kind, Observer, PluginEvent, PluginInfo, PluginName, PluginState};
pub use owners::PluginId;
pub use policy::Outcome;
pub use rpc::{Code, Status};
pub use settings::{
    DEFAULT_PLUGIN_CONFIG_DIR, DEFAULT_PLUGIN_DIR, DEFAULT_SOCKET, PluginConfig, PluginSettings,
    Restart, Settings,
};
pub use transport::TransportError;
pub use version::{NRI_VERSION, Version, runtime_nri_version};

use merge::{CreateMerge, MergedCreate, MergedStop, MergedUpdate, StopMerge, UpdateMerge};
use proto_nri::*;
pub(crate) use shared::Shared;

/// A future in a box, as [`Source`] gives it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a runtime has.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Pods that are up, also stopped ones that are not removed yet.
    pub pods: Vec<PodSandbox>,
    /// Containers that are created, running or paused.
    pub containers: Vec<Container>,
}

/// The runtime, as plugins reach it.
pub trait Source: Send + Sync + 'static {
    /// All there is, at once: called under a mutex that every dispatch passes. Do not block, do not
    /// call the [`Adaptation`], and hold no lock it takes while you call the [`Adaptation`].
    fn snapshot(&self) -> Snapshot;

    /// Applies updates at once, whatever state the containers' pods are in, and returns those that
    /// could not be applied. Wait neither for a pod's operation nor for the [`Turn`]: either may be
    /// waiting for the plugin that asks.
    fn update(&self, updates: Vec<ContainerUpdate>) -> BoxFuture<'_, Vec<ContainerUpdate>>;

    /// Takes the wish to stop a container, with its reason. Does not wait for the end of it.
    fn evict(&self, container: String, reason: String) -> BoxFuture<'_, Result<(), String>>;
}

/// A setup event that some plugin would not have, or that a required plugin did not answer.
///
/// The runtime now undoes its step, and tells all plugins by the stop and remove events.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// The event.
    pub event: Event,
    /// One line that names plugin, event and cause.
    pub reason: String,
    /// What each plugin said, as far as they were asked.
    pub deliveries: Vec<Delivery>,
}

/// What plugins said to an event.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// In call order.
    pub deliveries: Vec<Delivery>,
}

/// What plugins made of a container that is being created.
#[derive(Debug, Clone)]
pub struct Created {
    /// Apply `evict`, then `update` (failures are logged), then `adjust`.
    pub merged: MergedCreate,
    /// In call order, validators last.
    pub deliveries: Vec<Delivery>,
}

/// What plugins made of an update.
#[derive(Debug, Clone)]
pub struct Updated {
    /// Apply `others` first, then `target`, or the request's own resources if it is `None`.
    pub merged: MergedUpdate,
    pub deliveries: Vec<Delivery>,
}

/// What plugins made of a stop.
#[derive(Debug, Clone, Default)]
pub struct Stopped {
    /// Updates of other containers.
    pub merged: MergedStop,
    pub deliveries: Vec<Delivery>,
}

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

/// Why NRI cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error("in-process plugin {id}: {cause}")]
    InProcess { id: PluginId, cause: String },
    #[error("no source was given: plugins cannot be told what there is")]
    NoSource,
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
}

impl Builder {
    /// All settings at once; the methods below change single ones.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Where plugins connect.
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
        self.settings.registration_timeout = limit;
        self
    }

    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.settings.request_timeout = limit;
        self
    }

    pub fn sync_timeout(mut self, limit: Duration) -> Self {
        self.settings.sync_timeout = limit;
        self
    }

    /// How single plugins are treated, by id.
    pub fn plugins(mut self, plugins: BTreeMap<PluginId, PluginSettings>) -> Self {
        self.settings.plugins = plugins;
        self
    }

    /// The runtime. Mandatory (NRI-213).
    pub fn source(mut self, source: Arc<dyn Source>) -> Self {
        self.source = Some(source);
        self
    }

    /// Who wants to know of every outcome.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// A plugin of this process. Several are started in the order of these calls.
    pub fn in_process(mut self, id: PluginId, handlers: Handlers) -> Self {
        self.in_process.push((id, handlers));
        self
    }

    /// The default validator as a plugin of this process, in front of all others (NRI-206). Does
    /// nothing unless it is enabled.
    pub fn default_validator(mut self, validator: validate::DefaultValidator) -> Self {
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
        let shared = Shared::start(self).await?;
        Ok(Adaptation { shared })
    }
}

/// The runtime side of NRI. Clones are handles to the same thing; when the last is dropped, plugins
/// are let go as by [`Adaptation::shutdown`].
#[derive(Clone)]
pub struct Adaptation {
    shared: Arc<shared::Handle>,
}

macro_rules! pod_events {
    ($($(#[$doc:meta])* $name:ident($request:ident) $kind:ident;)*) => {
        $(pod_events!(@one $kind $(#[$doc])* $name $request);)*
    };
    (@one setup $(#[$doc:meta])* $name:ident $request:ident) => {
        $(#[$doc])*
        pub async fn $name(&self, pod: PodSandbox) -> Result<Told, Refused> {
            self.told($request { pod: Some(pod) }).await
        }
    };
    (@one tell $(#[$doc:meta])* $name:ident $request:ident) => {
        $(#[$doc])*
        pub async fn $name(&self, pod: PodSandbox) -> Told {
            never_refused(self.told($request { pod: Some(pod) }).await)
        }
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
        Turn {
            _guard: self.shared.turn.clone().lock_owned().await,
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
        let mut step = step::Plain(request);
        let deliveries = chain::dispatch(&self.shared, &mut step).await?;
        Ok(Told { deliveries })
    }

    pod_events! {
        /// The sandbox is ready but for this (NRI-1110…1117).
        run_pod_sandbox(RunPodSandboxRequest) setup;
        /// The pod's resources have changed.
        post_update_pod_sandbox(PostUpdatePodSandboxRequest) tell;
        /// All containers are stopped, nothing is torn down yet (NRI-1130…1134).
        stop_pod_sandbox(StopPodSandboxRequest) tell;
        /// The pod is about to leave the list (NRI-1140…1143).
        remove_pod_sandbox(RemovePodSandboxRequest) tell;
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
        let mut deliveries = chain::dispatch(&self.shared, &mut merge).await?;
        let merged = merge.finish();
        validators::validate(&self.shared, &merged, &mut deliveries).await?;
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
        let deliveries = chain::dispatch(&self.shared, &mut merge).await?;
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
        let mut step = step::Stop {
            request: StopContainerRequest {
                pod: Some(pod),
                container: Some(container),
            },
            merge: StopMerge::new(),
        };
        let deliveries = match chain::dispatch(&self.shared, &mut step).await {
            Ok(deliveries) => deliveries,
            Err(refused) => refused.deliveries,
        };
        Stopped {
            merged: step.merge.finish(),
            deliveries,
        }
    }

    /// True while any plugin is there or being synchronised: somebody to tell. Cheap, for before each
    /// operation.
    pub fn has_plugins(&self) -> bool {
        self.shared.roster.is_taken()
    }

    /// Every plugin that is there, and every required or must-run one that is not.
    pub fn plugins(&self) -> Vec<PluginInfo> {
        self.shared.plugins()
    }

    /// Counts and latencies as Prometheus text; `prefix` stands before each name, such as
    /// `containerd_nri` does in containerd (NRI-451).
    pub fn metrics(&self, prefix: &str) -> String {
        self.shared.metrics.render(prefix, &self.plugins())
    }

    /// Stops listening, says goodbye to all plugins, ends those that were launched. Bounded.
    pub async fn shutdown(&self, reason: &str) {
        self.shared.shutdown(reason).await;
    }
}

//! What a handler is told beside its event: how long it has, and which runtime asks.

use std::{sync::Arc, time::Duration};

use proto_nri::ConfigureRequest;
use tokio::time::Instant;

use crate::{
    plugin_side::runtime::Runtime,
    wire::version::{Version, runtime_nri_version},
};

/// What a runtime gives a plugin that has not said otherwise: to be configured, and for an answer.
pub(crate) const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

tokio::task_local! {
    static DEADLINE: Option<Instant>;
}

/// Runs a handler under its deadline.
pub(crate) async fn until<T>(deadline: Option<Instant>, handler: impl Future<Output = T>) -> T {
    DEADLINE.scope(deadline, handler).await
}

/// Inside a handler: how long the runtime still waits for the answer (NRI-919), for code that has no
/// [`Context`] at hand. `None` outside of handlers, or if the runtime does not say.
pub fn time_left() -> Option<Duration> {
    left(DEADLINE.try_with(|deadline| *deadline).ok().flatten())
}

fn left(deadline: Option<Instant>) -> Option<Duration> {
    Some(deadline?.saturating_duration_since(Instant::now()))
}

/// What comes with each call of a [`Plugin`](crate::Plugin)'s method.
///
/// ```
/// use nri::{Context, Plugin, Result, proto::PodSandbox};
///
/// struct Careful;
///
/// impl Plugin for Careful {
///     async fn run_pod_sandbox(&self, cx: &Context, pod: PodSandbox) -> Result<()> {
///         if let Some(left) = cx.time_left() {
///             println!("{} gives {left:?} for pod {}", cx.runtime_info().name, pod.name);
///         }
///         let runtime = cx.runtime().clone();
///         // A handler never waits for the runtime, which waits for the handler.
///         tokio::spawn(async move { runtime.evict("old", "a new pod has come").await });
///         Ok(())
///     }
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Context {
    pub(crate) deadline: Option<Instant>,
    pub(crate) info: Arc<RuntimeInfo>,
    pub(crate) runtime: Runtime,
}

impl Context {
    /// When the runtime stops waiting for this answer (NRI-919); then the method's future is dropped.
    /// `None` if the runtime does not say.
    pub fn deadline(&self) -> Option<std::time::Instant> {
        self.deadline.map(Instant::into_std)
    }

    /// How long the runtime still waits for this answer; `None` if it does not say.
    pub fn time_left(&self) -> Option<Duration> {
        left(self.deadline)
    }

    /// Name, versions and limits of the runtime that asks.
    pub fn runtime_info(&self) -> &RuntimeInfo {
        &self.info
    }

    /// To ask the runtime for updates and evictions outside of answers. A clone of it may be kept as long
    /// as the plugin lives: it follows the plugin from connection to connection.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }
}

/// Identity of the runtime, as it is told at Configure.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeInfo {
    pub name: String,
    pub version: String,
    /// Said, or inferred from name and version (NRI-340); `None` if neither tells.
    pub nri_version: Option<String>,
    pub registration_timeout: Duration,
    /// How long the runtime waits for an answer to an event.
    pub request_timeout: Duration,
    /// The version this connection speaks.
    pub protocol: Version,
}

impl Default for RuntimeInfo {
    /// Of a runtime that has not told yet: no name, the usual limits.
    fn default() -> Self {
        Self {
            name: String::new(),
            version: String::new(),
            nri_version: None,
            registration_timeout: REGISTRATION_TIMEOUT,
            request_timeout: REQUEST_TIMEOUT,
            protocol: Version::V1Alpha1,
        }
    }
}

impl RuntimeInfo {
    pub(crate) fn of(request: &ConfigureRequest, protocol: Version) -> Self {
        let millis = |n: i64, default: Duration| match u64::try_from(n) {
            Ok(0) | Err(_) => default,
            Ok(n) => Duration::from_millis(n),
        };
        let nri_version = runtime_nri_version(
            &request.nri_version,
            &request.runtime_name,
            &request.runtime_version,
        );
        Self {
            name: request.runtime_name.clone(),
            version: request.runtime_version.clone(),
            nri_version,
            registration_timeout: millis(request.registration_timeout, REGISTRATION_TIMEOUT),
            request_timeout: millis(request.request_timeout, REQUEST_TIMEOUT),
            protocol,
        }
    }
}

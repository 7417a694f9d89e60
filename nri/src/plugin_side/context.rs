//! What a handler is told beside its event: how long it has, and which runtime asks.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::plugin_side::{runtime::Runtime, runtime_info::RuntimeInfo};

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

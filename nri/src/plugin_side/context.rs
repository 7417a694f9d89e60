//! What a handler is told beside its event: how long it has, and which runtime asks.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::plugin_side::{runtime::Runtime, runtime_info::RuntimeInfo};

tokio::task_local! {
    static CALL: CallInfo;
}

/// What a call says beside its event.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallInfo {
    pub(crate) deadline: Option<Instant>,
    pub(crate) left_out: Arc<[String]>,
}

/// Runs a handler of this call.
pub(crate) async fn during<T>(call: CallInfo, handler: impl Future<Output = T>) -> T {
    CALL.scope(call, handler).await
}

/// Inside a handler: how long the runtime still waits for the answer (NRI-919), for code that has no
/// [`Context`] at hand. `None` outside of handlers, or if the runtime does not say.
pub fn time_left() -> Option<Duration> {
    left(CALL.try_with(|call| call.deadline).ok().flatten())
}

/// Inside a handler: what the message lacks, as [`Context::left_out`] has it, for code that has no [`Context`] at hand.
pub fn left_out() -> Arc<[String]> {
    CALL.try_with(|call| call.left_out.clone())
        .unwrap_or_default()
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
    pub(crate) call: CallInfo,
    pub(crate) info: Arc<RuntimeInfo>,
    pub(crate) runtime: Runtime,
}

impl Context {
    /// When the runtime stops waiting for this answer (NRI-919); then the method's future is dropped.
    /// `None` if the runtime does not say.
    pub fn deadline(&self) -> Option<std::time::Instant> {
        self.call.deadline.map(Instant::into_std)
    }

    /// How long the runtime still waits for this answer; `None` if it does not say.
    pub fn time_left(&self) -> Option<Duration> {
        left(self.call.deadline)
    }

    /// What the message lacks, because it would have been too long to be sent: for each pod or container that lacks
    /// something a line such as `container ID: env, linux.devices`. Only messages of Synchronize, and of events that cannot be
    /// refused, are shortened so. Empty as well where the runtime does not say.
    pub fn left_out(&self) -> &[String] {
        &self.call.left_out
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

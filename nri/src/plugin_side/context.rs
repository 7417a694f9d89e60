//! Call metadata for handlers: the time left and the calling runtime.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::plugin_side::{runtime::Runtime, runtime_info::RuntimeInfo};

tokio::task_local! {
    static CALL: CallInfo;
}

/// Metadata of a call.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallInfo {
    pub(crate) deadline: Option<Instant>,
    pub(crate) left_out: Arc<[String]>,
}

/// Runs the handler of this call.
pub(crate) async fn during<T>(call: CallInfo, handler: impl Future<Output = T>) -> T {
    CALL.scope(call, handler).await
}

/// Inside a handler: the time for which the runtime still waits for the answer (NRI-919), for code
/// without a [`Context`]. `None` outside of handlers, or if the runtime does not report it.
pub fn time_left() -> Option<Duration> {
    left(CALL.try_with(|call| call.deadline).ok().flatten())
}

/// Inside a handler: [`Context::left_out`], for code without a [`Context`].
pub fn left_out() -> Arc<[String]> {
    CALL.try_with(|call| call.left_out.clone())
        .unwrap_or_default()
}

fn left(deadline: Option<Instant>) -> Option<Duration> {
    Some(deadline?.saturating_duration_since(Instant::now()))
}

/// Metadata of each method call of a [`Plugin`](crate::Plugin).
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
    /// When the runtime stops waiting for this answer (NRI-919); then the method's future is
    /// dropped. `None` if the runtime does not report it.
    pub fn deadline(&self) -> Option<std::time::Instant> {
        self.call.deadline.map(Instant::into_std)
    }

    /// The time for which the runtime still waits for this answer; `None` if it does not report it.
    pub fn time_left(&self) -> Option<Duration> {
        left(self.call.deadline)
    }

    /// Fields missing because the message would have been too long: one line per incomplete pod or
    /// container, such as `container ID: env, linux.devices`. Only messages of Synchronize, and of
    /// events that plugins cannot reject, are shortened. Also empty if the runtime does not report
    /// it.
    pub fn left_out(&self) -> &[String] {
        &self.call.left_out
    }

    /// Name, versions and limits of the calling runtime.
    pub fn runtime_info(&self) -> &RuntimeInfo {
        &self.info
    }

    /// Sends the runtime updates and evictions outside of answers. A clone can be kept as long as
    /// the plugin lives: it follows the plugin from connection to connection.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }
}

//! The API that a runtime calls: one method per event, and shutdown. `builder.rs` creates it.
//!
//! The methods return boxed futures, so that the dispatch is compiled once, here. The body of an
//! `async fn` is compiled again in each crate that awaits it.

use std::{ops::Deref, sync::Arc, time::Duration};

use prost::Message as _;
use proto_nri::*;
use tokio::time::Instant;

use crate::{
    closing::CloseReason,
    dispatch::dispatch,
    merge::{CreateMerge, RunMerge, StopMerge, UpdateMerge},
    observe::{Delivery, Kind, PluginEvent, PluginInfo, PluginName},
    operation::{self, Created, Notified, Ran, Refused, Stopped, Updated},
    peer::SHUTDOWN_LIMIT,
    plugin::Session,
    plugin_id::PluginId,
    rejections::Rejection,
    roster::{Roster, Slot},
    settings::Timeouts,
    shared::Shared,
    source::BoxFuture,
    validators,
    wire::{
        event::HookRequest,
        rpc::{ENVELOPE, MAX_MESSAGE, ROOM},
    },
};

/// Limit of the wait for plugins to end at shutdown.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(5);

/// The NRI turn: one holder at a time, first come first served. Events that carry updates need it,
/// because updates cross containers. Keep it until the updates are applied, and await nothing else
/// meanwhile (no network, image, process or grace period). A plugin that gets the event and
/// connects during the turn is synchronised after it.
pub struct Turn {
    roster: Arc<Roster>,
    _guard: tokio::sync::OwnedMutexGuard<()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.roster.end_turn();
    }
}

/// The runtime side of NRI. Clones are handles to the same object; dropping the last one
/// disconnects the plugins as [`Adaptation::shutdown`] does.
#[derive(Clone)]
pub struct Adaptation {
    pub(crate) shared: Arc<Handle>,
}

/// Events that plugins cannot reject.
macro_rules! reply {
    ($($(#[$doc:meta])* $name:ident($($field:ident: $arg:ty),*) by $request:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(&self, $($field: $arg),*) -> BoxFuture<'_, Notified> {
            Box::pin(async move {
                never_refused(self.sent($request { $($field: Some($field)),* }).await)
            })
        })*
    };
}

/// `policy.rs` lets no outcome abort a teardown or a notification; the type cannot express that.
fn never_refused(sent: Result<Notified, Refused>) -> Notified {
    sent.unwrap_or_else(|refused| Notified {
        deliveries: refused.deliveries,
        failed: None,
    })
}

impl Adaptation {
    /// Waits for plugins that get this event and are being synchronised, then for the NRI turn.
    /// Plugins that get it and connect later are synchronised after the turn.
    pub async fn turn(&self, event: Event) -> Turn {
        let shared = &**self.shared;
        let deadline = Instant::now() + shared.timeouts().longest_join(&shared.settings);
        loop {
            shared.roster.joined(event, deadline).await;
            let guard = shared.turn.clone().lock_owned().await;
            if shared.roster.begin_turn(event, Instant::now() >= deadline) {
                return Turn {
                    roster: shared.roster.clone(),
                    _guard: guard,
                };
            }
        }
    }

    /// Runs `change` under the mutex of the cut: a joining plugin sees all of the change in
    /// [`Source::snapshot`](crate::Source::snapshot) or nothing of it. Keep it short; do not call
    /// the [`Adaptation`] in it.
    pub fn cut<T>(&self, change: impl FnOnce() -> T) -> T {
        self.shared.roster.cut(change)
    }

    async fn sent<R: HookRequest>(&self, request: R) -> Result<Notified, Refused> {
        let mut step = operation::Plain(request);
        dispatch(&self.shared, &mut step).await
    }

    /// The last step before the sandbox is ready (NRI-1110…1117).
    pub fn run_pod_sandbox(&self, pod: PodSandbox) -> BoxFuture<'_, Result<Ran, Refused>> {
        Box::pin(async move {
            let mut step = operation::Run {
                merge: RunMerge::new(RunPodSandboxRequest { pod: Some(pod) }),
                takes_ips: self.shared.settings.pod_ips,
            };
            let deliveries = dispatch(&self.shared, &mut step).await?.deliveries;
            Ok(Ran {
                ips: step.merge.finish(),
                deliveries,
            })
        })
    }

    reply! {
        /// The pod's resources have changed.
        post_update_pod_sandbox(pod: PodSandbox) by PostUpdatePodSandboxRequest;
        /// All containers are stopped; teardown has not begun (NRI-1130…1134).
        stop_pod_sandbox(pod: PodSandbox) by StopPodSandboxRequest;
        /// The pod is about to be removed from the list (NRI-1140…1143).
        remove_pod_sandbox(pod: PodSandbox) by RemovePodSandboxRequest;
        /// The container is in the runtime's list.
        post_create_container(pod: PodSandbox, container: Container) by PostCreateContainerRequest;
        /// The container's process runs.
        post_start_container(pod: PodSandbox, container: Container) by PostStartContainerRequest;
        /// The container's resources have changed.
        post_update_container(pod: PodSandbox, container: Container) by PostUpdateContainerRequest;
        /// The container is about to be removed.
        remove_container(pod: PodSandbox, container: Container) by RemoveContainerRequest;
    }

    /// The container's process exists and waits for its exec.
    pub fn start_container(
        &self,
        pod: PodSandbox,
        container: Container,
    ) -> BoxFuture<'_, Result<Notified, Refused>> {
        Box::pin(async move {
            let (pod, container) = (Some(pod), Some(container));
            self.sent(StartContainerRequest { pod, container }).await
        })
    }

    /// The pod's resources are about to change.
    pub fn update_pod_sandbox(
        &self,
        pod: PodSandbox,
        overhead: LinuxResources,
        resources: LinuxResources,
    ) -> BoxFuture<'_, Result<Notified, Refused>> {
        Box::pin(async move {
            self.sent(UpdatePodSandboxRequest {
                pod: Some(pod),
                overhead_linux_resources: Some(overhead),
                linux_resources: Some(resources),
            })
            .await
        })
    }

    /// The container's spec is ready; none of its resources exist. Plugins adjust it one after the
    /// other, each sees the earlier adjustments; then validators check the result.
    pub fn create_container<'a>(
        &'a self,
        turn: &'a Turn,
        pod: PodSandbox,
        container: Container,
    ) -> BoxFuture<'a, Result<Created, Refused>> {
        let _ = turn;
        Box::pin(async move {
            let mut merge = CreateMerge::new(CreateContainerRequest {
                pod: Some(pod),
                container: Some(container),
            });
            let deadline = self.shared.timeouts().deadline_of(Event::CreateContainer);
            let mut deliveries = dispatch(&self.shared, &mut merge).await?.deliveries;
            if let Some(reason) = grew_too_long(&self.shared.roster, merge.request(), &deliveries) {
                return Err(Refused {
                    event: Event::CreateContainer,
                    reason,
                    deliveries,
                });
            }
            let merged = merge.finish();
            validators::validate(&self.shared, &merged, &mut deliveries, deadline).await?;
            Ok(Created { merged, deliveries })
        })
    }

    /// The container's resources are about to change, to `resources`.
    pub fn update_container<'a>(
        &'a self,
        turn: &'a Turn,
        pod: PodSandbox,
        container: Container,
        resources: LinuxResources,
    ) -> BoxFuture<'a, Result<Updated, Refused>> {
        let _ = turn;
        Box::pin(async move {
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
        })
    }

    /// The container's process has ended.
    pub fn stop_container<'a>(
        &'a self,
        turn: &'a Turn,
        pod: PodSandbox,
        container: Container,
    ) -> BoxFuture<'a, Stopped> {
        let _ = turn;
        Box::pin(async move {
            let mut step = operation::Stop {
                request: StopContainerRequest {
                    pod: Some(pod),
                    container: Some(container),
                },
                merge: StopMerge::new(),
            };
            let sent = never_refused(dispatch(&self.shared, &mut step).await);
            Stopped {
                merged: step.merge.finish(),
                deliveries: sent.deliveries,
                failed: sent.failed,
            }
        })
    }

    /// True while any plugin is connected or being synchronised. Cheap enough to call before each
    /// operation.
    pub fn has_plugins(&self) -> bool {
        self.shared.roster.is_taken()
    }

    /// Logs that an update or an eviction which this plugin requested in an answer failed, and
    /// counts it as an error of the plugin. `merged.askers` names the plugin.
    pub fn request_failed(&self, plugin: &PluginId, what: &str) {
        self.shared.notices.request_failed(plugin, what);
    }

    /// The time limits of plugin calls.
    pub fn timeouts(&self) -> Timeouts {
        self.shared.timeouts()
    }

    /// The last connections and files that were rejected before they were known to be a plugin.
    pub fn rejections(&self) -> Vec<Rejection> {
        self.shared.notices.rejections.all()
    }

    /// A plugin connected to another socket of the runtime, which rejected it.
    pub fn rejected(&self, pid: Option<u32>, reason: impl Into<String>) {
        let name = PluginName {
            pid,
            ..PluginName::unknown(Kind::External)
        };
        let reason = reason.into();
        self.shared
            .notices
            .report(&name, &PluginEvent::Rejected { reason });
    }

    /// Every plugin that is there, and every required or must-run one that is not.
    pub fn plugins(&self) -> Vec<PluginInfo> {
        self.shared.plugins()
    }

    /// Counts and latencies as Prometheus text; `prefix` precedes each name, such as
    /// `containerd_nri` in containerd (NRI-451).
    pub fn metrics(&self, prefix: &str) -> String {
        self.shared.metrics(prefix)
    }

    /// Stops listening, sends Shutdown to all plugins, ends the launched ones. Bounded.
    pub fn shutdown<'a>(&'a self, reason: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(shutdown(&self.shared, reason))
    }
}

/// The reason why plugins could not get a container any more as these plugins have adjusted it.
fn grew_too_long(
    roster: &Roster,
    request: &CreateContainerRequest,
    deliveries: &[Delivery],
) -> Option<String> {
    let by: Vec<_> = deliveries.iter().filter(|d| d.adjusted).collect();
    let limit = MAX_MESSAGE - ENVELOPE - ROOM;
    let is_remote = |slot: &Arc<Slot>| slot.session().is_some_and(|s| s.peer.is_remote());
    if by.is_empty() || !roster.slots().iter().any(is_remote) {
        return None;
    }
    let length = request.encoded_len();
    let by: Vec<_> = by.iter().map(|d| d.plugin.to_string()).collect();
    (length > limit).then(|| {
        format!(
            "container too long for plugins as adjusted by {}: {length} bytes exceed the limit of {limit}",
            by.join(", ")
        )
    })
}

/// The handle's share: when the last handle goes, plugins are let go.
pub(crate) struct Handle(pub(crate) Arc<Shared>);

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

/// Rejects new plugins and asks the connected ones to close.
fn begin_stop(shared: &Shared, reason: &str) -> Vec<Arc<Session>> {
    shared.stopping.send_replace(true);
    let mut sessions: Vec<_> = shared
        .roster
        .slots()
        .iter()
        .filter_map(|slot| slot.session())
        .collect();
    sessions.extend(shared.seats.shadows());
    for session in &sessions {
        shared.close(session, CloseReason::RuntimeStopping.because(reason));
    }
    sessions
}

async fn shutdown(shared: &Shared, reason: &str) {
    let sessions = begin_stop(shared, reason);
    let deadline = Instant::now() + SHUTDOWN_WAIT;
    for session in sessions {
        // No task watches an in-process plugin.
        if session.kind == Kind::InProcess {
            session.peer.shutdown(SHUTDOWN_LIMIT).await;
        }
        let ended = tokio::time::timeout_at(deadline, session.ended()).await;
        if ended.is_err() {
            tracing::warn!(plugin = %session.name(), "did not end within {SHUTDOWN_WAIT:?}");
        }
    }
}

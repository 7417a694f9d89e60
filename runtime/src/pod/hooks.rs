//! The contract points (CONTRACT.md): every place where NRI plugins are called, and the only
//! file that calls the dispatch of crate `nri`.
//!
//! Events that carry updates hold the NRI turn until the updates are applied and nothing else
//! is awaited in it (design.md, "Who waits for whom" 3). Updates of other containers go by
//! [`update::apply`], which waits for no pod; evictions are put into the other pod's queue.

use std::{
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use nri::{
    Adaptation, BoxFuture, Delivery, Observer, PluginEvent, PluginName, Refused, Snapshot, Source,
    Told,
};
use proto_cri::v1 as cri;
use proto_nri::{ContainerEviction, ContainerState, ContainerUpdate, Event};

use super::{
    Container, Pod,
    container::update::{self, Change},
    driver::ContainerWork,
    error::{Error, Kind, Result},
    journal::Journal,
    messages,
    record::{ContainerPhase, Mark, PodPhase},
    spec::Specs,
};
use crate::{
    oci,
    services::Services,
    trace::{self, Life, Subject, What},
};

/// What plugins made of a container that is being created.
pub struct Created {
    pub adjust: proto_nri::ContainerAdjustment,
    pub owners: proto_nri::OwningPlugins,
}

/// What plugins made of an update; the turn lasts as long as this does.
#[derive(Default)]
pub struct Updated {
    /// `None` where no plugin touched the request's values.
    pub target: Option<proto_nri::LinuxResources>,
    _turn: Option<nri::Turn>,
}

/// Empty until NRI is started, and for good where it is disabled.
#[derive(Default)]
pub struct Hooks {
    adaptation: OnceLock<Adaptation>,
}

impl Hooks {
    /// Opens the socket and launches plugins. Recovery has put every pod into the registry by
    /// now, so that plugins are told of them in Synchronize.
    ///
    /// # Errors
    /// One line: someone else answers at the socket, a directory cannot be read.
    pub async fn start(services: &Arc<Services>) -> Result<()> {
        if !services.config.nri.enable {
            return Ok(());
        }
        let eyes = Arc::new(Eyes(Arc::downgrade(services)));
        let adaptation = Adaptation::builder("cairn", env!("CARGO_PKG_VERSION"))
            .settings(services.config.nri_settings())
            .default_validator(services.config.nri.default_validator.clone())
            .source(Arc::clone(&eyes) as Arc<dyn Source>)
            .observer(eyes)
            .start()
            .await
            .map_err(|error| Error::failed(format!("NRI: {error}")))?;
        let _ = services.hooks.adaptation.set(adaptation);
        Ok(())
    }

    /// Who is connected, and who should be.
    pub fn plugins(&self) -> Vec<nri::PluginInfo> {
        let adaptation = self.adaptation.get();
        adaptation.map(Adaptation::plugins).unwrap_or_default()
    }

    /// Prometheus text of the families of containerd and ours (NRI-450, NRI-451).
    pub fn metrics(&self) -> String {
        let adaptation = self.adaptation.get();
        adaptation
            .map(|adaptation| adaptation.metrics("cairn_nri"))
            .unwrap_or_default()
    }

    /// Says goodbye to plugins, ends those that were launched.
    pub async fn shutdown(&self, reason: &str) {
        if let Some(adaptation) = self.adaptation.get() {
            adaptation.shutdown(reason).await;
        }
    }

    /// False where no plugin is: then nothing need be marked before a hook. One that joins in
    /// the very moment learns by Synchronize what a crash kept from it.
    pub fn active(&self) -> bool {
        self.adaptation.get().is_some_and(Adaptation::has_plugins)
    }

    /// C-01. NRI-1110 to NRI-1117: all of the sandbox is there, none of it is listed.
    ///
    /// # Errors
    /// The first plugin's veto.
    pub async fn run_pod(&self, pod: &Pod) -> Result<()> {
        let Some(adaptation) = self.adaptation.get() else {
            return Ok(());
        };
        let point = Point::begin(pod, None, Event::RunPodSandbox);
        point.end(adaptation.run_pod_sandbox(messages::pod(pod)).await)
    }

    /// A sandbox whose Run hook was begun will not be: Stop and Remove to all (NRI-1118).
    pub async fn undo_run_pod(&self, pod: &Pod) {
        self.stop_pod(pod).await;
        self.remove_pod(pod).await;
    }

    /// C-02. NRI-1130 to NRI-1134: containers are stopped, nothing is torn down.
    pub async fn stop_pod(&self, pod: &Pod) {
        if let Some(adaptation) = self.adaptation.get() {
            let point = Point::begin(pod, None, Event::StopPodSandbox);
            point.told(&adaptation.stop_pod_sandbox(messages::pod(pod)).await);
        }
    }

    /// C-03. NRI-1140 to NRI-1143: just before the pod leaves the list.
    pub async fn remove_pod(&self, pod: &Pod) {
        if let Some(adaptation) = self.adaptation.get() {
            let point = Point::begin(pod, None, Event::RemovePodSandbox);
            point.told(&adaptation.remove_pod_sandbox(messages::pod(pod)).await);
        }
    }

    /// C-12. NRI-1240.
    ///
    /// # Errors
    /// The first plugin's veto.
    pub async fn update_pod(
        &self,
        pod: &Pod,
        overhead: Option<&cri::LinuxContainerResources>,
        resources: Option<&cri::LinuxContainerResources>,
    ) -> Result<()> {
        let Some(adaptation) = self.adaptation.get() else {
            return Ok(());
        };
        let wire = |cri: Option<&cri::LinuxContainerResources>| {
            cri.map(oci::cri_to_nri).unwrap_or_default()
        };
        let point = Point::begin(pod, None, Event::UpdatePodSandbox);
        let told =
            adaptation.update_pod_sandbox(messages::pod(pod), wire(overhead), wire(resources));
        point.end(told.await)
    }

    /// C-13.
    pub async fn post_update_pod(&self, pod: &Pod) {
        if let Some(adaptation) = self.adaptation.get() {
            let point = Point::begin(pod, None, Event::PostUpdatePodSandbox);
            point.told(&adaptation.post_update_pod_sandbox(messages::pod(pod)).await);
        }
    }

    /// C-04. The spec is ready, no process is there. Other containers' updates and evictions
    /// are under way when it returns. `None` where NRI is off or nothing was adjusted.
    ///
    /// # Errors
    /// A veto, a conflict or a validator's rejection.
    pub async fn create_container(
        &self,
        pod: &Pod,
        container: &Container,
        specs: &Specs,
    ) -> Result<Option<Created>> {
        let Some(adaptation) = self.adaptation.get() else {
            return Ok(None);
        };
        container.set_message(messages::base(pod, container, specs));
        let point = Point::begin(pod, Some(container), Event::CreateContainer);
        let turn = adaptation.turn().await;
        let created = adaptation
            .create_container(&turn, messages::pod(pod), messages::container(container))
            .await;
        let created = match created {
            Ok(created) => created,
            Err(refused) => {
                for delivery in &refused.deliveries {
                    point.delivered(delivery, Vec::new());
                }
                return point.refused(refused);
            }
        };
        let merged = created.merged;
        let owners = proto_nri::OwningPlugins::from(&merged.owners);
        for delivery in &created.deliveries {
            let plugin = delivery.plugin.to_string();
            point.delivered(delivery, changed(&owners, &container.id, &plugin));
        }
        evict(&pod.services, &merged.evict);
        update_others(&pod.services, &merged.update).await;
        drop(turn);
        point.passed(None);
        if !created.deliveries.iter().any(|delivery| delivery.adjusted) {
            return Ok(None);
        }
        Ok(Some(Created {
            adjust: merged.adjust,
            owners,
        }))
    }

    /// A container whose Create hook was begun will not be: Stop and Remove to all (NRI-430).
    pub async fn undo_create_container(&self, pod: &Pod, container: &Container) {
        self.stop_container(pod, container).await;
        self.remove_container(pod, container).await;
    }

    /// C-05. The container is listed.
    pub async fn post_create_container(&self, pod: &Pod, container: &Container) {
        if let Some(adaptation) = self.adaptation.get() {
            let point = Point::begin(pod, Some(container), Event::PostCreateContainer);
            let (sandbox, message) = (messages::pod(pod), messages::container(container));
            point.told(&adaptation.post_create_container(sandbox, message).await);
        }
    }

    /// C-06. The process is there and has not run its program.
    ///
    /// # Errors
    /// The first plugin's veto.
    pub async fn start_container(&self, pod: &Pod, container: &Container, pid: u32) -> Result<()> {
        let Some(adaptation) = self.adaptation.get() else {
            return Ok(());
        };
        let point = Point::begin(pod, Some(container), Event::StartContainer);
        let mut message = messages::container(container);
        message.pid = pid;
        point.end(
            adaptation
                .start_container(messages::pod(pod), message)
                .await,
        )
    }

    /// C-07.
    pub async fn post_start_container(&self, pod: &Pod, container: &Container) {
        if let Some(adaptation) = self.adaptation.get() {
            let point = Point::begin(pod, Some(container), Event::PostStartContainer);
            let (sandbox, message) = (messages::pod(pod), messages::container(container));
            point.told(&adaptation.post_start_container(sandbox, message).await);
        }
    }

    /// C-08. The merged values replace the request's. The NRI turn is held by the answer: the
    /// caller applies them before it drops it.
    ///
    /// # Errors
    /// A veto or a conflict.
    pub async fn update_container(
        &self,
        pod: &Pod,
        container: &Container,
        wanted: &cri::LinuxContainerResources,
    ) -> Result<Updated> {
        let Some(adaptation) = self.adaptation.get() else {
            return Ok(Updated::default());
        };
        let point = Point::begin(pod, Some(container), Event::UpdateContainer);
        let turn = adaptation.turn().await;
        let (sandbox, message) = (messages::pod(pod), messages::container(container));
        let updated = adaptation
            .update_container(&turn, sandbox, message, oci::cri_to_nri(wanted))
            .await;
        let merged = match updated {
            Ok(updated) => updated.merged,
            Err(refused) => return point.refused(refused),
        };
        evict(&pod.services, &merged.evict);
        update_others(&pod.services, &merged.others).await;
        point.passed(None);
        Ok(Updated {
            target: merged.target,
            _turn: Some(turn),
        })
    }

    /// C-09.
    pub async fn post_update_container(&self, pod: &Pod, container: &Container) {
        if let Some(adaptation) = self.adaptation.get() {
            let point = Point::begin(pod, Some(container), Event::PostUpdateContainer);
            let (sandbox, message) = (messages::pod(pod), messages::container(container));
            point.told(&adaptation.post_update_container(sandbox, message).await);
        }
    }

    /// C-10. The process is gone; its exit is on record.
    pub async fn stop_container(&self, pod: &Pod, container: &Container) {
        let Some(adaptation) = self.adaptation.get() else {
            return;
        };
        let point = Point::begin(pod, Some(container), Event::StopContainer);
        let turn = adaptation.turn().await;
        let (sandbox, message) = (messages::pod(pod), messages::container(container));
        let stopped = adaptation.stop_container(&turn, sandbox, message).await;
        update_others(&pod.services, &stopped.merged.update).await;
        drop(turn);
        point.passed(None);
    }

    /// C-11. Just before the container leaves the list.
    pub async fn remove_container(&self, pod: &Pod, container: &Container) {
        if let Some(adaptation) = self.adaptation.get() {
            let point = Point::begin(pod, Some(container), Event::RemoveContainer);
            let (sandbox, message) = (messages::pod(pod), messages::container(container));
            point.told(&adaptation.remove_container(sandbox, message).await);
        }
    }
}

/// One pass through a contract point, for the event log.
struct Point<'a> {
    journal: &'a Journal,
    subject: Subject,
    event: Event,
    begun: Instant,
}

impl<'a> Point<'a> {
    fn begin(pod: &'a Pod, container: Option<&Container>, event: Event) -> Self {
        let point = Self {
            journal: &pod.services.journal,
            subject: Journal::subject(pod, container),
            event,
            begun: Instant::now(),
        };
        point.record(What::Point {
            point: contract_point(event),
            hook: nri::mask::event_name(event).to_owned(),
        });
        point
    }

    fn record(&self, what: What) {
        self.journal.record(self.subject.clone(), what);
    }

    fn passed(&self, aborted: Option<String>) {
        self.record(What::Passed {
            hook: nri::mask::event_name(self.event).to_owned(),
            took_ns: nanoseconds(self.begun.elapsed()),
            aborted,
        });
    }

    /// What one plugin answered, and the names of what it set.
    fn delivered(&self, delivery: &Delivery, changed: Vec<String>) {
        self.record(answer(delivery, changed));
    }

    fn told(&self, _: &Told) {
        self.passed(None);
    }

    fn end(&self, told: std::result::Result<Told, Refused>) -> Result<()> {
        match told {
            Ok(_) => {
                self.passed(None);
                Ok(())
            }
            Err(refused) => self.refused(refused),
        }
    }

    fn refused<T>(&self, refused: Refused) -> Result<T> {
        self.passed(Some(refused.reason.clone()));
        Err(Error::new(Kind::Failed, format!("NRI: {}", refused.reason)))
    }
}

/// CONTRACT.md numbers the points as NRI numbers its events.
fn contract_point(event: Event) -> String {
    format!("C-{:02}", event as i32)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Into the other pods' queues, not awaited; a container is stopped without grace (NRI-570).
fn evict(services: &Services, evictions: &[ContainerEviction]) {
    for eviction in evictions {
        if let Err(error) = evict_one(services, &eviction.container_id, &eviction.reason) {
            tracing::warn!(container = %eviction.container_id, %error, "eviction");
        }
    }
}

fn evict_one(services: &Services, id: &str, reason: &str) -> Result<()> {
    let (pod, container) = services.registry.container(id)?;
    tracing::info!(container = %container.id, reason, "evicted by a plugin");
    // The first reason counts.
    let _ = container.evicted.set(reason.to_owned());
    let grace = Duration::ZERO;
    pod.post_container(&container.id, ContainerWork::Stop { grace });
    Ok(())
}

/// Applies updates of other containers; a failure is logged and the rest goes on (12.2).
/// Returns those that failed and were not to be ignored.
async fn update_others(services: &Services, updates: &[ContainerUpdate]) -> Vec<ContainerUpdate> {
    let mut failed = Vec::new();
    for update in updates {
        let Some(resources) = update
            .linux
            .as_ref()
            .and_then(|linux| linux.resources.clone())
        else {
            continue;
        };
        let change = Change {
            nri: Some(resources),
            ..Change::default()
        };
        let result = match services.registry.container(&update.container_id) {
            Ok((_, container)) => update::apply(services, &container, &change).await,
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            tracing::warn!(container = %update.container_id, %error, "update by a plugin");
            if !update.ignore_failure {
                failed.push(update.clone());
            }
        }
    }
    failed
}

/// The daemon as plugins reach it, and as it watches them. Weak: the services own the
/// adaptation, which owns this.
struct Eyes(Weak<Services>);

impl Source for Eyes {
    /// The library leaves out what a plugin gets, or got, events for.
    fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let Some(services) = self.0.upgrade() else {
            return snapshot;
        };
        for pod in services.registry.all() {
            let record = pod.cell.get();
            let kept = record.phase != PodPhase::NotReady || record.failed_step.is_none();
            if kept && record.hooks.remove == Mark::None {
                snapshot.pods.push(messages::pod(&pod));
            }
            for container in pod.containers() {
                let record = container.cell.get();
                let lives = record.phase != ContainerPhase::Exited;
                if lives && container.has_message() && record.hooks.remove == Mark::None {
                    snapshot.containers.push(messages::container(&container));
                }
            }
        }
        snapshot
    }

    fn update(&self, updates: Vec<ContainerUpdate>) -> BoxFuture<'_, Vec<ContainerUpdate>> {
        Box::pin(async move {
            match self.0.upgrade() {
                Some(services) => update_others(&services, &updates).await,
                None => updates,
            }
        })
    }

    fn evict(
        &self,
        container: String,
        reason: String,
    ) -> BoxFuture<'_, std::result::Result<(), String>> {
        Box::pin(async move {
            let services = self.0.upgrade().ok_or("the runtime is ending")?;
            evict_one(&services, &container, &reason).map_err(|error| error.to_string())
        })
    }
}

impl Observer for Eyes {
    fn delivered(&self, delivery: &Delivery) {
        // Told after the merge, which knows who set what.
        if delivery.event == Event::CreateContainer {
            return;
        }
        let Some(services) = self.0.upgrade() else {
            return;
        };
        let Some(pod) = services.registry.any(&delivery.pod) else {
            return;
        };
        let container = pod.container(&delivery.container);
        let subject = Journal::subject(&pod, container.as_deref());
        services
            .journal
            .record(subject, answer(delivery, Vec::new()));
    }

    fn plugin(&self, plugin: &PluginName<'_>, event: &PluginEvent) {
        // The library has logged it.
        if let Some(services) = self.0.upgrade()
            && let Some(life) = life(event)
        {
            let plugin = plugin.to_string();
            let what = What::PluginLife { plugin, life };
            services.journal.record(Subject::daemon(), what);
        }
    }
}

fn answer(delivery: &Delivery, changed: Vec<String>) -> What {
    let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    What::Plugin {
        hook: nri::mask::event_name(delivery.event).to_owned(),
        plugin: delivery.plugin.to_string(),
        outcome: outcome(&delivery.outcome),
        took_ns: nanoseconds(delivery.took),
        adjusted: delivery.adjusted,
        changed,
        updates: small(delivery.updates),
        evictions: small(delivery.evictions),
    }
}

/// Names of what a plugin set in a container, such as `Env DEMO`; never a value.
fn changed(owners: &proto_nri::OwningPlugins, container: &str, plugin: &str) -> Vec<String> {
    let Some(fields) = owners.owners.get(container) else {
        return Vec::new();
    };
    let name = |field: &i32| {
        proto_nri::Field::try_from(*field).map_or("an unknown field", |field| field.as_str_name())
    };
    let mine = |owner: &String| owner.split(',').any(|one| one == plugin);
    let simple = fields.simple.iter().filter(|(_, owner)| mine(owner));
    let mut names: Vec<_> = simple.map(|(field, _)| name(field).to_owned()).collect();
    for (field, keys) in &fields.compound {
        let keys = keys.owners.iter().filter(|(_, owner)| mine(owner));
        names.extend(keys.map(|(key, _)| format!("{} {key}", name(field))));
    }
    names
}

fn outcome(outcome: &nri::Outcome) -> trace::Outcome {
    use nri::Outcome as From;
    use trace::Outcome as To;
    match outcome {
        From::Answered => To::Answered,
        From::Refused(reason) => To::Refused(reason.clone()),
        From::TimedOut => To::TimedOut,
        From::Lost(reason) => To::Lost(reason.clone()),
        From::Garbled(reason) => To::Garbled(reason.clone()),
        From::Panicked(reason) => To::Panicked(reason.clone()),
        From::Conflict(reason) => To::Conflict(reason.clone()),
        From::Denied(reason) => To::Denied(reason.clone()),
        From::Skipped => To::Skipped,
        From::NotSubscribed => To::NotSubscribed,
        From::Joining => To::Joining,
        From::Absent => To::Absent,
        From::Cancelled => To::Cancelled,
    }
}

/// `None` for what the log alone tells.
fn life(event: &PluginEvent) -> Option<Life> {
    let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Some(match event {
        PluginEvent::Launched => Life::Launched,
        PluginEvent::Registered { version, .. } => Life::Registered {
            version: match version {
                nri::Version::V1Alpha1 => "v1alpha1".to_owned(),
                nri::Version::V1Beta1 => "v1beta1".to_owned(),
            },
        },
        PluginEvent::Configured { events } => Life::Configured {
            events: events
                .iter()
                .map(|e| nri::mask::event_name(e).to_owned())
                .collect(),
        },
        PluginEvent::Synchronized {
            pods,
            containers,
            took,
        } => Life::Synchronized {
            pods: small(*pods),
            containers: small(*containers),
            took_ns: nanoseconds(*took),
        },
        PluginEvent::Deprecated { .. } => return None,
        PluginEvent::Unsolicited {
            updates,
            failed,
            evictions,
        } => Life::Unsolicited {
            updates: small(*updates),
            failed: small(*failed),
            evictions: small(*evictions),
        },
        PluginEvent::Rejected { reason } => Life::Rejected {
            reason: reason.clone(),
        },
        PluginEvent::Closed { reason } => Life::Closed {
            reason: reason.clone(),
        },
        PluginEvent::Restarting { after } => Life::Restarting {
            after_ns: nanoseconds(*after),
        },
        PluginEvent::Dropped { event } => Life::Dropped {
            hook: nri::mask::event_name(*event).to_owned(),
        },
    })
}

/// How a container's phase is told to plugins.
pub fn state(phase: ContainerPhase) -> ContainerState {
    match phase {
        ContainerPhase::Creating | ContainerPhase::Created => ContainerState::ContainerCreated,
        ContainerPhase::Running => ContainerState::ContainerRunning,
        ContainerPhase::Exited => ContainerState::ContainerStopped,
        ContainerPhase::Unknown => ContainerState::ContainerUnknown,
    }
}

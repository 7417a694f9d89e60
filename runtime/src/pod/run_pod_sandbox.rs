//! RunPodSandbox: phases, entered one after the other and undone in reverse, so that a failure anywhere leaves
//! nothing (invariant 7):
//!
//! ```text
//!  Record ─► Cgroup ─► Namespaces ─► Network ─► Pause ─► HookBegun ─► Hook ─► Ready
//!     │name     │          │ns,files    │addresses  │process              │plugins told
//! ```
//!
//! Each phase has its undo ([`RunPodSandbox::undo`] has an arm for each), so nothing has to be remembered but how far
//! it came; a phase that failed half way is undone like one that was entered. What a crash needs in order to undo is
//! on disk before each effect: the record, and then `network_begun` before the network is asked (CRI-111).

use std::sync::Arc;

use proto_cri::v1 as cri;
use tokio::sync::watch;

use super::{
    driver::Driver,
    error::{Error, Kind, Result},
    event_log::{self, did},
    events::{EventKind, Events},
    files,
    hooks::Hooks,
    pause::Pauses,
    record::{Mark, PodPhase, PodRecord},
    registry::{Registry, Reservation, new_id},
    run_phase::{PHASES, Phase},
    sandbox::Sandboxes,
    selinux,
    state::Pod,
    steps::Steps,
};
use crate::{
    clock,
    config::NriNetwork,
    oci::{self, HostFacts, PidSharing, SandboxPlan},
    spans,
    store::{Cell, Store},
    trace::{Action, EventLog},
};

pub struct RunPodSandbox {
    pub registry: Arc<Registry>,
    pub records: Store<PodRecord>,
    pub sandboxes: Arc<Sandboxes>,
    pub pauses: Arc<Pauses>,
    pub host: Arc<HostFacts>,
    pub hooks: Arc<Hooks>,
    pub events: Events,
    pub log: EventLog,
    /// For the driver of each pod.
    pub steps: Arc<Steps>,
}

impl RunPodSandbox {
    /// Makes a sandbox, or waits for the one that is being made for the same request (CRI-113).
    ///
    /// # Errors
    /// Invalid for a config that cannot be served, Exists for a name that is taken, else the step
    /// that failed, with nothing left.
    pub async fn run(
        self: &Arc<Self>,
        config: cri::PodSandboxConfig,
        runtime_handler: String,
    ) -> Result<String> {
        let (record, plan) = self.check(config, runtime_handler)?;
        let name = record.name_key();
        let (outcome, starting) = watch::channel(None);
        match self.registry.reserve(&name, &record.id, starting.clone()) {
            Reservation::New => {
                let id = record.id.clone();
                // Detached: a client that goes away must not orphan half a sandbox (CRI-008).
                tokio::spawn(Arc::clone(self).make(record, plan, outcome, spans::here()));
                wait(id, starting).await
            }
            Reservation::Starting(id, starting) => {
                let id = wait(id, starting).await?;
                match self.registry.any(&id) {
                    Some(pod) if !asks_for(&record, &pod) => again(&pod, &record),
                    _ => Ok(id),
                }
            }
            Reservation::There(pod) => again(&pod, &record),
        }
    }

    /// Judges the request; touches nothing.
    fn check(
        &self,
        config: cri::PodSandboxConfig,
        runtime_handler: String,
    ) -> Result<(PodRecord, SandboxPlan)> {
        let metadata = config
            .metadata
            .as_ref()
            .ok_or_else(|| Error::invalid("RunPodSandbox: config.metadata is missing"))?;
        for (field, value) in [
            ("name", &metadata.name),
            ("namespace", &metadata.namespace),
            ("uid", &metadata.uid),
        ] {
            if value.is_empty() {
                return Err(Error::invalid(format!(
                    "RunPodSandbox: config.metadata.{field} is empty"
                )));
            }
        }
        let policies = &self.sandboxes.describe.policies;
        let policy = policies.get(&runtime_handler).ok_or_else(|| {
            let refusal = policies.refusal(&runtime_handler);
            Error::invalid(format!("RunPodSandbox: {refusal}"))
        })?;
        files::check(&config).map_err(|error| error.at("RunPodSandbox"))?;
        let plan = oci::plan(&config, &self.host, policy)?;
        let id = new_id()?;
        let selinux = selinux::of_new_pod(&config, &id, &self.registry, &self.host)?;
        let processes = &self.sandboxes.processes;
        let linux = config.linux.as_ref();
        let parent = linux.map_or("", |linux| linux.cgroup_parent.as_str());
        let group = processes
            .cgroups
            .pod(parent, &policy.default_cgroup_parent, &id)
            .map_err(|error| Error::invalid(format!("RunPodSandbox: cgroup_parent: {error}")))?;
        let record = PodRecord {
            id,
            runtime_handler,
            created_at: clock::now_ns(),
            cgroup_parent: group.path().as_str().to_owned(),
            overhead: linux.and_then(|linux| linux.overhead.clone()),
            resources: linux.and_then(|linux| linux.resources.clone()),
            boot_id: processes.boot_id.clone(),
            selinux,
            config,
            ..PodRecord::default()
        };
        Ok((record, plan))
    }

    /// The whole way, to the driver that goes on.
    async fn make(
        self: Arc<Self>,
        record: PodRecord,
        plan: SandboxPlan,
        outcome: watch::Sender<Option<Result<()>>>,
        asker: spans::Context,
    ) {
        let (pod, queue) = Pod::new(Cell::of(self.records.clone(), record));
        self.registry.publish(&pod);
        let subject = event_log::subject(&pod, None);
        let phases = asker.scope(self.phases(&pod, &plan));
        let result = event_log::during("RunPodSandbox", &self.log, subject, phases).await;
        // What could not be undone stays visible, for Stop and Remove (CRI-112).
        let alive = result.is_ok() || pod.cell.get().failed_step.is_some();
        if alive {
            self.events.tell(&pod, None, EventKind::Created);
            let became = match &result {
                Ok(()) => EventKind::Started,
                Err(_) => EventKind::Stopped,
            };
            self.events.tell(&pod, None, became);
        } else {
            self.registry.forget(&pod.cell.get());
        }
        let text = format!("sandbox {}", pod.id);
        outcome.send_replace(Some(result.map_err(|error| error.at(&text))));
        if alive {
            let steps = Arc::clone(&self.steps);
            Driver::new(pod, queue, steps).start();
        }
    }

    async fn phases(&self, pod: &Arc<Pod>, plan: &SandboxPlan) -> Result<()> {
        for (at, phase) in PHASES.into_iter().enumerate() {
            let entering = self.enter(phase, pod, plan);
            let entered = match phase.step(plan) {
                Some(step) => spans::step(step, entering).await,
                None => entering.await,
            };
            if let Err(error) = entered {
                for entered in PHASES[..=at].iter().rev() {
                    let undone = self.undo(*entered, pod).await;
                    note(pod, *entered, undone).await;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    async fn enter(&self, phase: Phase, pod: &Arc<Pod>, plan: &SandboxPlan) -> Result<()> {
        phase.fault().await?;
        match phase {
            Phase::Record => drop(pod.cell.change(|_| {}).await?),
            Phase::Cgroup => self.sandboxes.make_cgroup(&pod.cell.get()).await?,
            Phase::Namespaces => {
                let record = pod.cell.get();
                let made = self.sandboxes.make_namespaces(&record, plan).await?;
                did(&self.log, pod, None, Action::Namespaces);
                let networked = self.sandboxes.nri_network != NriNetwork::Only;
                // One write for the paths and for the intent that comes next.
                let write = |record: &mut PodRecord| {
                    record.network_begun = made.net.is_some() && networked;
                    record.namespaces = made;
                };
                pod.cell.change(write).await?;
            }
            Phase::Network => {
                if let Some(network) = self.sandboxes.attach(&pod.cell.get()).await? {
                    let ips = network.ips.clone();
                    did(&self.log, pod, None, Action::Network { ips });
                    let write = |record: &mut PodRecord| record.network = Some(network);
                    pod.cell.change(write).await?;
                }
            }
            Phase::Pause if plan.pid == PidSharing::Pod => {
                self.pauses.start(pod).await?;
            }
            Phase::HookBegun if self.hooks.enabled() => {
                let write = |record: &mut PodRecord| record.hooks.run = Mark::Begun;
                pod.cell.change(write).await?;
            }
            Phase::Pause | Phase::HookBegun => {}
            Phase::Hook => {
                let ips = self.hooks.run_pod_sandbox(pod).await?;
                self.sandboxes.judge(&pod.cell.get(), &ips)?;
                if !ips.is_empty() {
                    let ips = ips.iter().map(ToString::to_string).collect();
                    let write = |record: &mut PodRecord| record.plugin_ips = ips;
                    pod.cell.change(write).await?;
                }
            }
            Phase::Ready => {
                let write = |record: &mut PodRecord| {
                    record.hooks.run = Mark::Done;
                    record.phase = PodPhase::Ready;
                };
                pod.cell.change(write).await?;
                self.records.sync().await?;
                did(&self.log, pod, None, Action::Ready);
            }
        }
        Ok(())
    }

    /// Idempotent, but for the hook.
    async fn undo(&self, phase: Phase, pod: &Pod) -> Result<()> {
        match phase {
            Phase::Ready | Phase::HookBegun => {}
            // Both events, also where the hook itself had succeeded (NRI-1118, NRI-1119).
            Phase::Hook => self.hooks.undo_run_pod_sandbox(pod).await,
            Phase::Pause => self.pauses.stop(pod).await?,
            Phase::Network => {
                if self.sandboxes.release_network(&pod.cell.get()).await? {
                    did(&self.log, pod, None, Action::NetworkGone);
                }
            }
            Phase::Namespaces => self.sandboxes.release_namespaces(&pod.id).await?,
            Phase::Cgroup => self.sandboxes.release_cgroup(&pod.cell.get()).await?,
            // What could not be undone needs its record: Stop and Remove, or the next daemon, go on from there.
            Phase::Record if pod.cell.get().failed_step.is_some() => {}
            Phase::Record => pod.cell.delete().await?,
        }
        Ok(())
    }

    /// For a sandbox whose creation was cut off by the end of the daemon.
    ///
    /// # Errors
    /// The first undo that failed.
    pub async fn undo_all(&self, pod: &Pod) -> Result<()> {
        let known = pod.cell.get().hooks.run != Mark::None;
        for phase in PHASES.into_iter().rev() {
            if phase != Phase::Hook || known {
                self.undo(phase, pod).await?;
            }
        }
        Ok(())
    }
}

async fn wait(id: String, mut starting: watch::Receiver<Option<Result<()>>>) -> Result<String> {
    let outcome = starting.wait_for(Option::is_some).await;
    match outcome.as_deref() {
        Ok(Some(result)) => result.clone().map(|()| id),
        _ => Err(Error::new(
            Kind::Unavailable,
            format!("sandbox {id}: the daemon is ending"),
        )),
    }
}

fn asks_for(wanted: &PodRecord, pod: &Pod) -> bool {
    let record = pod.cell.get();
    record.config == wanted.config && record.runtime_handler == wanted.runtime_handler
}

/// The name is taken by a sandbox that is there. As long as no client has named that, this may be the one that asked for
/// it and lost the answer. A sandbox that has ended, or whose creation failed and that stayed, is nobody's answer.
fn again(pod: &Pod, wanted: &PodRecord) -> Result<String> {
    let record = pod.cell.get();
    let lives = record.phase == PodPhase::Ready && record.hooks.stop == Mark::None;
    if asks_for(wanted, pod) && lives && !pod.is_known() {
        return Ok(pod.id.clone());
    }
    let mut text = format!(
        "sandbox name {:?}: taken by sandbox {}",
        record.name_key(),
        pod.id
    );
    if let Some(step) = &record.failed_step {
        text += &format!(
            ", whose creation failed and was not wholly undone ({step}): stop and remove it first"
        );
    }
    Err(Error::new(Kind::Exists, text))
}

/// An undo that failed keeps the sandbox, NOTREADY, with the step named (invariant 7).
async fn note(pod: &Pod, phase: Phase, undone: Result<()>) {
    let Err(error) = undone else { return };
    let step = phase.leaves();
    tracing::error!(pod = %pod.id, step, %error, "undo of a failed RunPodSandbox");
    let written = pod
        .cell
        .record_fact(|record| {
            record.phase = PodPhase::NotReady;
            // Plugins were told both by the undo of their hook, if they were told of Run.
            record.hooks.stop = Mark::Done;
            record.hooks.remove = Mark::Done;
            record
                .failed_step
                .get_or_insert_with(|| format!("{step}: {error}"));
        })
        .await;
    if let Err(error) = written {
        tracing::error!(pod = %pod.id, %error, "the failed undo is not on record");
    }
}

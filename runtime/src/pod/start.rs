//! RunPodSandbox in typed phases. A phase is entered by doing its work and left by its undo,
//! so that a failure anywhere leaves nothing (invariant 7):
//!
//! ```text
//!  Reserved ─► Cgroup ─► Netns ─► Networked ─► Paused ─► Hooked ─► Ready
//!     │name      │        │ns,files  │addresses   │pause    │plugins told
//! ```
//!
//! What a crash needs in order to undo is on disk before each effect: the record, and then
//! `network_begun` before the network is asked (CRI-111).

use std::sync::Arc;

use proto_cri::v1 as cri;
use tokio::sync::watch;

use super::{
    Pod,
    container::cgroup,
    driver::Driver,
    error::{Error, Kind, Result, Step as _},
    events::Change,
    files::{self, Files},
    journal::{self, Journal, Step},
    pause,
    record::{Mark, Namespaces, Network, PodHooks, PodPhase, PodRecord, pod_name_key},
    registry::Reservation,
    stop,
};
use crate::{clock, fault, oci, services::Services, store::Cell};

/// Makes a sandbox, or waits for the one that is being made for the same request (CRI-113).
///
/// # Errors
/// Invalid for a config that cannot be served, Exists for a name that is taken, else the step
/// that failed, with nothing left.
pub async fn run(
    services: &Arc<Services>,
    config: cri::PodSandboxConfig,
    runtime_handler: String,
) -> Result<String> {
    let (record, plan) = check(services, config, runtime_handler)?;
    let name = record.name_key();
    let (outcome, starting) = watch::channel(None);
    match services
        .registry
        .reserve(&name, &record.id, starting.clone())
    {
        Reservation::New => {
            let id = record.id.clone();
            let services = Arc::clone(services);
            // Detached: a client that goes away must not orphan half a sandbox (CRI-008).
            tokio::spawn(make(services, record, plan, outcome));
            wait(id, starting).await
        }
        Reservation::Starting(id, starting) => wait(id, starting).await,
        Reservation::There(pod) => again(&pod, &record),
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

/// The name is taken by a sandbox that is there. If nobody heard that it was made, this is the
/// client that tries again.
fn again(pod: &Pod, wanted: &PodRecord) -> Result<String> {
    let record = pod.cell.get();
    if record.config == wanted.config && pod.take_undelivered() {
        return Ok(pod.id.clone());
    }
    Err(Error::new(
        Kind::Exists,
        format!(
            "sandbox name \"{}\": taken by sandbox {}",
            pod_name_key(&record.metadata()),
            pod.id
        ),
    ))
}

/// Judges the request; touches nothing.
fn check(
    services: &Services,
    config: cri::PodSandboxConfig,
    runtime_handler: String,
) -> Result<(PodRecord, oci::SandboxPlan)> {
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
    if !runtime_handler.is_empty() {
        return Err(Error::invalid(format!(
            "RunPodSandbox: runtime handler \"{runtime_handler}\": there is none of this name"
        )));
    }
    files::check(&config).map_err(|error| error.at("RunPodSandbox"))?;
    let plan = oci::plan(&config, &services.host, &services.policy).map_err(Error::from)?;
    let id = services.new_id()?;
    let parent = config
        .linux
        .as_ref()
        .map_or("", |linux| linux.cgroup_parent.as_str());
    let group = services
        .cgroups
        .pod(parent, &services.config.cgroup.parent, &id)
        .map_err(|error| Error::invalid(format!("RunPodSandbox: cgroup_parent: {error}")))?;
    let record = PodRecord {
        id,
        runtime_handler,
        created_at: clock::now_ns(),
        phase: PodPhase::Creating,
        hooks: PodHooks::default(),
        cgroup_parent: group.path().as_str().to_owned(),
        namespaces: Namespaces::default(),
        network_begun: false,
        network: None,
        pause: None,
        failed_step: None,
        overhead: config
            .linux
            .as_ref()
            .and_then(|linux| linux.overhead.clone()),
        resources: config
            .linux
            .as_ref()
            .and_then(|linux| linux.resources.clone()),
        boot_id: services.boot_id.clone(),
        config,
    };
    Ok((record, plan))
}

/// The whole way, and the driver afterwards.
async fn make(
    services: Arc<Services>,
    record: PodRecord,
    plan: oci::SandboxPlan,
    outcome: watch::Sender<Option<Result<()>>>,
) {
    let cell = Cell::loaded(services.pods.clone(), record);
    let (pod, queue) = Pod::new(Arc::clone(&services), cell);
    services.registry.publish(&pod);
    let subject = Journal::subject(&pod, None);
    let result = journal::during(
        "RunPodSandbox",
        &services.journal,
        subject,
        phases(&pod, &plan),
    )
    .await;
    match &result {
        Ok(()) => {
            services.events.tell(&pod, None, Change::Created);
            services.events.tell(&pod, None, Change::Started);
        }
        Err(_) => {
            // What could not be undone stays visible, for Stop and Remove (CRI-112).
            if pod.cell.get().failed_step.is_none() {
                services.registry.forget(&pod.cell.get());
            } else {
                services.events.tell(&pod, None, Change::Created);
                services.events.tell(&pod, None, Change::Stopped);
            }
        }
    }
    let alive = result.is_ok() || pod.cell.get().failed_step.is_some();
    let text = format!("sandbox {}", pod.id);
    let heard = outcome.receiver_count() > 0;
    outcome.send_replace(Some(result.map_err(|error| error.at(&text))));
    if !heard {
        pod.set_undelivered();
    }
    if alive {
        Driver::new(pod, queue).run().await;
    }
}

async fn phases(pod: &Arc<Pod>, plan: &oci::SandboxPlan) -> Result<()> {
    let reserved = Reserved { pod };
    fault::pass("pod.start.reserved")
        .await
        .map_err(Error::failed)?;
    pod.cell.change(|_| {}).await?;
    match reserved.go(plan).await {
        Ok(()) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The name and the record are ours.
struct Reserved<'a> {
    pod: &'a Arc<Pod>,
}

impl Reserved<'_> {
    async fn go(self, plan: &oci::SandboxPlan) -> Result<()> {
        let result = match Cgroup::enter(self.pod).await {
            Ok(phase) => phase.go(plan).await,
            Err(error) => Err(error),
        };
        if result.is_err() {
            let undone = self.pod.cell.delete().await;
            note(self.pod, "record", undone.map_err(Error::from)).await;
        }
        result
    }
}

/// The pod's cgroup is there.
struct Cgroup<'a> {
    pod: &'a Arc<Pod>,
}

impl<'a> Cgroup<'a> {
    async fn enter(pod: &'a Arc<Pod>) -> Result<Self> {
        fault::pass("pod.start.cgroup")
            .await
            .map_err(Error::failed)?;
        let group = cgroup(&pod.services, &pod.cell.get().cgroup_leaf())?;
        crate::store::blocking(move || group.create())
            .await
            .step("cgroup")?;
        Ok(Self { pod })
    }

    async fn go(self, plan: &oci::SandboxPlan) -> Result<()> {
        let result = match Netns::enter(self.pod, plan).await {
            Ok(phase) => phase.go(plan).await,
            Err(error) => Err(error),
        };
        if result.is_err() {
            note(self.pod, "cgroup", stop::release_cgroup(self.pod).await).await;
        }
        result
    }
}

/// Namespaces are pinned, `lo` is up, hostname, sysctls and files are set.
struct Netns<'a> {
    pod: &'a Arc<Pod>,
}

impl<'a> Netns<'a> {
    async fn enter(pod: &'a Arc<Pod>, plan: &oci::SandboxPlan) -> Result<Self> {
        let entered = Self::pin(pod, plan).await;
        if entered.is_err() {
            note(pod, "namespaces", stop::release_namespaces(pod).await).await;
        }
        entered.map(|()| Self { pod })
    }

    async fn pin(pod: &Arc<Pod>, plan: &oci::SandboxPlan) -> Result<()> {
        fault::pass("pod.start.netns")
            .await
            .map_err(Error::failed)?;
        let services = Arc::clone(&pod.services);
        let record = pod.cell.get();
        let (id, plan) = (pod.id.clone(), plan.clone());
        let pinned = crate::store::blocking(move || {
            Files::of(&services.config.state, &id).make(
                &services.hostname_of(&record),
                record.config.dns_config.as_ref(),
                !plan.host_ipc,
            )?;
            services.pin(&plan, &id).step("namespaces")
        })
        .await?;
        pod.services.journal.step(pod, None, Step::Namespaces);
        // One write for the paths and for the intent that comes next.
        pod.cell
            .change(|record| {
                record.namespaces = Namespaces {
                    net: pinned.net,
                    ipc: pinned.ipc,
                    uts: pinned.uts,
                    user: pinned.user,
                };
                record.network_begun = record.namespaces.net.is_some();
            })
            .await?;
        Ok(())
    }

    async fn go(self, plan: &oci::SandboxPlan) -> Result<()> {
        let result = match Networked::enter(self.pod).await {
            Ok(phase) => phase.go(plan).await,
            Err(error) => Err(error),
        };
        if result.is_err() {
            note(
                self.pod,
                "namespaces",
                stop::release_namespaces(self.pod).await,
            )
            .await;
        }
        result
    }
}

/// Addresses are assigned.
struct Networked<'a> {
    pod: &'a Arc<Pod>,
}

impl<'a> Networked<'a> {
    async fn enter(pod: &'a Arc<Pod>) -> Result<Self> {
        let entered = Self::attach(pod).await;
        if entered.is_err() {
            note(pod, "network", stop::release_network(pod).await).await;
        }
        entered.map(|()| Self { pod })
    }

    async fn attach(pod: &Arc<Pod>) -> Result<()> {
        fault::pass("pod.start.network")
            .await
            .map_err(Error::failed)?;
        let record = pod.cell.get();
        let Some(netns) = record.namespaces.net.clone() else {
            return Ok(());
        };
        let request = pod.services.attach_request(&record, netns)?;
        let attachment = pod.services.network.attach(request).await.step("network")?;
        for warning in &attachment.warnings {
            tracing::warn!(pod = %pod.id, %warning, "network");
        }
        let network = Network {
            ips: attachment.ips.iter().map(ToString::to_string).collect(),
            result: attachment.result,
        };
        pod.services.journal.step(
            pod,
            None,
            Step::Network {
                ips: network.ips.clone(),
            },
        );
        pod.cell
            .change(|record| record.network = Some(network))
            .await?;
        Ok(())
    }

    async fn go(self, plan: &oci::SandboxPlan) -> Result<()> {
        let result = match Paused::enter(self.pod, plan).await {
            Ok(phase) => phase.go().await,
            Err(error) => Err(error),
        };
        if result.is_err() {
            note(self.pod, "network", stop::release_network(self.pod).await).await;
        }
        result
    }
}

/// The pause process runs, where the pod shares its PID namespace.
struct Paused<'a> {
    pod: &'a Arc<Pod>,
}

impl<'a> Paused<'a> {
    async fn enter(pod: &'a Arc<Pod>, plan: &oci::SandboxPlan) -> Result<Self> {
        fault::pass("pod.start.pause")
            .await
            .map_err(Error::failed)?;
        if plan.pid == oci::PidSharing::Pod {
            let entered = pause::start(pod, &plan.seccomp).await;
            if let Err(error) = entered {
                note(pod, "pause", pause::stop(pod).await).await;
                return Err(error);
            }
        }
        Ok(Self { pod })
    }

    async fn go(self) -> Result<()> {
        let result = match Hooked::enter(self.pod).await {
            Ok(phase) => phase.go().await,
            Err(error) => Err(error),
        };
        if result.is_err() {
            note(self.pod, "pause", pause::stop(self.pod).await).await;
        }
        result
    }
}

/// Every plugin agreed; the last step before Ready (NRI-1110 to NRI-1117).
struct Hooked<'a> {
    pod: &'a Arc<Pod>,
}

impl<'a> Hooked<'a> {
    async fn enter(pod: &'a Arc<Pod>) -> Result<Self> {
        fault::pass("pod.start.hook").await.map_err(Error::failed)?;
        if pod.services.hooks.active() {
            pod.cell
                .change(|record| record.hooks.run = Mark::Begun)
                .await?;
        }
        if let Err(error) = pod.services.hooks.run_pod(pod).await {
            pod.services.hooks.undo_run_pod(pod).await;
            return Err(error);
        }
        Ok(Self { pod })
    }

    async fn go(self) -> Result<()> {
        let pod = self.pod;
        let result = async {
            fault::pass("pod.start.ready")
                .await
                .map_err(Error::failed)?;
            pod.cell
                .change(|record| {
                    record.hooks.run = Mark::Done;
                    record.phase = PodPhase::Ready;
                })
                .await?;
            pod.services.journal.step(pod, None, Step::Ready);
            Ok(())
        }
        .await;
        if result.is_err() {
            // Both events, though the hook itself had succeeded (NRI-1119).
            pod.services.hooks.undo_run_pod(pod).await;
        }
        result
    }
}

/// An undo that failed keeps the sandbox, NOTREADY, with the step named (invariant 7).
async fn note(pod: &Pod, step: &str, undone: Result<()>) {
    let Err(error) = undone else { return };
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

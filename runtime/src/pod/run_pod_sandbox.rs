//! RunPodSandbox: phases, entered in order and undone in reverse, so that any failure leaves
//! nothing (invariant 7):
//!
//! ```text
//!  record ─► cgroup ─► namespaces ─► network ─► pause ─► hook ─► ready
//!     │name     │          │ns,files    │addresses  │process  │plugins agreed
//! ```
//!
//! Each phase is a row of [`PHASES`] with its undo. A failed phase is undone too. Before each
//! effect, the disk has the facts that an undo after a crash needs: the record, then
//! `network_begun` before the network request (CRI-111), and the hook's mark.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use proto_cri::v1 as cri;
use tokio::sync::watch;

use super::{
    driver::Driver,
    error::{Error, Kind, Result},
    event_log, files,
    notices::Change,
    pause,
    pods::Pods,
    record::{Mark, PodPhase, PodRecord},
    registry::{Reservation, new_id},
    selinux,
    state::Pod,
};
use crate::{
    clock,
    config::NriNetwork,
    fault::{self, Fired},
    oci::{self, PidSharing, SandboxPlan},
    spans,
    store::Cell,
    trace::Action,
};

/// Makes a sandbox, or waits for one that is being made for the same request (CRI-113).
///
/// # Errors
/// Invalid for a config that cannot be served, Exists for a used name, else the step that failed,
/// with nothing left.
pub async fn run(cx: &Arc<Pods>, request: cri::RunPodSandboxRequest) -> Result<String> {
    let config = request
        .config
        .ok_or_else(|| Error::invalid("RunPodSandbox: config is missing"))?;
    let (record, plan) = check(cx, config, request.runtime_handler)?;
    let name = record.name_key();
    let (outcome, starting) = watch::channel(None);
    match cx.registry.reserve(&name, &record.id, starting.clone()) {
        Reservation::New => {
            let id = record.id.clone();
            // Detached: a client's cancellation must not orphan half a sandbox (CRI-008).
            tokio::spawn(make(Arc::clone(cx), record, plan, outcome, spans::here()));
            wait(id, starting).await
        }
        Reservation::Starting(id, starting) => {
            let id = wait(id, starting).await?;
            match cx.registry.any(&id) {
                Some(pod) if !asks_for(&record, &pod) => again(&pod, &record),
                _ => Ok(id),
            }
        }
        Reservation::There(pod) => again(&pod, &record),
    }
}

/// Checks the request, without side effects.
fn check(
    cx: &Pods,
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
    let (node, policies) = (&cx.node, &cx.node.policies);
    let policy = policies.get(&runtime_handler).ok_or_else(|| {
        let refusal = policies.refusal(&runtime_handler);
        Error::invalid(format!("RunPodSandbox: {refusal}"))
    })?;
    files::check(&config).map_err(|error| error.at("RunPodSandbox"))?;
    let plan = oci::plan(&config, &node.host, policy)?;
    let id = new_id()?;
    let selinux = selinux::of_new_pod(&config, &id, &cx.registry, &node.host)?;
    let linux = config.linux.as_ref();
    let parent = linux.map_or("", |linux| linux.cgroup_parent.as_str());
    let group = node
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
        boot_id: node.boot_id.clone(),
        selinux,
        config,
        ..PodRecord::default()
    };
    Ok((record, plan))
}

/// Makes the sandbox and starts its driver.
async fn make(
    cx: Arc<Pods>,
    record: PodRecord,
    plan: SandboxPlan,
    outcome: watch::Sender<Option<Result<()>>>,
    asker: spans::Context,
) {
    let (pod, queue) = Pod::new(Cell::of(cx.node.pods.clone(), record));
    cx.registry.publish(&pod);
    let subject = event_log::subject(&pod, None);
    let phases = asker.scope(phases(&cx, &pod, &plan));
    let result = event_log::during("RunPodSandbox", &cx.notices.log, subject, phases).await;
    // Incomplete undo: the sandbox stays visible, for Stop and Remove (CRI-112).
    let left = result.is_err() && pod.cell.get().failed_step.is_some();
    if left {
        cx.notices.became(&pod, None, Change::LEFT);
    }
    let alive = result.is_ok() || left;
    if !alive {
        cx.registry.forget(&pod.cell.get());
    }
    let text = format!("sandbox {}", pod.id);
    outcome.send_replace(Some(result.map_err(|error| error.at(&text))));
    if alive {
        Driver::new(pod, queue, cx).start();
    }
}

type Step<'a> = BoxFuture<'a, Result<()>>;

struct Phase {
    /// The leftovers if its undo failed.
    leaves: &'static str,
    /// The name of its span, if any. The hook has the spans of plugins.
    span: fn(&SandboxPlan) -> Option<&'static str>,
    /// Its fault point: a test makes the daemon fail there, before the phase.
    fault: fn() -> BoxFuture<'static, Result<(), Fired>>,
    enter: for<'a> fn(&'a Arc<Pods>, &'a Arc<Pod>, &'a SandboxPlan) -> Step<'a>,
    /// Idempotent, except for the hook.
    undo: for<'a> fn(&'a Pods, &'a Pod) -> Step<'a>,
}

/// In order.
static PHASES: [Phase; 7] = [
    // Reserves the name and writes the record.
    Phase {
        leaves: "record",
        span: |_| None,
        fault: || Box::pin(fault::pass("pod.start.reserved")),
        enter: |_, pod, _| Box::pin(write_record(pod)),
        undo: |_, pod| Box::pin(delete_record(pod)),
    },
    // Makes the pod's cgroup.
    Phase {
        leaves: "cgroup",
        span: |_| Some("make the cgroup"),
        fault: || Box::pin(fault::pass("pod.start.cgroup")),
        enter: |cx, pod, _| Box::pin(async { cx.node.make_cgroup(&pod.cell.get()).await }),
        undo: |cx, pod| Box::pin(async { cx.node.release_cgroup(&pod.cell.get()).await }),
    },
    // Pins namespaces; sets up `lo`, hostname, sysctls and files.
    Phase {
        leaves: "namespaces",
        span: |_| Some("make namespaces"),
        fault: || Box::pin(fault::pass("pod.start.netns")),
        enter: |cx, pod, plan| Box::pin(make_namespaces(cx, pod, plan)),
        undo: |cx, pod| Box::pin(cx.node.release_namespaces(&pod.id)),
    },
    // Assigns addresses.
    Phase {
        leaves: "network",
        span: |_| Some("attach the network"),
        fault: || Box::pin(fault::pass("pod.start.network")),
        enter: |cx, pod, _| Box::pin(attach_network(cx, pod)),
        undo: |cx, pod| Box::pin(release_network(cx, pod)),
    },
    // Starts the pause process if the pod shares its PID namespace.
    Phase {
        leaves: "pause",
        span: |plan| shares_pid(plan).then_some("start the pause process"),
        fault: || Box::pin(fault::pass("pod.start.pause")),
        enter: |cx, pod, plan| {
            if shares_pid(plan) {
                Box::pin(pause::start(cx, pod))
            } else {
                Box::pin(async { Ok(()) })
            }
        },
        undo: |cx, pod| Box::pin(pause::stop(&cx.node, &pod.id)),
    },
    // Asks every plugin (NRI-1110 to NRI-1117).
    Phase {
        leaves: "hook",
        span: |_| None,
        fault: || Box::pin(fault::pass("pod.start.hook")),
        enter: |cx, pod, _| Box::pin(run_hook(cx, pod)),
        undo: |cx, pod| Box::pin(undo_hook(cx, pod)),
    },
    // Lists the pod.
    Phase {
        leaves: "hook",
        span: |_| None,
        fault: || Box::pin(fault::pass("pod.start.ready")),
        enter: |cx, pod, _| Box::pin(set_ready(cx, pod)),
        undo: |_, _| Box::pin(async { Ok(()) }),
    },
];

async fn phases(cx: &Arc<Pods>, pod: &Arc<Pod>, plan: &SandboxPlan) -> Result<()> {
    for (at, phase) in PHASES.iter().enumerate() {
        let entering = async {
            (phase.fault)().await?;
            (phase.enter)(cx, pod, plan).await
        };
        let entered = match (phase.span)(plan) {
            Some(span) => spans::step(span, entering).await,
            None => entering.await,
        };
        if let Err(error) = entered {
            for entered in PHASES[..=at].iter().rev() {
                let undone = (entered.undo)(cx, pod).await;
                note(pod, entered.leaves, undone).await;
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Undoes a sandbox whose creation ended with the daemon.
///
/// # Errors
/// The first undo that failed.
pub async fn undo_all(cx: &Pods, pod: &Pod) -> Result<()> {
    for phase in PHASES.iter().rev() {
        (phase.undo)(cx, pod).await?;
    }
    Ok(())
}

async fn write_record(pod: &Pod) -> Result<()> {
    pod.cell.change(|_| {}).await?;
    Ok(())
}

/// A failed undo needs the record: Stop and Remove, or the next daemon, resume there.
async fn delete_record(pod: &Pod) -> Result<()> {
    if pod.cell.get().failed_step.is_none() {
        pod.cell.delete().await?;
    }
    Ok(())
}

async fn make_namespaces(cx: &Pods, pod: &Pod, plan: &SandboxPlan) -> Result<()> {
    let made = cx.node.make_namespaces(&pod.cell.get(), plan).await?;
    cx.notices.became(pod, None, Action::Namespaces);
    let networked = cx.node.config.network.nri != NriNetwork::Only;
    // One write for the paths and for the next intent.
    let write = |record: &mut PodRecord| {
        record.network_begun = made.net.is_some() && networked;
        record.namespaces = made;
    };
    pod.cell.change(write).await?;
    Ok(())
}

async fn attach_network(cx: &Pods, pod: &Pod) -> Result<()> {
    if let Some(network) = cx.node.attach(&pod.cell.get()).await? {
        let ips = network.ips.clone();
        cx.notices.became(pod, None, Action::Network { ips });
        let write = |record: &mut PodRecord| record.network = Some(network);
        pod.cell.change(write).await?;
    }
    Ok(())
}

async fn release_network(cx: &Pods, pod: &Pod) -> Result<()> {
    if cx.node.release_network(&pod.cell.get()).await? {
        cx.notices.became(pod, None, Action::NetworkGone);
    }
    Ok(())
}

fn shares_pid(plan: &SandboxPlan) -> bool {
    plan.pid == PidSharing::Pod
}

/// The record has the mark before plugins are called.
async fn run_hook(cx: &Pods, pod: &Pod) -> Result<()> {
    let hooks = &cx.notices.hooks;
    if hooks.enabled() {
        let write = |record: &mut PodRecord| record.hooks.run = Mark::Begun;
        pod.cell.change(write).await?;
    }
    let ips = hooks.run_pod_sandbox(pod).await?;
    cx.node.check_plugin_ips(&pod.cell.get(), &ips)?;
    if !ips.is_empty() {
        let ips = ips.iter().map(ToString::to_string).collect();
        let write = |record: &mut PodRecord| record.plugin_ips = ips;
        pod.cell.change(write).await?;
    }
    Ok(())
}

/// Sends both events, even after a successful hook (NRI-1118, NRI-1119).
async fn undo_hook(cx: &Pods, pod: &Pod) -> Result<()> {
    if pod.cell.get().hooks.run != Mark::None {
        cx.notices.hooks.undo_run_pod_sandbox(pod).await;
    }
    Ok(())
}

async fn set_ready(cx: &Pods, pod: &Pod) -> Result<()> {
    let write = |record: &mut PodRecord| {
        record.hooks.run = Mark::Done;
        record.phase = PodPhase::Ready;
    };
    pod.cell.change(write).await?;
    cx.node.pods.sync().await?;
    cx.notices.became(pod, None, Action::Ready);
    Ok(())
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

/// The answer for a used name. While no client has used the sandbox's id, the request may repeat a
/// lost answer. A sandbox that has ended, or whose failed creation stayed, is no answer.
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

/// A failed undo keeps the sandbox, NOTREADY, and records the step (invariant 7).
async fn note(pod: &Pod, step: &str, undone: Result<()>) {
    let Err(error) = undone else { return };
    tracing::error!(pod = %pod.id, step, %error, "undo of a failed RunPodSandbox");
    let written = pod
        .cell
        .record_fact(|record| {
            record.phase = PodPhase::NotReady;
            // The undo of the hook sent both to plugins, if they got Run.
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

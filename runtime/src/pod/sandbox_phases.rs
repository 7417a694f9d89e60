//! The phases of a sandbox's creation, entered in order and undone in reverse, so that any failure
//! leaves nothing (invariant 7):
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

use super::{
    error::Result,
    pause,
    pods::Pods,
    record::{Mark, PodPhase, PodRecord},
    state::Pod,
};
use crate::{
    config::NriNetwork,
    fault::{self, Fired},
    oci::{PidSharing, SandboxPlan},
    spans,
    trace::Action,
};

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

/// Makes the sandbox.
///
/// # Errors
/// The phase that failed. All are undone, as far as the machine lets them.
pub(super) async fn enter(cx: &Arc<Pods>, pod: &Arc<Pod>, plan: &SandboxPlan) -> Result<()> {
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
pub(super) async fn undo_all(cx: &Pods, pod: &Pod) -> Result<()> {
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

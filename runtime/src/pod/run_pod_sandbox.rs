//! RunPodSandbox: checks the request, and reserves the name; `sandbox_phases.rs` makes the sandbox.

use std::sync::Arc;

use proto_cri::v1 as cri;
use tokio::sync::watch;

use super::{
    driver::Driver,
    error::{Error, Kind, Result},
    event_log, files,
    notices::Change,
    pods::Pods,
    record::{Mark, PodPhase, PodRecord},
    registry::{Reservation, new_id},
    sandbox_phases, selinux,
    state::Pod,
};
use crate::{
    clock,
    oci::{self, SandboxPlan},
    spans,
    store::Cell,
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
    let phases = asker.scope(sandbox_phases::enter(&cx, &pod, &plan));
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

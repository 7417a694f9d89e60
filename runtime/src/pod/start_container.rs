//! StartContainer (CRI-131): cgroup, monitor and init, the NRI hook, the start.
//!
//! The record stays CREATED until init runs its program: a monitor without its daemon undoes
//! itself, and the container is still CREATED after a restart.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cairn_monitor::{log_path, record::Join};
use oci_spec::runtime::{LinuxNamespaceType, Spec};

use super::{
    adjusted_start::AdjustedStart,
    container_exit::{self, watch, written_later},
    error::{AtStep as _, Error, Kind, Result},
    node::Node,
    pods::Pods,
    record::{ContainerPhase, Eviction, Exit, Mark, PodPhase, Process},
    registry::Registry,
    resources,
    spec::Specs,
    state::{Container, LOOKUP, Pod},
};
use crate::{
    blocking::blocking,
    cgroup::Cgroup,
    clock, fault,
    host::lookup::Session,
    monitor::{LaunchSpec, Monitor},
    spans,
    store::make_private,
    trace::Action,
};

/// Time that a stop or removal leaves to mounts and OCI hooks of a start.
const PATIENCE: Duration = Duration::from_secs(3);
/// Longer lines of output are split into partial records, as in other runtimes.
pub const MAX_LOG_LINE: u32 = 16384;

/// # Errors
/// The step that failed; the container is then EXITED with reason `StartError`, and none of its
/// processes runs.
pub async fn run(cx: &Arc<Pods>, pod: &Arc<Pod>, container: &Arc<Container>) -> Result<()> {
    match start(cx, pod, container).await {
        Ok(monitor) => {
            watch(pod, container, monitor);
            let hooks = &cx.notices.hooks;
            hooks.post_start_container(pod, container).await;
            Ok(())
        }
        Err(error) => {
            failed(cx, pod, container, &error).await;
            Err(error.at(&format!("container {}: start", container.id)))
        }
    }
}

async fn start(cx: &Pods, pod: &Pod, container: &Container) -> Result<Monitor> {
    if let Some(Eviction { plugin, reason }) = &container.cell.get().evicted {
        let text = format!("evicted by {plugin}: {reason}");
        return Err(Error::new(Kind::WrongState, text));
    }
    let set_up = resources::set_up(&cx.node, container);
    let (specs, group) = spans::step("make the cgroup", set_up).await?;
    let adjusted = AdjustedStart::of(&specs.adjustment, &specs.owners_of(&container.id));
    let (monitor, process) = launch(cx, pod, container, &specs, &group, &adjusted).await?;
    fault::pass("container.start.hook").await?;
    let hooks = &cx.notices.hooks;
    hooks.start_container(pod, container, process.pid).await?;
    fault::pass("container.start.start").await?;
    spans::step("start", monitor.start())
        .await
        .map_err(|error| Error::failed(adjusted.name_in(&error.to_string())))?;
    container
        .cell
        .change(|record| {
            record.phase = ContainerPhase::Running;
            record.started_at = clock::now_ns();
            record.process = Some(process);
        })
        .await?;
    cx.notices.became(pod, Some(container), Action::Started);
    Ok(monitor)
}

/// Everything from the cgroup to an init that waits for its start.
async fn launch(
    cx: &Pods,
    pod: &Pod,
    container: &Container,
    specs: &Specs,
    group: &Cgroup,
    adjusted: &AdjustedStart,
) -> Result<(Monitor, Process)> {
    let node = &cx.node;
    let record = container.cell.get();
    let join = join(&cx.registry, pod, specs)?;
    let log_path = record.log_path.as_deref().map(|path| {
        let directory = pod.cell.get().config.log_directory.clone();
        log_path::marked(path, directory.as_ref())
    });
    look_up(node, pod, container, adjusted, log_path.clone()).await?;

    fault::pass("container.start.launch").await?;
    spans::step("mount the root", mount_root(node, pod, container, specs)).await?;
    let launched = node.launcher.launch(LaunchSpec {
        id: container.id.clone(),
        dir: node.dirs.container(&container.id),
        config: serde_json::to_vec(&specs.spec).step("encode the spec")?,
        cgroups: node.joined_by_monitor(group),
        tty: record.config.tty,
        stdin: record.config.stdin,
        stdin_once: record.config.stdin_once,
        log_path,
        max_log_line: MAX_LOG_LINE,
        join,
    });
    let launched = spans::step("spawn the monitor and create", launched);
    let launched = tokio::select! {
        biased;
        launched = launched => launched.map_err(|error| adjusted.name_in(&error.cause())),
        // The monitor undoes what it did, as far as the kernel lets it.
        () = container.ends_within(PATIENCE) => Err(format!(
            "given up after {} s, since the container is to end; a mount or an OCI hook does not answer",
            PATIENCE.as_secs()
        )),
    };
    let (unmounting, id) = (Arc::clone(node), container.id.clone());
    // Not awaited: an unmount waits for the kernel's grace period, but the container need not.
    tokio::spawn(blocking(move || unmounting.unmount_root(&id)));
    let monitor = launched.map_err(|why| match group.oom_kills() {
        Ok(1..) => Error::failed(format!(
            "the kernel ended it for want of memory{}: {why}",
            adjusted.memory_limit(&specs.spec)
        )),
        _ => Error::failed(why),
    })?;
    container.set_monitor(Some(monitor.clone()));
    let process = node.process(&monitor);
    let pid = process.pid;
    let created = Action::Created { pid };
    cx.notices.became(pod, Some(container), created);
    Ok((monitor, process))
}

/// Looks up foreign paths: checks mount sources, and makes the log directory (CRI-254).
async fn look_up(
    node: &Node,
    pod: &Pod,
    container: &Container,
    adjusted: &AdjustedStart,
    log_path: Option<PathBuf>,
) -> Result<()> {
    let adjusted = adjusted.clone();
    let looked_up = move |session: &Session| {
        adjusted.check(session)?;
        let Some(path) = log_path else {
            return Ok(());
        };
        let path = path.to_str().ok_or("it is not UTF-8").step("log path")?;
        let made = session.make_log_parents(path);
        made.step(&format!("make the directory of the log {path:?}"))
    };
    let ending = container.ends_within(LOOKUP);
    node.lookups.run(&pod.id, ending, looked_up).await?
}

/// Mounts the root until the container's own mount namespace exists.
#[expect(clippy::disallowed_methods, reason = "in blocking()")]
async fn mount_root(node: &Node, pod: &Pod, container: &Container, specs: &Specs) -> Result<()> {
    let rootfs = node
        .images
        .find_rootfs(&container.id)
        .step("root file system")?
        .ok_or_else(|| Error::failed("root file system: it is gone"))?;
    let at = node.dirs.rootfs(&container.id);
    let own = node.dirs.container(&container.id);
    let passes = pod.cell.get().user_namespace_root();
    let userns = pod.user_namespace().step("user namespace")?;
    let machine = Arc::clone(&node.machine);
    let linux = specs.spec.linux().as_ref();
    let label = linux.and_then(|linux| linux.mount_label().clone());
    blocking(move || {
        make_private(&own, passes).map_err(|error| error.to_string())?;
        std::fs::create_dir_all(&at).map_err(|error| error.to_string())?;
        machine
            .mount_root(&rootfs, &at, userns, label.as_deref())
            .map_err(|error| error.to_string())
    })
    .await
    .step("root file system")
}

/// Ends all processes, marks the container EXITED, and notifies the plugins that know it.
async fn failed(cx: &Pods, pod: &Arc<Pod>, container: &Arc<Container>, error: &Error) {
    container_exit::release(&cx.node, container).await;
    let written = container
        .cell
        .record_fact(|record| {
            record.phase = ContainerPhase::Exited;
            record.finished_at = clock::now_ns();
            record.exit = Exit {
                code: 128,
                reason: "StartError".into(),
                message: error.text.clone(),
            };
            record.process = None;
            record.hooks.stop = Mark::Begun;
        })
        .await;
    if let Err(error) = written {
        tracing::error!(container = %container.id, %error, "the failed start is not on record yet");
        let (pod, container) = (Arc::clone(pod), Arc::clone(container));
        tokio::spawn(async move { written_later(&pod, &container).await });
    }
    let reason = error.text.clone();
    let failed = Action::StartFailed { reason };
    cx.notices.became(pod, Some(container), failed);
    container_exit::send_stop_hook(cx, pod, container).await;
}

/// Whose PID namespace it joins. A spec can only say it by a number, which may be another's by now.
fn join(registry: &Registry, pod: &Pod, specs: &Specs) -> Result<Option<Join>> {
    let Some(path) = pid_namespace(&specs.spec) else {
        return Ok(None);
    };
    let ours = specs.base.as_ref().unwrap_or(&specs.spec);
    if pid_namespace(ours) == Some(path) {
        let found = joined(pod, path, |_| true);
        return found.map(Some).ok_or_else(|| {
            Error::failed("the process whose PID namespace it was to join has ended")
        });
    }
    // A plugin chose it: a process of our pods, or one that only the kernel knows.
    let is_running = |phase| phase == ContainerPhase::Running;
    let ready = registry.pods().into_iter();
    let mut ready = ready.filter(|pod| pod.cell.get().phase == PodPhase::Ready);
    Ok(ready.find_map(|pod| joined(&pod, path, is_running)))
}

/// The process of a pod, or of its containers in these phases, whose PID namespace has this path.
fn joined(pod: &Pod, path: &Path, phase: impl Fn(ContainerPhase) -> bool) -> Option<Join> {
    let record = pod.cell.get();
    let containers = pod.containers().into_iter().map(|c| c.cell.get());
    let containers = containers.filter(|container| phase(container.phase));
    let containers = containers.filter_map(|container| Some((container.process.clone()?, None)));
    let pause = record.pause.clone();
    let pause = pause.map(|pause| (pause, record.namespaces.procfs.as_deref()));
    let (process, procfs) = containers
        .chain(pause)
        .find(|(process, _)| path == process.pid_namespace())?;
    Some(Join {
        pid: process.pid.cast_signed(),
        start_time: process.start_time,
        procfs: procfs.map_or_else(String::new, |path| path.to_string_lossy().into_owned()),
    })
}

fn pid_namespace(spec: &Spec) -> Option<&Path> {
    let namespaces = spec.linux().as_ref()?.namespaces().as_ref()?;
    let pid = namespaces
        .iter()
        .find(|n| n.typ() == LinuxNamespaceType::Pid)?;
    pid.path().as_deref()
}

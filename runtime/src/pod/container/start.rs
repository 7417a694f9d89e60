//! StartContainer (CRI-131): cgroup, monitor and init, the NRI hook, the start.
//!
//! Until init runs its program nothing is recorded: a monitor whose daemon vanished undoes
//! itself, and the container is still CREATED after a restart.

use std::{sync::Arc, time::Duration};

use super::{
    super::{
        Container, Pod,
        driver::ContainerWork,
        error::{Error, Result, Step as _},
        events::Change,
        record::{ContainerPhase, Exit, Mark, Process},
    },
    cgroup, dir, exit, rootfs_path, unmount_root,
};
use crate::{
    clock, fault,
    monitor::{LaunchSpec, Monitor},
    pod::journal::Step,
};

/// How long an emptied cgroup may take to go.
pub const CGROUP_GONE: Duration = Duration::from_secs(5);

/// # Errors
/// The step that failed; the container is then EXITED with reason `StartError`, and nothing of
/// it runs.
pub async fn start(pod: &Arc<Pod>, container: &Arc<Container>) -> Result<()> {
    let result = run(pod, container).await;
    match result {
        Ok(monitor) => {
            watch(pod, container, monitor);
            pod.services
                .hooks
                .post_start_container(pod, container)
                .await;
            Ok(())
        }
        Err(error) => {
            failed(pod, container, &error).await;
            Err(error.at(&format!("container {}: start", container.id)))
        }
    }
}

async fn run(pod: &Arc<Pod>, container: &Arc<Container>) -> Result<Monitor> {
    let services = &pod.services;
    let record = container.cell.get();
    let specs = services.specs.read(&container.id).await?;

    fault::pass("container.start.cgroup")
        .await
        .map_err(Error::failed)?;
    let group = cgroup(services, &record.cgroup)?;
    let resources = specs
        .spec
        .linux()
        .as_ref()
        .and_then(|l| l.resources().clone());
    let prepared = group.clone();
    crate::store::blocking(move || {
        prepared.create()?;
        resources.map_or(Ok(()), |resources| prepared.apply(&resources))
    })
    .await
    .step("cgroup")?;

    fault::pass("container.start.launch")
        .await
        .map_err(Error::failed)?;
    let root = rootfs_path(services, &container.id);
    let rootfs = services
        .images
        .find_rootfs(&container.id)
        .step("root file system")?
        .ok_or_else(|| Error::failed("root file system: it is gone"))?;
    let at = root.clone();
    let userns = pod.user_namespace().step("user namespace")?;
    crate::store::blocking(move || {
        std::fs::create_dir_all(&at).map_err(|error| error.to_string())?;
        rootfs
            .mount_at(&at, userns)
            .map_err(|error| error.to_string())
    })
    .await
    .step("root file system")?;
    let launched = services
        .launcher
        .launch(LaunchSpec {
            id: container.id.clone(),
            dir: dir(services, &container.id),
            config: specs.to_config().step("encode the spec")?,
            cgroups: services.monitor_dirs(&group),
            tty: record.config.tty,
            stdin: record.config.stdin,
            stdin_once: record.config.stdin_once,
            log_path: record.log_path.clone(),
            max_log_line: services.config.container.max_log_line,
        })
        .await;
    // Not awaited: an unmount waits for the kernel's grace period, the container need not.
    tokio::task::spawn_blocking(move || unmount_root(&root));
    let (monitor, created) = launched.map_err(|error| Error::failed(error.to_string()))?;
    container.set_monitor(Some(monitor.clone()));
    let process = Process {
        pid: created.pid.unsigned_abs(),
        start_time: created.start_time,
        boot_id: services.boot_id.clone(),
    };
    services
        .journal
        .step(pod, Some(container), Step::Created { pid: process.pid });

    fault::pass("container.start.hook")
        .await
        .map_err(Error::failed)?;
    services
        .hooks
        .start_container(pod, container, process.pid)
        .await?;
    fault::pass("container.start.start")
        .await
        .map_err(Error::failed)?;
    monitor
        .start()
        .await
        .map_err(|error| Error::failed(error.to_string()))?;
    container
        .cell
        .change(|record| {
            record.phase = ContainerPhase::Running;
            record.started_at = clock::now_ns();
            record.process = Some(process);
        })
        .await?;
    services.journal.step(pod, Some(container), Step::Started);
    services.events.tell(pod, Some(container), Change::Started);
    Ok(monitor)
}

/// Tells the driver when the container's process has ended. One watcher per container, from
/// its start, or from recovery, to its end.
pub fn watch(pod: &Arc<Pod>, container: &Arc<Container>, monitor: Monitor) {
    let (pod, id) = (Arc::clone(pod), container.id.clone());
    tokio::spawn(async move {
        let ending = monitor.wait().await;
        if let Err(error) = pod.ask_container(&id, ContainerWork::Exited(ending)).await {
            tracing::warn!(pod = %pod.id, container = %id, %error, "the exit could not be handled");
        }
    });
}

/// Nothing runs, the container is EXITED, and plugins that knew of it are told.
async fn failed(pod: &Arc<Pod>, container: &Arc<Container>, error: &Error) {
    let services = &pod.services;
    exit::give_back(pod, container).await;
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
        tracing::error!(container = %container.id, %error, "the failed start is not on record");
    }
    services.events.tell(pod, Some(container), Change::Stopped);
    services.journal.step(
        pod,
        Some(container),
        Step::StartFailed {
            reason: error.text.clone(),
        },
    );
    exit::tell(pod, container).await;
}

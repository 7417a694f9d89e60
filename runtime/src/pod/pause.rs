//! The pause process: PID 1 of a pod that shares its PID namespace, and nothing in any other
//! pod (CRI-201). It goes the way of every container: a monitor, the create helper, a leaf
//! cgroup; its root holds one static program and needs no image.

use std::{path::PathBuf, sync::Arc};

use super::{
    Pod,
    container::{cgroup, start::CGROUP_GONE},
    error::{Error, Result, Step as _},
    journal::Step,
    record::Process,
};
use crate::{
    monitor::{LaunchSpec, Reattached},
    oci::{self, PauseInputs, SeccompKind},
    services::Services,
};

fn dir(services: &Services, pod: &str) -> PathBuf {
    services.config.state.join("pause").join(pod)
}

/// # Errors
/// The step that failed; [`stop`] undoes what was done.
pub async fn start(pod: &Arc<Pod>, seccomp: &SeccompKind) -> Result<()> {
    let services = &pod.services;
    let record = pod.cell.get();
    let sandbox = services.sandbox_facts(pod);
    let profile = match seccomp {
        SeccompKind::Localhost(path) => Some(tokio::fs::read_to_string(path).await.step(path)?),
        SeccompKind::Unconfined | SeccompKind::RuntimeDefault => None,
    };
    let linux = record.linux();
    let spec = oci::pause_spec(&PauseInputs {
        sandbox: &sandbox,
        context: linux.security_context.as_ref(),
        host: &services.host,
        policy: &services.policy,
        rootfs: &services.pause_root,
        args: &["/pause".to_owned()],
        seccomp,
        seccomp_profile: profile.as_deref(),
    })?;
    let group = cgroup(services, &record.cgroup_leaf())?;
    let resources = oci::resources::current(&spec).cloned();
    let prepared = group.clone();
    crate::store::blocking(move || {
        prepared.create()?;
        resources.map_or(Ok(()), |resources| prepared.apply(&resources))
    })
    .await
    .step("pause: cgroup")?;
    let (monitor, created) = services
        .launcher
        .launch(LaunchSpec {
            id: format!("pause-{}", pod.id),
            dir: dir(services, &pod.id),
            config: serde_json::to_vec(&spec).step("pause: encode the spec")?,
            cgroups: services.monitor_dirs(&group),
            tty: false,
            stdin: false,
            stdin_once: false,
            log_path: None,
            max_log_line: 0,
        })
        .await
        .step("pause")?;
    monitor.start().await.step("pause")?;
    let pid = created.pid.unsigned_abs();
    pod.cell
        .change(|record| {
            record.pause = Some(Process {
                pid,
                start_time: created.start_time,
                boot_id: services.boot_id.clone(),
            });
        })
        .await?;
    services.journal.step(pod, None, Step::Paused { pid });
    Ok(())
}

/// Whether the pause of a record is alive and the same process.
///
/// # Errors
/// When its monitor cannot be asked.
pub async fn alive(services: &Services, pod: &str) -> Result<bool> {
    let found = services
        .launcher
        .reattach(&format!("pause-{pod}"), &dir(services, pod))
        .await
        .step("pause")?;
    Ok(matches!(found, Reattached::Running(_)))
}

/// Kills it and gives back what it used. Idempotent; nothing to do where there is none.
///
/// # Errors
/// What is left.
pub async fn stop(pod: &Arc<Pod>) -> Result<()> {
    let services = &pod.services;
    let dir = dir(services, &pod.id);
    if tokio::fs::metadata(&dir).await.is_ok() {
        if let Ok(Reattached::Running(monitor)) = services
            .launcher
            .reattach(&format!("pause-{}", pod.id), &dir)
            .await
        {
            let killed = monitor.kill(libc::SIGKILL, true).await;
            if killed.is_ok()
                && tokio::time::timeout(CGROUP_GONE, monitor.wait())
                    .await
                    .is_ok()
            {
                monitor.delete().await.step("pause")?;
            }
        }
        services.launcher.cleanup(&dir).await.step("pause")?;
        tokio::fs::remove_dir_all(&dir)
            .await
            .map_err(|error| Error::failed(format!("pause: remove {}: {error}", dir.display())))?;
    }
    Ok(())
}

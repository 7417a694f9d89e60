//! The pause process: PID 1 of a pod that shares its PID namespace, and nothing in any other
//! pod (CRI-201). It goes the way of every container: a monitor, the create helper, a leaf
//! cgroup; its root holds one static program and needs no image.
//!
//! Every container of the pod may look at it through `/proc/1`. Once its program runs, it has an empty root and no procfs:
//! that of the namespace is mounted beside the pod's files, read-only, and containers get copies of it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use super::{
    dirs::remove_dir,
    error::{AtStep as _, Result},
    event_log::did,
    events::{EventKind, Events},
    message::Describe,
    processes::{CGROUP_GONE, Processes},
    record::{Mark, PodPhase, PodRecord, Process},
    registry::Registry,
    state::Pod,
};
use crate::{
    blocking::blocking,
    host::facts::View,
    monitor::{LaunchSpec, Monitor, Reattached},
    oci::{self, HostFacts, PauseInputs},
    trace::{Action, EventLog},
};

/// How often a sandbox that is still being made is looked at, when its pause process has ended already.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

pub struct Pauses {
    /// The built-in root of pause processes.
    pub root: PathBuf,
    pub host: Arc<HostFacts>,
    pub describe: Describe,
    pub processes: Arc<Processes>,
    pub registry: Arc<Registry>,
    pub events: Events,
    pub log: EventLog,
}

impl Pauses {
    /// # Errors
    /// The step that failed; [`Self::stop`] undoes what was done.
    pub async fn start(self: &Arc<Self>, pod: &Arc<Pod>) -> Result<()> {
        let (processes, record) = (&self.processes, pod.cell.get());
        let sandbox = self.describe.sandbox(pod);
        let linux = record.linux();
        let spec = oci::pause_spec(&PauseInputs {
            sandbox: &sandbox,
            context: linux.security_context.as_ref(),
            host: &self.host,
            view: &View,
            policy: self.describe.policy(pod),
            rootfs: &self.root,
            args: &["/pause".to_owned()],
        })?;
        let group = processes.cgroup(&record.cgroup_leaf())?;
        let resources = oci::limits::current(&spec).cloned();
        group
            .set_up(&pod.id, resources)
            .await
            .step("pause: cgroup")?;
        let monitor = processes
            .launcher
            .launch(LaunchSpec {
                id: format!("pause-{}", pod.id),
                dir: processes.dirs.pause(&pod.id),
                config: serde_json::to_vec(&spec).step("pause: encode the spec")?,
                cgroups: processes.joined_by_monitor(&group),
                tty: false,
                stdin: false,
                stdin_once: false,
                log_path: None,
                max_log_line: 0,
                join: None,
            })
            .await
            .step("pause")?;
        monitor.start().await.step("pause")?;
        let process = processes.process(&monitor);
        let pid = process.pid;
        let procfs = take_procfs(processes, &process, &pod.id).await?;
        pod.cell
            .change(|record| {
                record.pause = Some(process);
                record.namespaces.procfs = Some(procfs);
            })
            .await?;
        did(&self.log, pod, None, Action::Paused { pid });
        self.watch(pod, monitor);
        Ok(())
    }

    /// Whether the pause of a record is alive and the same process; it is watched from now on.
    ///
    /// # Errors
    /// When its monitor cannot be asked.
    pub async fn alive(self: &Arc<Self>, pod: &Arc<Pod>) -> Result<bool> {
        let Reattached::Running(monitor) = self.reattach(&pod.id).await? else {
            return Ok(false);
        };
        self.watch(pod, monitor);
        Ok(true)
    }

    async fn reattach(&self, pod: &str) -> Result<Reattached> {
        let processes = &self.processes;
        let (id, dir) = (format!("pause-{pod}"), processes.dirs.pause(pod));
        let found = processes.launcher.reattach(&id, &dir).await;
        found.step("pause")
    }

    /// A sandbox whose pause process has ended is NOTREADY: nothing can join its PID namespace any more, and the kernel
    /// has killed what was in it. The client is expected to stop the sandbox, with all that belongs to it, and to make
    /// another.
    fn watch(self: &Arc<Self>, pod: &Arc<Pod>, monitor: Monitor) {
        let (pauses, pod) = (Arc::clone(self), Arc::clone(pod));
        tokio::spawn(async move {
            monitor.wait().await;
            drop(monitor);
            // Its record says when RunPodSandbox has come to an end, this way or that.
            while pod.cell.get().phase == PodPhase::Creating {
                if pauses.registry.any(&pod.id).is_none() {
                    return;
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            if pod.cell.get().phase != PodPhase::Ready || pod.cell.get().hooks.stop != Mark::None {
                return; // It was stopped.
            }
            tracing::warn!(pod = %pod.id, "the pause process has ended: NOTREADY");
            let written = pod
                .cell
                .record_fact(|record| record.phase = PodPhase::NotReady)
                .await;
            if let Err(error) = written {
                tracing::error!(pod = %pod.id, %error, "the end of the pause process is not on record");
            }
            pauses.events.tell(&pod, None, EventKind::Stopped);
        });
    }

    /// Kills it and gives back what it used. Idempotent; nothing to do where there is none.
    ///
    /// # Errors
    /// What is left.
    #[expect(clippy::disallowed_methods, reason = "in blocking()")]
    pub async fn stop(&self, pod: &Pod) -> Result<()> {
        let dir = self.processes.dirs.pause(&pod.id);
        let there = dir.clone();
        if !blocking(move || there.exists()).await {
            return Ok(());
        }
        if let Ok(Reattached::Running(monitor)) = self.reattach(&pod.id).await {
            let killed = monitor.kill(libc::SIGKILL, true).await;
            let waited = tokio::time::timeout(CGROUP_GONE, monitor.wait());
            if killed.is_ok() && waited.await.is_ok() {
                monitor.delete().await.step("pause")?;
            }
        }
        let cleaned = self.processes.launcher.cleanup(&dir).await;
        cleaned.step("pause")?;
        let removed = remove_dir(&dir).await;
        removed.map_err(|error| error.at("pause"))
    }
}

/// Whether a version created the pod whose pause processes have capabilities and a writable procfs, which a container
/// that sees such a process can use (SECURITY.md, *Advisories*).
pub fn is_exposed(record: &PodRecord) -> bool {
    record.phase == PodPhase::Ready && record.pause.is_some() && record.namespaces.procfs.is_none()
}

/// Takes all mounts away from a pause process that runs, and keeps the procfs among them with the pod's files.
async fn take_procfs(processes: &Arc<Processes>, process: &Process, pod: &str) -> Result<PathBuf> {
    let files = processes.dirs.files(pod);
    let (machine, at) = (Arc::clone(&processes.machine), files.procfs.clone());
    let process = (process.pid.cast_signed(), process.start_time);
    let taken = blocking(move || machine.pin_procfs(process, &files.dir, &files.procfs)).await;
    taken.step("pause: take its mounts")?;
    Ok(at)
}

//! The runtime: an [`Adaptation`] over pods and containers in memory.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nri::{
    Adaptation, Created, Delivery, Notified, PluginId, PluginInfo, PluginState, Ran, Refused,
    StartError, Stopped, TransportError, Updated,
    merge::{Askers, Share, overlay},
    proto::{
        Container, ContainerEviction, ContainerState, ContainerUpdate, Event, LinuxResources,
        PodSandbox,
    },
};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::{
    builder::Builder,
    memory::{Happening, Memory, PluginRequest, PluginRequestKind, resources_of},
};

/// Interval of polls for a joined plugin.
const LOOK: Duration = Duration::from_millis(2);
/// Time limit for the removal of the old socket.
const SOCKET_GOES: Duration = Duration::from_secs(5);

/// As text, because the `unwrap` of a test prints it.
impl fmt::Debug for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a step of a [`FakeRuntime`] failed.
#[derive(thiserror::Error)]
pub enum Failed {
    /// A plugin rejected it, or conflicts with another.
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("there is no {kind} {name:?}: create it first")]
    NotThere { kind: &'static str, name: String },
    #[error("there is a {kind} {name:?} already: remove it first")]
    Taken { kind: &'static str, name: String },
}

/// Deliveries of RemoveContainer or RemovePodSandbox, and of the stops before it.
pub type Removed = Vec<Delivery>;

/// A runtime without containers. Dropping it disconnects its plugins and removes its socket.
pub struct FakeRuntime {
    nri: Adaptation,
    memory: Arc<Memory>,
    socket: PathBuf,
    _dir: TempDir,
    builder: Builder,
}

impl Builder {
    /// Starts it, with a socket in a new directory.
    ///
    /// # Errors
    /// The directory or the socket cannot be created, or an in-process plugin fails.
    pub async fn start(mut self) -> Result<FakeRuntime, StartError> {
        let dir = tempfile::Builder::new().prefix("nri-").tempdir();
        let dir = dir.map_err(|cause| {
            StartError::Transport(TransportError::Socket {
                path: std::env::temp_dir(),
                step: "make a directory for it",
                cause,
            })
        })?;
        let memory = Arc::<Memory>::default();
        for (pod, containers) in std::mem::take(&mut self.existing) {
            let pod = self.filled_pod(&memory, pod);
            for container in containers {
                let mut container = self.filled_container(&memory, &pod, container);
                if container.state == ContainerState::ContainerUnknown as i32 {
                    container.state = ContainerState::ContainerRunning as i32;
                }
                memory.put_container(container);
            }
            memory.put_pod(pod);
        }
        let socket = dir.path().join("nri.sock");
        let nri = self.adaptation(&memory, &socket).await?;
        Ok(FakeRuntime {
            nri,
            memory,
            socket,
            _dir: dir,
            builder: self,
        })
    }
}

impl FakeRuntime {
    /// Starts a plain one, without plugins.
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub async fn start() -> Result<Self, StartError> {
        Self::builder().start().await
    }

    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The socket for plugins.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The runtime side below, for functions missing here.
    pub fn adaptation(&self) -> &Adaptation {
        &self.nri
    }

    /// Waits until a plugin of this id gets events; `None` at the limit.
    pub async fn joined(&self, id: &PluginId, limit: Duration) -> Option<PluginInfo> {
        let deadline = Instant::now() + limit;
        loop {
            let mut plugins = self.nri.plugins().into_iter();
            let active = plugins.find(|p| p.id == *id && p.state == PluginState::Active);
            if active.is_some() || Instant::now() >= deadline {
                return active;
            }
            sleep(LOOK).await;
        }
    }

    /// RunPodSandbox. A rejected pod is stopped and removed, as runtimes do; an accepted one then
    /// has the addresses that plugins gave it.
    pub async fn run_pod(&self, pod: impl Into<PodSandbox>) -> Result<Ran, Failed> {
        let mut pod = self.builder.filled_pod(&self.memory, pod.into());
        if self.memory.pod(&pod.name).is_some() {
            return Err(taken("pod", &pod.name));
        }
        self.memory.put_pod(pod.clone());
        match self.nri.run_pod_sandbox(pod.clone()).await {
            Ok(ran) => {
                pod.ips.extend(ran.ips.iter().map(ToString::to_string));
                self.memory.put_pod(pod);
                Ok(ran)
            }
            Err(refused) => {
                self.nri.stop_pod_sandbox(pod.clone()).await;
                self.memory.drop_pod(&pod.name);
                self.nri.remove_pod_sandbox(pod).await;
                Err(refused.into())
            }
        }
    }

    /// CreateContainer, then PostCreateContainer. A rejected container is stopped and removed.
    pub async fn create(
        &self,
        pod: &str,
        container: impl Into<Container>,
    ) -> Result<Created, Failed> {
        let pod = self.pod(pod)?;
        let container = container.into();
        let mut container = self.builder.filled_container(&self.memory, &pod, container);
        if self.memory.container(&container.name).is_some() {
            return Err(taken("container", &container.name));
        }
        container.state = ContainerState::ContainerCreated as i32;
        self.memory.put_container(container.clone());
        let turn = self.nri.turn(Event::CreateContainer).await;
        let created = self
            .nri
            .create_container(&turn, pod.clone(), container.clone())
            .await;
        match created {
            Ok(created) => {
                let merged = &created.merged;
                self.memory.put_container(merged.adjusted.clone());
                self.apply(&merged.update, &merged.evict, &merged.askers);
                drop(turn);
                let adjusted = merged.adjusted.clone();
                self.nri.post_create_container(pod, adjusted).await;
                Ok(created)
            }
            Err(refused) => {
                drop(turn);
                container.state = ContainerState::ContainerStopped as i32;
                self.memory.put_container(container.clone());
                let turn = self.nri.turn(Event::StopContainer).await;
                let stopped = self
                    .nri
                    .stop_container(&turn, pod.clone(), container.clone());
                let stopped = stopped.await;
                self.apply(&stopped.merged.update, &[], &stopped.merged.askers);
                drop(turn);
                self.memory.drop_container(&container.name);
                self.nri.remove_container(pod, container).await;
                Err(refused.into())
            }
        }
    }

    /// StartContainer, then PostStartContainer.
    pub async fn start_container(&self, name: &str) -> Result<Notified, Failed> {
        let (pod, container) = self.container(name)?;
        let reported = self.nri.start_container(pod, container).await?;
        self.memory.change(name, |container| {
            container.state = ContainerState::ContainerRunning as i32;
            container.pid = 4711;
        });
        let (pod, container) = self.container(name)?;
        self.nri.post_start_container(pod, container).await;
        Ok(reported)
    }

    /// UpdateContainer, then PostUpdateContainer.
    pub async fn update_container(
        &self,
        name: &str,
        resources: LinuxResources,
    ) -> Result<Updated, Failed> {
        let (pod, container) = self.container(name)?;
        let turn = self.nri.turn(Event::UpdateContainer).await;
        let asked = resources.clone();
        let updated = self
            .nri
            .update_container(&turn, pod.clone(), container.clone(), asked)
            .await?;
        let merged = &updated.merged;
        self.apply(&merged.others, &merged.evict, &merged.askers);
        let now = merged.target.clone().unwrap_or(resources);
        self.memory.change(name, |c| {
            overlay(resources_of(c), now);
        });
        drop(turn);
        let container = self.memory.container(name).unwrap_or(container);
        self.nri.post_update_container(pod, container).await;
        Ok(updated)
    }

    /// StopContainer: its process has ended.
    pub async fn stop_container(&self, name: &str) -> Result<Stopped, Failed> {
        let (pod, mut container) = self.container(name)?;
        container.state = ContainerState::ContainerStopped as i32;
        container.pid = 0;
        self.memory.put_container(container.clone());
        let turn = self.nri.turn(Event::StopContainer).await;
        let id = container.id.clone();
        let stopped = self.nri.stop_container(&turn, pod, container).await;
        self.memory.stop_was_sent(id);
        self.apply(&stopped.merged.update, &[], &stopped.merged.askers);
        Ok(stopped)
    }

    /// RemoveContainer; a running container is stopped first.
    pub async fn remove_container(&self, name: &str) -> Result<Removed, Failed> {
        let (_, container) = self.container(name)?;
        let mut deliveries = Vec::new();
        if container.state != ContainerState::ContainerStopped as i32 {
            deliveries = self.stop_container(name).await?.deliveries;
        }
        let (pod, container) = self.container(name)?;
        self.memory.drop_container(name);
        deliveries.extend(self.nri.remove_container(pod, container).await.deliveries);
        Ok(deliveries)
    }

    /// UpdatePodSandbox, then PostUpdatePodSandbox.
    pub async fn update_pod(
        &self,
        name: &str,
        overhead: LinuxResources,
        resources: LinuxResources,
    ) -> Result<Notified, Failed> {
        let mut pod = self.pod(name)?;
        let (of_pod, of_overhead) = (resources.clone(), overhead.clone());
        let reported = self
            .nri
            .update_pod_sandbox(pod.clone(), of_overhead, of_pod)
            .await?;
        let linux = pod.linux.get_or_insert_default();
        (linux.pod_overhead, linux.pod_resources) = (Some(overhead), Some(resources));
        self.memory.put_pod(pod.clone());
        self.nri.post_update_pod_sandbox(pod).await;
        Ok(reported)
    }

    /// StopPodSandbox; its containers are stopped first.
    pub async fn stop_pod(&self, name: &str) -> Result<Removed, Failed> {
        let pod = self.pod(name)?;
        let mut deliveries = Vec::new();
        for container in self.memory.containers_of(&pod) {
            if container.state != ContainerState::ContainerStopped as i32 {
                deliveries.extend(self.stop_container(&container.name).await?.deliveries);
            }
        }
        deliveries.extend(self.nri.stop_pod_sandbox(pod).await.deliveries);
        Ok(deliveries)
    }

    /// RemovePodSandbox; it is stopped first, and its containers are removed.
    pub async fn remove_pod(&self, name: &str) -> Result<Removed, Failed> {
        let mut deliveries = self.stop_pod(name).await?;
        let pod = self.pod(name)?;
        for container in self.memory.containers_of(&pod) {
            deliveries.extend(self.remove_container(&container.name).await?);
        }
        self.memory.drop_pod(name);
        deliveries.extend(self.nri.remove_pod_sandbox(pod).await.deliveries);
        Ok(deliveries)
    }

    /// Stops, and starts again with its pods and containers, at the same socket.
    ///
    /// # Errors
    /// As [`Builder::start`].
    pub async fn restart(&mut self) -> Result<(), StartError> {
        self.nri.shutdown("restart").await;
        let deadline = Instant::now() + SOCKET_GOES;
        while self.socket.exists() && Instant::now() < deadline {
            sleep(LOOK).await;
        }
        self.nri = self.builder.adaptation(&self.memory, &self.socket).await?;
        Ok(())
    }

    /// Sends Shutdown to all plugins.
    pub async fn shutdown(&self) {
        self.nri.shutdown("over").await;
    }

    /// A pod of this name.
    ///
    /// # Errors
    /// It does not exist.
    pub fn pod(&self, name: &str) -> Result<PodSandbox, Failed> {
        let pod = self.memory.pod(name);
        pod.ok_or_else(|| not_there("pod", name))
    }

    /// The name of a present or removed container of this id.
    pub fn name_of(&self, id: &str) -> Option<String> {
        self.memory.name_of(id)
    }

    /// A container of this name, and its pod.
    ///
    /// # Errors
    /// It does not exist.
    pub fn container(&self, name: &str) -> Result<(PodSandbox, Container), Failed> {
        let container = self.memory.container(name);
        let container = container.ok_or_else(|| not_there("container", name))?;
        let pods = nri::Source::snapshot(&*self.memory).pods;
        let pod = pods.into_iter().find(|p| p.id == container.pod_sandbox_id);
        Ok((pod.ok_or_else(|| not_there("pod of", name))?, container))
    }

    /// Each event at each plugin since the last call.
    pub fn take_deliveries(&self) -> Vec<Delivery> {
        self.memory.take_deliveries()
    }

    /// Requests of plugins for other containers since the last call.
    pub fn take_requests(&self) -> Vec<PluginRequest> {
        self.memory.take_requests()
    }

    /// Steps in the life of plugins since the last call.
    pub fn take_happenings(&self) -> Vec<Happening> {
        self.memory.take_happenings()
    }

    fn apply(&self, updates: &[ContainerUpdate], evictions: &[ContainerEviction], askers: &Askers) {
        for eviction in evictions {
            let id = &eviction.container_id;
            for by in askers.of_eviction(id) {
                let kind = PluginRequestKind::Evict(eviction.reason.clone());
                self.memory.request(Some(by.clone()), id, true, kind);
            }
        }
        for update in updates {
            let id = &update.container_id;
            for Share { plugin, update } in askers.shares(id) {
                let resources = update.linux.clone().and_then(|linux| linux.resources);
                let kind = PluginRequestKind::Update(Box::new(resources.unwrap_or_default()));
                self.memory.request(Some(plugin.clone()), id, true, kind);
            }
        }
    }
}

fn not_there(kind: &'static str, name: &str) -> Failed {
    Failed::NotThere {
        kind,
        name: name.to_owned(),
    }
}

fn taken(kind: &'static str, name: &str) -> Failed {
    Failed::Taken {
        kind,
        name: name.to_owned(),
    }
}

//! The CRI calls of a kubelet, as short functions for the points. Each returns the runtime's own
//! answer.

use std::{fs, path::Path, sync::Arc, time::Duration};

use testkit::{
    client::{self, Client},
    cri::{self, ContainerState},
};
use tonic::Status;

use testkit::verdict::{Answer, Checked};

/// All pods of the suite are in this namespace.
pub(crate) const NAMESPACE: &str = "nri-contract";
/// The run that an object belongs to.
pub(crate) const RUN_LABEL: &str = "nri-contract.run";
/// The point that an object belongs to.
pub(crate) const POINT_LABEL: &str = "nri-contract.point";

/// One connection to the runtime, and the values that all requests of the suite share.
#[derive(Clone, Debug)]
pub(crate) struct Cri {
    pub client: Client,
    pub common: Arc<Common>,
    /// Labels of every object that this connection creates.
    pub run: String,
    pub point: String,
}

/// The values that all requests share.
#[derive(Debug)]
pub(crate) struct Common {
    pub image: String,
    pub cgroup_parent: String,
    /// The directory of container logs.
    pub logs: std::path::PathBuf,
}

/// A pod of the suite.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub cri: Cri,
    pub id: String,
    pub config: cri::PodSandboxConfig,
}

/// A container of the suite.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub cri: Cri,
    pub id: String,
}

/// A container that runs until it is stopped, and does not fork.
pub(crate) const SLEEPER: [&str; 2] = ["sleep", "1000"];

impl Cri {
    fn labels(&self) -> std::collections::HashMap<String, String> {
        [(RUN_LABEL, &self.run), (POINT_LABEL, &self.point)]
            .map(|(key, value)| (key.to_owned(), value.clone()))
            .into()
    }

    pub(crate) fn pod_config(&self, name: &str) -> cri::PodSandboxConfig {
        let common = &self.common;
        let parent = &common.cgroup_parent;
        let mut config = client::pod_config(name, NAMESPACE, &common.logs, parent);
        config.labels = self.labels();
        config
    }

    pub(crate) fn container_config(&self, name: &str, command: &[&str]) -> cri::ContainerConfig {
        let mut config = client::container_config(name, &self.common.image, command);
        config.labels = self.labels();
        config.log_path = format!("{name}.log");
        config
    }

    pub(crate) async fn run(&self, config: cri::PodSandboxConfig) -> Result<Pod, Status> {
        // A kubelet also makes the directory.
        let _ = fs::create_dir_all(&config.log_directory);
        let id = self.client.run_pod(config.clone()).await?;
        Ok(self.pod(id, config))
    }

    /// Returns the pod with this id.
    pub(crate) fn pod(&self, id: String, config: cri::PodSandboxConfig) -> Pod {
        Pod {
            cri: self.clone(),
            id,
            config,
        }
    }

    /// Returns the container with this id.
    pub(crate) fn container(&self, id: &str) -> Container {
        Container {
            cri: self.clone(),
            id: id.to_owned(),
        }
    }

    /// Lists the pods of this point, or of all points if `point` is empty.
    pub(crate) async fn pods(&self) -> Result<Vec<cri::PodSandbox>, Status> {
        self.client.pods(self.selector()).await
    }

    /// Lists the containers of this point.
    pub(crate) async fn containers(&self) -> Result<Vec<cri::Container>, Status> {
        self.client.containers(self.selector()).await
    }

    fn selector(&self) -> std::collections::HashMap<String, String> {
        let mut labels = self.labels();
        labels.retain(|_, value| !value.is_empty());
        labels
    }

    pub(crate) async fn pod_status(&self, id: &str) -> Result<cri::PodSandboxStatus, Status> {
        let answer = self.client.pod_status(id, false).await?;
        Ok(answer.status.unwrap_or_default())
    }
}

/// Returns the namespace options of a pod's configuration.
pub(crate) fn namespace_options(
    config: &mut cri::PodSandboxConfig,
    change: impl FnOnce(&mut cri::NamespaceOption),
) {
    let linux = config.linux.get_or_insert_default();
    let security = linux.security_context.get_or_insert_default();
    change(security.namespace_options.get_or_insert_default());
}

impl Pod {
    pub(crate) async fn create(&self, name: &str, command: &[&str]) -> Result<Container, Status> {
        self.create_with(self.cri.container_config(name, command))
            .await
    }

    pub(crate) async fn create_with(
        &self,
        mut config: cri::ContainerConfig,
    ) -> Result<Container, Status> {
        // Like a kubelet, give a container its pod's namespace options.
        let of_pod = self.config.linux.as_ref();
        let of_pod = of_pod.and_then(|l| l.security_context.as_ref()?.namespace_options.clone());
        let linux = config.linux.get_or_insert_default();
        let security = linux.security_context.get_or_insert_default();
        security.namespace_options = of_pod;
        let client = &self.cri.client;
        let id = client.create_container(&self.id, config, &self.config);
        Ok(self.cri.container(&id.await?))
    }

    /// Creates a sleeper; a failure fails the point.
    pub(crate) async fn created(&self, name: &str) -> Checked<Container> {
        let created = self.create(name, &SLEEPER).await;
        created.succeeds("CreateContainer")
    }

    /// Creates and starts a container.
    pub(crate) async fn start(&self, name: &str, command: &[&str]) -> Result<Container, Status> {
        let container = self.create(name, command).await?;
        container.start().await?;
        Ok(container)
    }

    pub(crate) async fn stop(&self) -> Result<(), Status> {
        self.cri.client.stop_pod(&self.id).await
    }
    pub(crate) async fn remove(&self) -> Result<(), Status> {
        self.cri.client.remove_pod(&self.id).await
    }
    /// Stops and removes the pod.
    pub(crate) async fn end(&self) -> Result<(), Status> {
        self.stop().await?;
        self.remove().await
    }
    /// As [`Pod::end`], but an error fails the point.
    pub(crate) async fn ends(&self) -> Checked {
        let ended = self.end().await;
        ended.succeeds("StopPodSandbox, RemovePodSandbox")
    }
    pub(crate) async fn status(&self) -> Result<cri::PodSandboxStatus, Status> {
        self.cri.pod_status(&self.id).await
    }

    pub(crate) async fn update(&self, cpu_shares: i64) -> Result<(), Status> {
        self.cri.client.update_pod(&self.id, cpu_shares).await
    }
}

impl Container {
    pub(crate) async fn start(&self) -> Result<(), Status> {
        self.cri.client.start_container(&self.id).await
    }

    /// Stops without a grace period: the suite's containers have no state to save.
    pub(crate) async fn stop(&self) -> Result<(), Status> {
        self.cri.client.stop_container(&self.id, 0).await
    }

    pub(crate) async fn remove(&self) -> Result<(), Status> {
        self.cri.client.remove_container(&self.id).await
    }

    pub(crate) async fn status(&self) -> Result<cri::ContainerStatus, Status> {
        let answer = self.cri.client.container_status(&self.id, false).await?;
        Ok(answer.status.unwrap_or_default())
    }

    pub(crate) async fn state(&self) -> Result<ContainerState, Status> {
        self.status().await.map(|status| status.state())
    }

    pub(crate) async fn update(&self, change: cri::LinuxContainerResources) -> Result<(), Status> {
        self.cri.client.update_container(&self.id, change).await
    }

    /// Runs a script in the container. Returns its standard output and error, and its exit code.
    pub(crate) async fn sh(&self, script: &str) -> Result<(String, i32), Status> {
        let command = ["sh", "-c", script];
        let answer = self.cri.client.exec(&self.id, &command, 10).await?;
        let printed = [answer.stdout, answer.stderr].concat();
        let printed = String::from_utf8_lossy(&printed).trim().to_owned();
        Ok((printed, answer.exit_code))
    }

    /// Waits until the container has exited, at most `patience`. Returns its status then.
    pub(crate) async fn exited(&self, patience: Duration) -> Result<cri::ContainerStatus, Status> {
        let asked = || async {
            match self.status().await {
                Ok(status) if status.state() != ContainerState::ContainerExited => None,
                answer => Some(answer),
            }
        };
        match testkit::until::poll_within(patience, asked).await {
            Some(answer) => answer,
            None => self.status().await,
        }
    }
}

/// Removes all objects of a run, or of one point of it. The error lists the remaining ones.
pub(crate) async fn clear(cri: &Cri) -> Result<(), String> {
    let mut trouble = String::new();
    for _ in 0..3 {
        let pods = cri
            .pods()
            .await
            .map_err(|e| format!("ListPodSandbox: {e}"))?;
        if pods.is_empty() {
            let left = cri.containers().await.unwrap_or_default();
            for container in &left {
                let _ = cri.container(&container.id).remove().await;
            }
            if left.is_empty() {
                return Ok(());
            }
        }
        for pod in pods {
            for done in [
                cri.client.stop_pod(&pod.id).await,
                cri.client.remove_pod(&pod.id).await,
            ] {
                if let Err(status) = done {
                    trouble = status.message().to_owned();
                }
            }
        }
    }
    match cri.pods().await {
        Ok(pods) if pods.is_empty() => Ok(()),
        _ => Err(format!("pods that cannot be removed: {trouble}")),
    }
}

/// Pulls the image unless it exists.
pub(crate) async fn provide(client: &Client, image: &str) -> Result<(), String> {
    let spec = cri::ImageSpec {
        image: image.to_owned(),
        ..Default::default()
    };
    let request = cri::ImageStatusRequest {
        image: Some(spec.clone()),
        verbose: false,
    };
    let mut images = client.image.clone();
    let status = images
        .image_status(request)
        .await
        .map_err(|e| format!("ImageStatus {image}: {}", e.message()))?;
    if status.into_inner().image.is_some() {
        return Ok(());
    }
    let request = cri::PullImageRequest {
        image: Some(spec),
        ..Default::default()
    };
    let pulled = images.pull_image(request).await;
    pulled
        .map(drop)
        .map_err(|e| format!("PullImage {image}: {}", e.message()))
}

/// Returns the runtime's name and version.
pub(crate) async fn version(client: &Client) -> Result<(String, String), Status> {
    let request = cri::VersionRequest::default();
    let answer = client.runtime.clone().version(request).await?.into_inner();
    Ok((answer.runtime_name, answer.runtime_version))
}

/// Whether the runtime uses the systemd cgroup driver.
pub(crate) async fn systemd_cgroups(client: &Client) -> bool {
    let request = cri::RuntimeConfigRequest::default();
    let answer = client.runtime.clone().runtime_config(request).await;
    let linux = answer.ok().and_then(|answer| answer.into_inner().linux);
    linux.is_some_and(|linux| linux.cgroup_driver() == cri::CgroupDriver::Systemd)
}

/// Connects to an endpoint such as `unix:///run/containerd/containerd.sock`.
pub(crate) async fn connect(endpoint: &str) -> Result<Client, String> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    let connected = Client::connect(Path::new(path)).await;
    connected.map_err(|e| format!("{endpoint}: {}", causes(&e)))
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

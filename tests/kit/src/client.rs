//! The CRI client: the crate `k8s-cri` over the daemon's Unix socket; types of `proto-cri` only for
//! features that it lacks.

use std::{collections::HashMap, path::Path};

use k8s_cri::v1::{
    self as cri, image_service_client::ImageServiceClient,
    runtime_service_client::RuntimeServiceClient,
};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

/// Replies may hold many objects (CRI-002).
const MESSAGE_LIMIT: usize = 16 << 20;

/// A kubelet's default namespaces.
pub fn namespaces() -> cri::NamespaceOption {
    cri::NamespaceOption {
        pid: cri::NamespaceMode::Container.into(),
        ..Default::default()
    }
}

/// The configuration of a pod as a kubelet would send it; logs go below `logs`.
pub fn pod_config(
    name: &str,
    namespace: &str,
    logs: &Path,
    cgroup_parent: &str,
) -> cri::PodSandboxConfig {
    let uid = format!("uid-{name}");
    let logs = logs.join(format!("{namespace}_{name}_{uid}"));
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: name.to_owned(),
            uid,
            namespace: namespace.to_owned(),
            attempt: 0,
        }),
        hostname: name.to_owned(),
        log_directory: logs.display().to_string(),
        annotations: [("note".to_owned(), format!("of {name}"))].into(),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: cgroup_parent.to_owned(),
            security_context: Some(cri::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The configuration of a container of an image.
pub fn container_config(name: &str, image: &str, command: &[&str]) -> cri::ContainerConfig {
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: name.to_owned(),
            attempt: 0,
        }),
        image: Some(cri::ImageSpec {
            image: image.to_owned(),
            ..Default::default()
        }),
        command: command.iter().map(|&s| s.to_owned()).collect(),
        log_path: format!("{name}/0.log"),
        linux: Some(cri::LinuxContainerConfig {
            security_context: Some(cri::LinuxContainerSecurityContext {
                namespace_options: Some(namespaces()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// One connection; clones share it.
#[derive(Clone, Debug)]
pub struct Client {
    /// Pods and containers.
    pub runtime: RuntimeServiceClient<Channel>,
    /// Images.
    pub image: ImageServiceClient<Channel>,
    /// The RPCs and fields that `k8s-cri` lacks.
    pub newer: proto_cri::v1::runtime_service_client::RuntimeServiceClient<Channel>,
}

impl Client {
    /// Connects, once, without waiting for a socket to appear.
    ///
    /// # Errors
    /// The transport's error.
    pub async fn connect(socket: &Path) -> Result<Self, tonic::transport::Error> {
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?;
        let channel = endpoint.connect().await?;
        Ok(Self {
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MESSAGE_LIMIT)
                .max_encoding_message_size(MESSAGE_LIMIT),
            image: ImageServiceClient::new(channel.clone())
                .max_decoding_message_size(MESSAGE_LIMIT),
            newer: proto_cri::v1::runtime_service_client::RuntimeServiceClient::new(channel),
        })
    }
}

/// Common calls, by ids; each fails with the runtime's own error.
impl Client {
    /// Returns the pod's id.
    pub async fn run_pod(&self, config: cri::PodSandboxConfig) -> Result<String, Status> {
        let request = cri::RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: String::new(),
        };
        let answer = self.runtime.clone().run_pod_sandbox(request).await?;
        Ok(answer.into_inner().pod_sandbox_id)
    }

    pub async fn stop_pod(&self, id: &str) -> Result<(), Status> {
        let pod_sandbox_id = id.to_owned();
        let request = cri::StopPodSandboxRequest { pod_sandbox_id };
        let mut runtime = self.runtime.clone();
        runtime.stop_pod_sandbox(request).await.map(drop)
    }

    pub async fn remove_pod(&self, id: &str) -> Result<(), Status> {
        let pod_sandbox_id = id.to_owned();
        let request = cri::RemovePodSandboxRequest { pod_sandbox_id };
        let mut runtime = self.runtime.clone();
        runtime.remove_pod_sandbox(request).await.map(drop)
    }

    /// Sets the CPU shares of the pod: `k8s-cri` lacks the call.
    pub async fn update_pod(&self, id: &str, cpu_shares: i64) -> Result<(), Status> {
        let request = proto_cri::v1::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: id.to_owned(),
            overhead: Some(proto_cri::v1::LinuxContainerResources::default()),
            resources: Some(proto_cri::v1::LinuxContainerResources {
                cpu_shares,
                ..Default::default()
            }),
        };
        let mut newer = self.newer.clone();
        newer.update_pod_sandbox_resources(request).await.map(drop)
    }

    pub async fn pod_status(
        &self,
        id: &str,
        verbose: bool,
    ) -> Result<cri::PodSandboxStatusResponse, Status> {
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose,
        };
        let mut runtime = self.runtime.clone();
        Ok(runtime.pod_sandbox_status(request).await?.into_inner())
    }

    /// The pods with these labels, or all without labels.
    pub async fn pods(
        &self,
        labels: HashMap<String, String>,
    ) -> Result<Vec<cri::PodSandbox>, Status> {
        let filter = (!labels.is_empty()).then(|| cri::PodSandboxFilter {
            label_selector: labels,
            ..Default::default()
        });
        let request = cri::ListPodSandboxRequest { filter };
        let mut runtime = self.runtime.clone();
        Ok(runtime.list_pod_sandbox(request).await?.into_inner().items)
    }

    /// As [`Client::pods`].
    pub async fn containers(
        &self,
        labels: HashMap<String, String>,
    ) -> Result<Vec<cri::Container>, Status> {
        let filter = (!labels.is_empty()).then(|| cri::ContainerFilter {
            label_selector: labels,
            ..Default::default()
        });
        let request = cri::ListContainersRequest { filter };
        let answer = self.runtime.clone().list_containers(request).await?;
        Ok(answer.into_inner().containers)
    }

    /// Returns the container's id.
    pub async fn create_container(
        &self,
        pod: &str,
        config: cri::ContainerConfig,
        of_pod: &cri::PodSandboxConfig,
    ) -> Result<String, Status> {
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: pod.to_owned(),
            config: Some(config),
            sandbox_config: Some(of_pod.clone()),
        };
        let answer = self.runtime.clone().create_container(request).await?;
        Ok(answer.into_inner().container_id)
    }

    pub async fn start_container(&self, id: &str) -> Result<(), Status> {
        let container_id = id.to_owned();
        let request = cri::StartContainerRequest { container_id };
        let mut runtime = self.runtime.clone();
        runtime.start_container(request).await.map(drop)
    }

    /// The grace is in seconds.
    ///
    /// # Panics
    /// If the grace is out of range.
    pub async fn stop_container(&self, id: &str, grace: u64) -> Result<(), Status> {
        let request = cri::StopContainerRequest {
            container_id: id.to_owned(),
            timeout: i64::try_from(grace).expect("a short grace"),
        };
        let mut runtime = self.runtime.clone();
        runtime.stop_container(request).await.map(drop)
    }

    pub async fn remove_container(&self, id: &str) -> Result<(), Status> {
        let container_id = id.to_owned();
        let request = cri::RemoveContainerRequest { container_id };
        let mut runtime = self.runtime.clone();
        runtime.remove_container(request).await.map(drop)
    }

    pub async fn container_status(
        &self,
        id: &str,
        verbose: bool,
    ) -> Result<cri::ContainerStatusResponse, Status> {
        let request = cri::ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose,
        };
        let mut runtime = self.runtime.clone();
        Ok(runtime.container_status(request).await?.into_inner())
    }

    pub async fn update_container(
        &self,
        id: &str,
        linux: cri::LinuxContainerResources,
    ) -> Result<(), Status> {
        let request = cri::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
            ..Default::default()
        };
        let mut runtime = self.runtime.clone();
        runtime.update_container_resources(request).await.map(drop)
    }

    /// The timeout is in seconds.
    pub async fn exec(
        &self,
        id: &str,
        command: &[&str],
        timeout: i64,
    ) -> Result<cri::ExecSyncResponse, Status> {
        let request = cri::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.iter().map(|&s| s.to_owned()).collect(),
            timeout,
        };
        let mut runtime = self.runtime.clone();
        Ok(runtime.exec_sync(request).await?.into_inner())
    }
}

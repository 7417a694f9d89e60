//! Pods as a client sees them, and helpers for the CRI calls that every test makes.

use std::{collections::HashMap, fs, path::Path};

use k8s_cri::v1::{self as cri};
use proto_cri::v1 as newer;
use tonic::Status;

use testkit::{client, until::until};

use crate::{client::Cri, container::Container, image::BUSYBOX};

/// Puts a pod on the host's network.
///
/// # Panics
/// If the configuration is not one of [`Cri::pod_config`].
pub fn host_network(config: &mut cri::PodSandboxConfig) {
    pod_namespaces(config).network = cri::NamespaceMode::Node.into();
}

/// # Panics
/// If the configuration is not one of [`Cri::pod_config`].
pub fn pod_security(config: &mut cri::PodSandboxConfig) -> &mut cri::LinuxSandboxSecurityContext {
    let linux = config.linux.as_mut().expect("set by pod_config");
    linux.security_context.as_mut().expect("set by pod_config")
}

/// # Panics
/// If the configuration is not one of [`Cri::pod_config`].
pub fn pod_namespaces(config: &mut cri::PodSandboxConfig) -> &mut cri::NamespaceOption {
    let options = pod_security(config).namespace_options.as_mut();
    options.expect("set by pod_config")
}

/// Sets the container's image.
///
/// # Panics
/// If the configuration is not one of [`Cri::container_config`].
pub fn set_image(config: &mut cri::ContainerConfig, image: &str) {
    let set = config.image.as_mut().expect("set by container_config");
    image.clone_into(&mut set.image);
}

/// An image by this name.
pub fn newer_image(image: &str) -> newer::ImageSpec {
    newer::ImageSpec {
        image: image.to_owned(),
        ..Default::default()
    }
}

/// # Panics
/// If the configuration is not one of [`Cri::container_config`].
pub fn container_namespaces(config: &mut cri::ContainerConfig) -> &mut cri::NamespaceOption {
    let options = security(config).namespace_options.as_mut();
    options.expect("set by container_config")
}

/// # Panics
/// If the configuration is not one of [`Cri::container_config`].
pub fn security(config: &mut cri::ContainerConfig) -> &mut cri::LinuxContainerSecurityContext {
    let linux = config.linux.as_mut().expect("set by container_config");
    let security = linux.security_context.as_mut();
    security.expect("set by container_config")
}

/// Maps the ids of a pod from 100,000 on.
pub fn id_mapping() -> cri::IdMapping {
    cri::IdMapping {
        container_id: 0,
        host_id: 100_000,
        length: 65_536,
    }
}

/// A user namespace of the pod with [`id_mapping`].
pub fn user_namespace() -> cri::UserNamespace {
    cri::UserNamespace {
        mode: cri::NamespaceMode::Pod.into(),
        uids: vec![id_mapping()],
        gids: vec![id_mapping()],
    }
}

impl Cri {
    /// A container of busybox that sleeps, for fields that `k8s-cri` lacks.
    pub fn newer_config(&self, name: &str, command: &[&str]) -> newer::ContainerConfig {
        newer::ContainerConfig {
            metadata: Some(newer::ContainerMetadata {
                name: name.to_owned(),
                attempt: 0,
            }),
            image: Some(newer_image(BUSYBOX)),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            log_path: format!("{name}.log"),
            ..Default::default()
        }
    }

    /// The configuration of a pod as a kubelet sends it.
    pub fn pod_config(&self, name: &str) -> cri::PodSandboxConfig {
        let logs = self.dir.join("logs");
        let mut config = client::pod_config(name, "default", &logs, &self.cgroup_parent);
        config.labels = [("app".to_owned(), name.to_owned())].into();
        config
    }

    /// The configuration of a busybox container.
    pub fn container_config(&self, name: &str, command: &[&str]) -> cri::ContainerConfig {
        client::container_config(name, BUSYBOX, command)
    }

    /// Runs a pod; the test fails if it does not run.
    ///
    /// # Panics
    /// With the daemon's error.
    pub async fn pod(&self, name: &str) -> Pod {
        self.try_pod(self.pod_config(name))
            .await
            .unwrap_or_else(|e| panic!("pod {name}: {e}"))
    }

    /// Runs a pod.
    ///
    /// # Errors
    /// The daemon's.
    pub async fn try_pod(&self, config: cri::PodSandboxConfig) -> Result<Pod, Status> {
        let id = self.client.run_pod(config.clone()).await?;
        Ok(Pod {
            cri: self.clone(),
            id,
            config,
        })
    }

    /// All pods in the daemon's list.
    pub async fn pods(&self) -> Vec<cri::PodSandbox> {
        let pods = self.client.pods(HashMap::new()).await;
        pods.expect("ListPodSandbox")
    }

    /// All containers in the daemon's list.
    pub async fn containers(&self) -> Vec<cri::Container> {
        let containers = self.client.containers(HashMap::new()).await;
        containers.expect("ListContainers")
    }

    /// The status of a pod.
    ///
    /// # Errors
    /// The daemon's.
    pub async fn pod_status(&self, id: &str) -> Result<cri::PodSandboxStatusResponse, Status> {
        self.client.pod_status(id, true).await
    }

    /// A pod with a known id, after a restart for instance.
    pub fn pod_by_id(&self, id: &str, name: &str) -> Pod {
        Pod {
            cri: self.clone(),
            id: id.to_owned(),
            config: self.pod_config(name),
        }
    }
}

/// A running pod.
#[derive(Clone, Debug)]
pub struct Pod {
    pub cri: Cri,
    pub id: String,
    pub config: cri::PodSandboxConfig,
}

impl Pod {
    /// Creates a container; the test fails if it cannot be created.
    ///
    /// # Panics
    /// With the daemon's error.
    pub async fn create(&self, name: &str, command: &[&str]) -> Container {
        self.try_create(self.cri.container_config(name, command))
            .await
            .unwrap_or_else(|e| panic!("container {name}: {e}"))
    }

    /// Creates a container.
    ///
    /// # Errors
    /// The daemon's.
    pub async fn try_create(&self, config: cri::ContainerConfig) -> Result<Container, Status> {
        let log = Path::new(&self.config.log_directory).join(&config.log_path);
        // A relative directory is rejected; it must not appear where the tests run.
        if let Some(dir) = log.parent().filter(|dir| dir.is_absolute()) {
            fs::create_dir_all(dir).expect("the log directory can be made, as a kubelet does");
        }
        let client = &self.cri.client;
        let id = client
            .create_container(&self.id, config, &self.config)
            .await?;
        Ok(self.cri.container_by_id(&id, log))
    }

    /// As [`Pod::try_create`], with fields that `k8s-cri` lacks.
    ///
    /// # Errors
    /// The daemon's.
    pub async fn try_create_newer(
        &self,
        config: newer::ContainerConfig,
    ) -> Result<Container, Status> {
        let log = Path::new(&self.config.log_directory).join(&config.log_path);
        let request = newer::CreateContainerRequest {
            pod_sandbox_id: self.id.clone(),
            config: Some(config),
            sandbox_config: Some(newer::PodSandboxConfig {
                log_directory: self.config.log_directory.clone(),
                ..Default::default()
            }),
        };
        fs::create_dir_all(log.parent().expect("a directory")).expect("as a kubelet does");
        let mut newer = self.cri.client.newer.clone();
        let created = newer.create_container(request).await?;
        let id = created.into_inner().container_id;
        Ok(self.cri.container_by_id(&id, log))
    }

    /// Creates and starts a container.
    ///
    /// # Panics
    /// With the daemon's error.
    pub async fn started(&self, config: cri::ContainerConfig) -> Container {
        let name = config.metadata.clone().unwrap_or_default().name;
        let created = self.try_create(config).await;
        let container = created.unwrap_or_else(|e| panic!("create {name}: {e}"));
        let started = container.start().await;
        started.unwrap_or_else(|e| panic!("start {name}: {e}"));
        container
    }

    /// As [`Pod::started`], with the defaults of [`Cri::container_config`].
    ///
    /// # Panics
    /// With the daemon's error.
    pub async fn run(&self, name: &str, command: &[&str]) -> Container {
        self.started(self.cri.container_config(name, command)).await
    }

    /// A container that runs until it is stopped.
    pub async fn sleeper(&self, name: &str) -> Container {
        let container = self
            .run(
                name,
                &[
                    "sh",
                    "-c",
                    "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done",
                ],
            )
            .await;
        // Its shell forks after the start; process counts must come after that.
        until("the sleeper sleeps", || async {
            let asleep = container.try_exec(&["pidof", "sleep"], 20).await;
            asleep.is_ok_and(|ran| ran.code == 0).then_some(())
        })
        .await;
        container
    }

    /// The status of this pod.
    ///
    /// # Panics
    /// With the daemon's error.
    pub async fn status(&self) -> cri::PodSandboxStatus {
        let status = self
            .cri
            .pod_status(&self.id)
            .await
            .expect("PodSandboxStatus");
        status.status.expect("a status holds a status")
    }

    /// The pod's address.
    ///
    /// # Panics
    /// If it has no address.
    pub async fn ip(&self) -> String {
        let ip = self.status().await.network.expect("a network status").ip;
        assert!(!ip.is_empty(), "the pod has no address");
        ip
    }

    /// Changes resources of the pod by UpdatePodSandboxResources.
    ///
    /// # Errors
    /// The daemon's.
    pub async fn share_cpu(&self, cpu_shares: i64) -> Result<(), Status> {
        self.cri.client.update_pod(&self.id, cpu_shares).await
    }

    /// # Errors
    /// The daemon's.
    pub async fn stop(&self) -> Result<(), Status> {
        self.cri.client.stop_pod(&self.id).await
    }

    /// # Errors
    /// The daemon's.
    pub async fn remove(&self) -> Result<(), Status> {
        self.cri.client.remove_pod(&self.id).await
    }

    /// Stops and removes; the test fails if one of them does.
    ///
    /// # Panics
    /// With the daemon's error.
    pub async fn end(&self) {
        self.stop().await.expect("StopPodSandbox");
        self.remove().await.expect("RemovePodSandbox");
    }
}

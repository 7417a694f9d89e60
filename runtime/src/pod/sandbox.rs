//! Resources of a sandbox on this machine: cgroup, namespaces and files, network. This file makes
//! and releases them, for RunPodSandbox and its undo, StopPodSandbox, recovery, and removal by id.

use std::{net::IpAddr, path::PathBuf, str::FromStr as _, sync::Arc};

use cni_shim::{Attach, PortMapping, Protocol, namespaces};
use proto_cri::v1 as cri;

use super::{
    error::{AtStep as _, Error, Kind, Result},
    node::{CGROUP_GONE, Node},
    record::{Json, Namespaces, PodNetwork, PodRecord},
};
use crate::{blocking::blocking, config::NriNetwork, oci::SandboxPlan};

impl Node {
    /// The hostname in containers: the pod's, or the node's on the node's network (CRI-205).
    pub fn hostname(&self, record: &PodRecord) -> String {
        if record.host_network() || record.config.hostname.is_empty() {
            self.name.clone()
        } else {
            record.config.hostname.clone()
        }
    }

    /// Makes the pod's cgroup, by a leaf in it that belongs to us.
    ///
    /// # Errors
    /// The cgroup that could not be made.
    pub async fn make_cgroup(&self, record: &PodRecord) -> Result<()> {
        self.cgroup(&record.cgroup_leaf())?
            .hold_parent(&record.id)
            .await
            .step("cgroup")
    }

    /// Removes the sandbox's leaf, and its empty parents that were made for it. Idempotent.
    ///
    /// # Errors
    /// The cgroup that could not be removed.
    pub async fn release_cgroup(&self, record: &PodRecord) -> Result<()> {
        self.cgroup(&record.cgroup_leaf())?
            .remove(CGROUP_GONE)
            .await
            .step("cgroup")
    }

    /// Pins the namespaces, sets up `lo`, hostname and sysctls, and makes the pod's files.
    ///
    /// # Errors
    /// The step that failed; the caller calls [`Self::release_namespaces`].
    pub async fn make_namespaces(
        &self,
        record: &Arc<PodRecord>,
        plan: &SandboxPlan,
    ) -> Result<Namespaces> {
        let (record, plan) = (Arc::clone(record), plan.clone());
        let machine = Arc::clone(&self.machine);
        let files = self.dirs.files(&record.id);
        let pins = self.dirs.namespaces(&record.id);
        let hostname = self.hostname(&record);
        let pinned = blocking(move || {
            files.make(
                &*machine,
                &hostname,
                record.config.dns_config.as_ref(),
                !plan.host_ipc,
                record.user_namespace_root(),
                record.selinux.as_ref().map(|labels| labels.file.as_str()),
            )?;
            machine.pin(&pin_spec(&plan), &pins).step("namespaces")
        })
        .await?;
        Ok(Namespaces {
            net: pinned.net,
            ipc: pinned.ipc,
            uts: pinned.uts,
            user: pinned.user,
            procfs: None,
        })
    }

    /// Removes namespaces and the pod's files. Idempotent.
    ///
    /// # Errors
    /// The resource that could not be removed.
    pub async fn release_namespaces(&self, id: &str) -> Result<()> {
        let (pins, files) = (self.dirs.namespaces(id), self.dirs.files(id));
        let machine = Arc::clone(&self.machine);
        blocking(move || {
            machine.unpin(&pins).step("namespaces")?;
            files.remove(&*machine)
        })
        .await
    }

    /// # Errors
    /// The namespace that could not be unpinned.
    pub async fn unpin(&self, id: &str) -> Result<()> {
        let pins = self.dirs.namespaces(id);
        let machine = Arc::clone(&self.machine);
        let unpinned = blocking(move || machine.unpin(&pins)).await;
        unpinned.map_err(|error| Error::failed(error.to_string()))
    }

    /// # Errors
    /// The file that could not be removed.
    pub async fn remove_files(&self, id: &str) -> Result<()> {
        let files = self.dirs.files(id);
        let machine = Arc::clone(&self.machine);
        blocking(move || files.remove(&*machine)).await
    }

    /// Attaches the pod to its network; `None` on the node's network, or if NRI plugins provide it.
    ///
    /// # Errors
    /// The network layer's error; the caller calls [`Self::release_network`].
    pub async fn attach(&self, record: &PodRecord) -> Result<Option<PodNetwork>> {
        let Some(netns) = record.namespaces.net.clone() else {
            return Ok(None);
        };
        if self.config.network.nri == NriNetwork::Only {
            let mut mappings = record.config.port_mappings.iter();
            if mappings.any(|mapping| mapping.host_port > 0) {
                tracing::warn!(pod = %record.id, "network: host ports are left to NRI plugins");
            }
            return Ok(None);
        }
        let machine = &self.machine;
        let attachment = machine.attach(attach_request(record, netns)?);
        let attachment = attachment.await.map_err(|error| {
            let kind = if error.is_not_ready() {
                Kind::Unavailable
            } else {
                Kind::Failed
            };
            Error::new(kind, format!("network: {error}"))
        })?;
        for warning in &attachment.warnings {
            tracing::warn!(pod = %record.id, %warning, "network");
        }
        Ok(Some(PodNetwork {
            ips: attachment.ips.iter().map(ToString::to_string).collect(),
            result: Json::of(&attachment.result)
                .map_err(|error| Error::failed(format!("network: result: {error}")))?,
            warnings: attachment.warnings,
        }))
    }

    /// Checks the addresses that NRI plugins assigned to the pod.
    ///
    /// # Errors
    /// For invalid addresses, and for a pod without any.
    pub fn check_plugin_ips(&self, record: &PodRecord, ips: &[IpAddr]) -> Result<()> {
        let own = record.namespaces.net.is_some();
        if !own && !ips.is_empty() {
            return Err(Error::failed(
                "NRI: a plugin gave addresses (adjust.network.ips) to a pod that is on the host's network",
            ));
        }
        if own && ips.is_empty() && self.config.network.nri == NriNetwork::Only {
            return Err(Error::new(
                Kind::Unavailable,
                "network: no NRI plugin gave the pod an address, and there is no other network (network.nri = \"only\")",
            ));
        }
        Ok(())
    }

    /// Idempotent; false if the network was never requested.
    ///
    /// # Errors
    /// The network layer's error; kubelet retries (CRI-114).
    pub async fn release_network(&self, record: &PodRecord) -> Result<bool> {
        if record.network_begun {
            let detached = self.machine.detach(&record.id).await;
            detached.step("network")?;
        }
        Ok(record.network_begun)
    }
}

fn pin_spec(plan: &SandboxPlan) -> namespaces::PinSpec {
    let mappings = plan.user_mapping.map(|map| {
        let range = namespaces::IdMap {
            container: map.container_id,
            host: map.host_id,
            size: map.length,
        };
        namespaces::Mappings {
            uids: vec![range],
            gids: vec![range],
        }
    });
    namespaces::PinSpec {
        net: !plan.host_network,
        ipc: !plan.host_ipc,
        uts: !plan.host_network,
        hostname: plan.hostname.clone(),
        sysctls: plan.sysctls.clone().into_iter().collect(),
        userns: mappings,
    }
}

/// The network layer's request for a pod.
fn attach_request(record: &PodRecord, netns: PathBuf) -> Result<Attach> {
    let metadata = record.metadata();
    Ok(Attach {
        sandbox_id: record.id.clone(),
        netns,
        pod_name: metadata.name,
        pod_namespace: metadata.namespace,
        pod_uid: metadata.uid,
        annotations: record.config.annotations.clone(),
        port_mappings: record
            .config
            .port_mappings
            .iter()
            .filter(|mapping| mapping.host_port > 0)
            .map(port_mapping)
            .collect::<Result<_>>()?,
        cgroup_parent: Some(record.cgroup_parent.clone()),
        sysctls: record.linux().sysctls.into_iter().collect(),
        dns: record.config.dns_config.as_ref().map(|dns| cni_shim::Dns {
            servers: dns.servers.clone(),
            searches: dns.searches.clone(),
            options: dns.options.clone(),
        }),
    })
}

fn port_mapping(mapping: &cri::PortMapping) -> Result<PortMapping> {
    let port = |name: &str, value: i32| {
        u16::try_from(value)
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| Error::invalid(format!("port_mappings.{name}: {value} must be 1-65535")))
    };
    let host_ip = match mapping.host_ip.as_str() {
        "" => None,
        text => Some(IpAddr::from_str(text).map_err(|_| {
            Error::invalid(format!(
                "port_mappings.host_ip: invalid IP address {text:?}"
            ))
        })?),
    };
    Ok(PortMapping {
        host_port: port("host_port", mapping.host_port)?,
        container_port: port("container_port", mapping.container_port)?,
        protocol: match mapping.protocol() {
            cri::Protocol::Tcp => Protocol::Tcp,
            cri::Protocol::Udp => Protocol::Udp,
            cri::Protocol::Sctp => Protocol::Sctp,
        },
        host_ip,
    })
}

//! Status (CRI-104 to CRI-107), with running pulls (CRI-909) and sandboxes that expose the host.

use std::collections::BTreeMap;

use proto_cri::v1 as cri;
use proto_nri::Event;
use serde_json::json;

use crate::{
    config::NriNetwork,
    cri::service::Cri,
    oci::CgroupDriver,
    pod::{pause::is_exposed, start_container::MAX_LOG_LINE},
};

pub async fn status(service: &Cri, verbose: bool) -> cri::StatusResponse {
    let node = &service.pods.node;
    let network = network_status(service).await;
    let condition = |kind: &str, problem: Option<(String, String)>| {
        let status = problem.is_none();
        let (reason, message) = problem.unwrap_or_default();
        cri::RuntimeCondition {
            r#type: kind.into(),
            status,
            reason,
            message,
        }
    };
    cri::StatusResponse {
        status: Some(cri::RuntimeStatus {
            conditions: vec![
                condition("RuntimeReady", None),
                condition("NetworkReady", network.clone().err()),
            ],
        }),
        info: if verbose {
            info(service, network.err())
        } else {
            BTreeMap::new()
        },
        // All handlers have the same features, because one runtime serves them.
        runtime_handlers: std::iter::once("")
            .chain(node.policies.handlers.keys().map(String::as_str))
            .map(|name| cri::RuntimeHandler {
                name: name.to_owned(),
                features: Some(cri::RuntimeHandlerFeatures {
                    recursive_read_only_mounts: node.host.recursive_readonly,
                    user_namespaces: node.host.no_user_namespaces.is_none(),
                }),
            })
            .collect(),
        features: Some(cri::RuntimeFeatures {
            supplemental_groups_policy: true,
            user_namespaces_host_network: node.host.no_user_namespaces.is_none(),
            mount_options: true,
        }),
    }
}

fn info(service: &Cri, network: Option<(String, String)>) -> BTreeMap<String, String> {
    let node = &service.pods.node;
    let cni = json!({
        "confDir": node.config.network.cni_conf_dir,
        "binDirs": node.config.network.cni_bin_dirs,
        "bridge": node.config.network.bridge,
        "subnet": node.config.network.subnet,
        "nri": node.config.network.nri,
    });
    let config = json!({
        "stateDir": node.config.state,
        "rootDir": node.config.root,
        "listen": node.config.listen,
        "cgroupParent": node.config.cgroup.parent,
        "cgroupDriver": match node.policies.default.cgroup_driver {
            CgroupDriver::Cgroupfs => "cgroupfs",
            CgroupDriver::Systemd => "systemd",
        },
        "apparmor": node.host.apparmor.as_ref().map(|apparmor| json!({
            "defaultProfile": apparmor.as_ref().ok(),
            "problem": apparmor.as_ref().err().map_or("", String::as_str),
        })),
        "selinux": node.host.selinux.as_ref().map(|selinux| json!({
            "enforcing": selinux.enforcing,
            "process": selinux.contexts.as_ref().ok().map(|contexts| &contexts.process),
            "file": selinux.contexts.as_ref().ok().map(|contexts| &contexts.file),
            "problem": selinux.contexts.as_ref().err(),
        })),
        "nriSocket": node.config.nri.socket,
        // By containerd's names: clients read them.
        "cni": cni,
        "maxContainerLogLineSize": MAX_LOG_LINE,
    });
    let pulls = node.images.pulls().into_iter().map(|pull| {
        let (bytes, of) = pull.progress;
        json!({ "image": pull.reference, "bytes": bytes, "of": of, "seconds": pull.seconds })
    });
    let pulls: serde_json::Value = pulls.collect();
    let pods = service.pods.registry.pods();
    let exposed = pods.iter().map(|pod| pod.cell.get());
    let exposed = exposed.filter(|record| is_exposed(record)).map(|record| {
        let metadata = record.metadata();
        json!({ "id": record.id, "namespace": metadata.namespace, "name": metadata.name })
    });
    let exposed: serde_json::Value = exposed.collect();
    let load = network.map_or_else(|| "OK".to_owned(), |(_, message)| message);
    BTreeMap::from([
        ("config".to_owned(), config.to_string()),
        ("cniconfig".to_owned(), cni.to_string()),
        ("lastCNILoadStatus".to_owned(), load),
        ("pulls".to_owned(), pulls.to_string()),
        ("exposedSandboxes".to_owned(), exposed.to_string()),
    ])
}

/// `(reason, message)` while pods cannot get a network (CRI-104).
async fn network_status(service: &Cri) -> Result<(), (String, String)> {
    let node = &service.pods.node;
    if node.config.network.nri == NriNetwork::Only {
        return if service.pods.notices.hooks.selects(Event::RunPodSandbox) {
            Ok(())
        } else {
            Err((
                "NetworkPluginNotReady".to_owned(),
                "no NRI plugin that handles RunPodSandbox is connected (network.nri = \"only\")"
                    .to_owned(),
            ))
        };
    }
    node.network.status().await.map_err(|problem| {
        let message = format!("Network plugin returns error: {}", problem.message);
        (problem.reason.to_owned(), message)
    })
}

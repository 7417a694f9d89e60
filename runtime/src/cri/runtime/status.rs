//! Status (CRI-104 to CRI-107).

use std::collections::BTreeMap;

use proto_cri::v1 as cri;
use serde_json::json;

use crate::services::Services;

pub async fn status(services: &Services, verbose: bool) -> cri::StatusResponse {
    let network = services.network_status().await;
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
            info(services, network.err())
        } else {
            BTreeMap::new()
        },
        runtime_handlers: vec![cri::RuntimeHandler {
            name: String::new(),
            features: Some(cri::RuntimeHandlerFeatures {
                recursive_read_only_mounts: services.host.recursive_readonly,
                user_namespaces: services.host.idmapped_mounts,
            }),
        }],
        features: Some(cri::RuntimeFeatures {
            supplemental_groups_policy: true,
            user_namespaces_host_network: false,
            mount_options: false,
        }),
    }
}

fn info(services: &Services, network: Option<(String, String)>) -> BTreeMap<String, String> {
    let config = json!({
        "stateDir": services.config.state,
        "rootDir": services.config.root,
        "listen": services.config.listen,
        "cgroupParent": services.config.cgroup.parent,
        "nriSocket": services.config.nri.socket,
    });
    let cni = json!({
        "confDir": services.config.network.cni_conf_dir,
        "binDirs": services.config.network.cni_bin_dirs,
        "bridge": services.config.network.bridge,
        "subnet": services.config.network.subnet,
    });
    let load = network.map_or_else(|| "OK".to_owned(), |(_, message)| message);
    BTreeMap::from([
        ("config".to_owned(), config.to_string()),
        ("cniconfig".to_owned(), cni.to_string()),
        ("lastCNILoadStatus".to_owned(), load),
    ])
}

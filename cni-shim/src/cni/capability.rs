//! Capability arguments for plugins (CRI-520), and the arguments for all (CRI-512). Pure.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::bandwidth::Limits;
use crate::types::Attach;

pub(crate) const PORT_MAPPINGS: &str = "portMappings";
const BANDWIDTH: &str = "bandwidth";

/// The pairs of `CNI_ARGS`.
pub(crate) fn args(attach: &Attach) -> Vec<(String, String)> {
    let pairs = [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", &attach.pod_namespace),
        ("K8S_POD_NAME", &attach.pod_name),
        ("K8S_POD_INFRA_CONTAINER_ID", &attach.sandbox_id),
        ("K8S_POD_UID", &attach.pod_uid),
    ];
    // A separator in a value could forge an argument; Kubernetes names and uids have none.
    let plain = |value: &str| value.replace([';', '='], "_");
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), plain(value)))
        .collect()
}

/// All capability arguments of a sandbox; a plugin gets those it declares.
pub(crate) fn capability_args(attach: &Attach) -> Result<BTreeMap<String, Value>, String> {
    let mut args = BTreeMap::new();
    let ports: Vec<_> = attach
        .port_mappings
        .iter()
        .filter(|port| port.host_port > 0)
        .collect();
    if !ports.is_empty() {
        args.insert(PORT_MAPPINGS.to_owned(), json!(ports));
    }
    if let Some(limits) = Limits::of(&attach.annotations)? {
        args.insert(BANDWIDTH.to_owned(), limits.for_plugins());
    }
    if let Some(dns) = &attach.dns {
        args.insert("dns".to_owned(), json!(dns));
    }
    if let Some(parent) = &attach.cgroup_parent {
        args.insert("cgroupPath".to_owned(), json!(parent));
    }
    if !attach.annotations.is_empty() {
        args.insert(
            "io.kubernetes.cri.pod-annotations".to_owned(),
            json!(attach.annotations),
        );
    }
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_name_cannot_forge_another_argument() {
        let attach = Attach {
            pod_name: "a;K8S_POD_UID=evil".into(),
            ..Attach::default()
        };
        assert!(
            args(&attach)
                .iter()
                .all(|(_, value)| !value.contains([';', '=']))
        );
    }

    #[test]
    fn ports_without_a_host_port_are_not_offered() {
        use crate::types::{PortMapping, Protocol};
        let port = |host_port| PortMapping {
            host_port,
            container_port: 80,
            protocol: Protocol::Tcp,
            host_ip: None,
        };
        let attach = Attach {
            port_mappings: vec![port(0), port(8080)],
            ..Attach::default()
        };
        let args = capability_args(&attach).expect("is valid");
        assert_eq!(
            args[PORT_MAPPINGS],
            json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}])
        );
    }
}

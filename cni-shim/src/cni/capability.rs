//! Capability arguments: what a sandbox offers to plugins that ask for it (CRI-520), and the arguments for all
//! (CRI-512). Pure.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::types::Attach;

pub(crate) const PORT_MAPPINGS: &str = "portMappings";
const BANDWIDTH: &str = "bandwidth";
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";
/// The annotations that limit a pod's bandwidth.
pub(crate) const LIMIT_ANNOTATIONS: [&str; 2] = [INGRESS, EGRESS];
/// Limits outside of 1k to 1P bits per second are refused, as by peers.
const RATES: std::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000_000;

/// `CNI_ARGS`, as pairs.
pub(crate) fn args(attach: &Attach) -> Vec<(String, String)> {
    let pairs = [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", &attach.pod_namespace),
        ("K8S_POD_NAME", &attach.pod_name),
        ("K8S_POD_INFRA_CONTAINER_ID", &attach.sandbox_id),
        ("K8S_POD_UID", &attach.pod_uid),
    ];
    // A value with a separator would forge another argument; names and uids of Kubernetes hold none.
    let plain = |value: &str| value.replace([';', '='], "_");
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), plain(value)))
        .collect()
}

/// Every capability argument of a sandbox; a plugin gets those it declares.
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
    if let Some(limits) = bandwidth(&attach.annotations)? {
        args.insert(BANDWIDTH.to_owned(), limits);
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

fn bandwidth(annotations: &BTreeMap<String, String>) -> Result<Option<Value>, String> {
    let mut limits = serde_json::Map::new();
    for (annotation, direction) in [(INGRESS, "ingress"), (EGRESS, "egress")] {
        let Some(text) = annotations.get(annotation) else {
            continue;
        };
        let rate = bits_per_second(text).ok_or_else(|| {
            let shown: String = text.chars().take(64).collect();
            format!("annotation {annotation}: invalid quantity {shown:?} (must be 1k to 1P)")
        })?;
        limits.insert(format!("{direction}Rate"), rate.into());
        limits.insert(format!("{direction}Burst"), u32::MAX.into());
    }
    Ok((!limits.is_empty()).then_some(Value::Object(limits)))
}

/// A Kubernetes quantity: decimal digits with an optional fraction, and a suffix (`k`, `M`, `Ki`…).
fn bits_per_second(text: &str) -> Option<u64> {
    let number_end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let unit: u128 = match suffix {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "P" => 1_000_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() > 18 || whole.is_empty() {
        return None;
    }
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let rate = u64::try_from(digits * unit / scale).ok()?;
    RATES.contains(&rate).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, rate) in [
            ("10M", Some(10_000_000)),
            ("1.5G", Some(1_500_000_000)),
            ("64Ki", Some(65_536)),
            ("1000", Some(1_000)),
            ("999", None),
            ("2P", None),
            ("-1k", None),
            ("1.2.3M", None),
            ("M", None),
            ("99999999999999999999999k", None),
        ] {
            assert_eq!(bits_per_second(text), rate, "{text}");
        }
    }

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

    proptest! {
        #[test]
        fn no_annotation_panics(text in "\\PC{0,40}") {
            let _ = bits_per_second(&text);
        }
    }
}

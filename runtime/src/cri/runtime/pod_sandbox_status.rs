//! PodSandboxStatus (CRI-116 to CRI-118, CRI-123).

use std::collections::BTreeMap;

use cni_shim::INTERFACE;
use proto_cri::v1 as cri;
use serde_json::{Map, Value, json};

use crate::{
    cri::view,
    pod::{
        error::{Error, Result},
        held::HeldPod,
        machine::Machine,
        record::PodPhase,
        registry::Registry,
        state::Pod,
    },
};

/// With a time, kubelets with the feature gate EventedPLEG, seen with v1.37.2, take the statuses of
/// the containers from this response and then know no container of the current sandbox: they run
/// init containers again without end (kubernetes/kubernetes#133371). Without, they ask for each.
const NO_TIME: i64 = 0;

pub fn pod_sandbox_status(
    pods: &Registry,
    machine: &dyn Machine,
    request: &cri::PodSandboxStatusRequest,
) -> Result<cri::PodSandboxStatusResponse> {
    if let Some(held) = pods.held().pod(&request.pod_sandbox_id) {
        return Ok(of_held(pods, held));
    }
    let pod = pods.pod(&request.pod_sandbox_id)?;
    let record = pod.cell.get();
    if record.phase == PodPhase::Creating {
        return Err(Error::no_sandbox(&request.pod_sandbox_id));
    }
    let containers = pod.visible_containers();
    Ok(cri::PodSandboxStatusResponse {
        status: Some(view::pod_status(&record)),
        info: if request.verbose {
            info(&pod, machine)
        } else {
            BTreeMap::new()
        },
        containers_statuses: containers
            .iter()
            .map(|record| view::container_status(record))
            .collect(),
        timestamp: NO_TIME,
    })
}

fn of_held(pods: &Registry, held: &HeldPod) -> cri::PodSandboxStatusResponse {
    let containers = pods.held().containers_of(&held.id);
    let why = held.refusal("sandbox").text;
    cri::PodSandboxStatusResponse {
        status: Some(view::held_pod_status(held)),
        info: BTreeMap::from([("info".to_owned(), json!({ "held": why }).to_string())]),
        containers_statuses: containers.iter().map(view::held_container_status).collect(),
        timestamp: NO_TIME,
    }
}

fn info(pod: &Pod, machine: &dyn Machine) -> BTreeMap<String, String> {
    let record = pod.cell.get();
    let namespaces: Vec<_> = [
        ("network", &record.namespaces.net),
        ("ipc", &record.namespaces.ipc),
        ("uts", &record.namespaces.uts),
        ("user", &record.namespaces.user),
    ]
    .into_iter()
    .filter_map(|(kind, path)| {
        path.as_ref()
            .map(|path| json!({"type": kind, "path": path}))
    })
    .collect();
    let network = record.network.as_ref();
    // Somebody else may have unmounted it.
    let open = record.namespaces.net.as_ref();
    let open = open.is_some_and(|path| machine.is_pinned(path.as_ref()));
    let info = json!({
        "pid": record.pause.as_ref().map_or(0, |pause| pause.pid),
        "processStatus": if record.phase == PodPhase::Ready { "running" } else { "stopped" },
        "netNamespaceClosed": !record.host_network() && !open,
        "config": record.config,
        "runtimeHandler": record.runtime_handler,
        "runtimeSpec": { "linux": { "namespaces": namespaces, "cgroupsPath": record.cgroup_parent } },
        "cniResult": network.map(|network| go_cni(&json!(network.result))),
        "cniResultRaw": network.map(|network| &network.result),
        "networkWarnings": network.map(|network| &network.warnings),
        "overhead": record.overhead.as_ref().map(|linux| json!({ "linux": linux })),
        "resources": record.resources.as_ref().map(|linux| json!({ "linux": linux })),
        "hooks": record.hooks,
        "failedStep": record.failed_step,
    });
    BTreeMap::from([("info".to_owned(), info.to_string())])
}

/// A CNI result in the form of containerd's go-cni, which clients read: interfaces by name, with
/// their addresses.
fn go_cni(result: &Value) -> Value {
    let list = |key: &str| result[key].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let interfaces = list("interfaces");
    let mut by_name = Map::new();
    for one in &interfaces {
        let config = json!({ "IPConfigs": null, "Mac": text(&one["mac"]), "Sandbox": text(&one["sandbox"]) });
        by_name.insert(text(&one["name"]), config);
    }
    for ip in list("ips") {
        let index = ip["interface"]
            .as_u64()
            .and_then(|at| usize::try_from(at).ok());
        let of = index.and_then(|at| interfaces.get(at));
        let name = of.map_or_else(|| INTERFACE.to_owned(), |one| text(&one["name"]));
        let address = text(&ip["address"]);
        let address = address.split('/').next().unwrap_or_default();
        let address = json!({ "IP": address, "Gateway": text(&ip["gateway"]) });
        let config = by_name
            .entry(name)
            .or_insert_with(|| json!({ "IPConfigs": null, "Mac": "", "Sandbox": "" }));
        match &mut config["IPConfigs"] {
            Value::Array(all) => all.push(address),
            none => *none = json!([address]),
        }
    }
    let dns = result["dns"].as_object().cloned().unwrap_or_default();
    json!({ "Interfaces": by_name, "DNS": [dns], "Routes": list("routes") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cni_result_has_containerds_form() {
        let result = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "cni0", "mac": "0a:00"}, {"name": "eth0", "mac": "0b:00", "sandbox": "/ns"}],
            "ips": [
                {"address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 1},
                {"address": "fd00::2/64", "interface": 1},
            ],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dns": {"nameservers": ["10.0.0.1"]},
        });
        let expected = json!({
            "Interfaces": {
                "cni0": {"IPConfigs": null, "Mac": "0a:00", "Sandbox": ""},
                "eth0": {
                    "IPConfigs": [
                        {"IP": "10.0.0.2", "Gateway": "10.0.0.1"},
                        {"IP": "fd00::2", "Gateway": ""},
                    ],
                    "Mac": "0b:00",
                    "Sandbox": "/ns",
                },
            },
            "DNS": [{"nameservers": ["10.0.0.1"]}],
            "Routes": [{"dst": "0.0.0.0/0"}],
        });
        assert_eq!(go_cni(&result), expected);
        // An address without an interface is the pod's own.
        let bare = go_cni(&json!({"ips": [{"address": "10.0.0.2/24", "interface": 7}]}));
        assert_eq!(bare["Interfaces"]["eth0"]["IPConfigs"][0]["IP"], "10.0.0.2");
    }
}

//! PodSandboxStatus (CRI-116 to CRI-118, CRI-123).

use std::collections::BTreeMap;

use proto_cri::v1 as cri;
use serde_json::json;

use crate::{
    clock,
    cri::view,
    pod::{
        error::{Error, Result},
        held::HeldPod,
        record::PodPhase,
        registry::Registry,
        state::Pod,
    },
};

pub fn pod_sandbox_status(
    pods: &Registry,
    request: &cri::PodSandboxStatusRequest,
) -> Result<cri::PodSandboxStatusResponse> {
    if let Some(held) = pods.held().pod(&request.pod_sandbox_id) {
        return Ok(of_held(pods, held));
    }
    let pod = pods.pod(&request.pod_sandbox_id)?;
    let timestamp = clock::now_ns();
    let record = pod.cell.get();
    if record.phase == PodPhase::Creating {
        return Err(Error::no_sandbox(&request.pod_sandbox_id));
    }
    let containers = pod.visible_containers();
    Ok(cri::PodSandboxStatusResponse {
        status: Some(view::pod_status(&record)),
        info: if request.verbose {
            info(&pod)
        } else {
            BTreeMap::new()
        },
        containers_statuses: containers
            .iter()
            .map(|record| view::container_status(record))
            .collect(),
        timestamp,
    })
}

fn of_held(pods: &Registry, held: &HeldPod) -> cri::PodSandboxStatusResponse {
    let containers = pods.held().containers_of(&held.id);
    let why = held.refusal("sandbox").text;
    cri::PodSandboxStatusResponse {
        status: Some(view::held_pod_status(held)),
        info: BTreeMap::from([("info".to_owned(), json!({ "held": why }).to_string())]),
        containers_statuses: containers.iter().map(view::held_container_status).collect(),
        timestamp: clock::now_ns(),
    }
}

fn info(pod: &Pod) -> BTreeMap<String, String> {
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
    let info = json!({
        "pid": record.pause.as_ref().map_or(0, |pause| pause.pid),
        "processStatus": if record.phase == PodPhase::Ready { "running" } else { "stopped" },
        "netNamespaceClosed": record.namespaces.net.is_none() && !record.host_network(),
        "config": record.config,
        "runtimeHandler": record.runtime_handler,
        "runtimeSpec": { "linux": { "namespaces": namespaces, "cgroupsPath": record.cgroup_parent } },
        "cniResult": record.network.as_ref().map(|network| &network.result),
        "networkWarnings": record.network.as_ref().map(|network| &network.warnings),
        "overhead": record.overhead,
        "resources": record.resources,
        "hooks": record.hooks,
        "failedStep": record.failed_step,
    });
    BTreeMap::from([("info".to_owned(), info.to_string())])
}

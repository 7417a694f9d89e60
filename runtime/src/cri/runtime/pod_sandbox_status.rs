//! PodSandboxStatus (CRI-116 to CRI-118, CRI-123).

use std::collections::BTreeMap;

use proto_cri::v1 as cri;
use serde_json::json;

use crate::{
    clock,
    cri::view,
    pod::{
        Pod,
        error::{Error, Result},
        record::{ContainerPhase, PodPhase},
    },
    services::Services,
};

pub fn pod_sandbox_status(
    services: &Services,
    request: &cri::PodSandboxStatusRequest,
) -> Result<cri::PodSandboxStatusResponse> {
    let pod = services.registry.pod(&request.pod_sandbox_id)?;
    let timestamp = clock::now_ns();
    let record = pod.cell.get();
    if record.phase == PodPhase::Creating {
        return Err(Error::no_sandbox(&request.pod_sandbox_id));
    }
    let mut containers: Vec<_> = pod
        .containers()
        .into_iter()
        .map(|container| container.cell.get())
        .filter(|record| record.phase != ContainerPhase::Creating)
        .collect();
    containers.sort_by_key(|record| record.created_at);
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
        "overhead": record.overhead,
        "resources": record.resources,
        "hooks": record.hooks,
        "failedStep": record.failed_step,
    });
    BTreeMap::from([("info".to_owned(), info.to_string())])
}

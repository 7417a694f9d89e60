//! ContainerStatus (CRI-136, CRI-143, CRI-145).

use std::collections::BTreeMap;

use proto_cri::v1 as cri;
use serde_json::json;

use crate::{
    cri::view,
    pod::{error::Result, registry::Registry, spec::SpecStore},
};

pub async fn container_status(
    pods: &Registry,
    specs: &SpecStore,
    request: cri::ContainerStatusRequest,
) -> Result<cri::ContainerStatusResponse> {
    if let Some(held) = pods.held().container(&request.container_id) {
        return Ok(cri::ContainerStatusResponse {
            status: Some(view::held_container_status(held)),
            info: BTreeMap::new(),
        });
    }
    let (_, container) = pods.container(&request.container_id)?;
    let record = container.cell.get();
    let mut info = BTreeMap::new();
    if request.verbose {
        let specs = specs.read(&container.id).await.ok();
        let document = json!({
            "sandboxID": record.pod,
            "snapshotKey": container.id,
            "snapshotter": "overlayfs",
            "runtimeType": "cairn",
            "pid": record.process.as_ref().map_or(0, |process| process.pid),
            "config": record.config,
            "runtimeSpec": specs.as_ref().map(|specs| &specs.spec),
            "owners": specs.as_ref().map(|specs| &specs.owners),
            "hooks": record.hooks,
            "cgroup": record.cgroup,
        });
        info.insert("info".to_owned(), document.to_string());
    }
    Ok(cri::ContainerStatusResponse {
        status: Some(view::container_status(&record)),
        info,
    })
}

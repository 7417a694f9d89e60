//! ExecSync (CRI-139 to CRI-141): needs no queue.

use std::time::Duration;

use proto_cri::v1 as cri;

use crate::pod::{
    error::{Error, Result},
    exec_sync as exec,
    registry::Registry,
    spec::SpecStore,
};

pub async fn exec_sync(
    pods: &Registry,
    specs: &SpecStore,
    request: cri::ExecSyncRequest,
) -> Result<cri::ExecSyncResponse> {
    let (_, container) = pods.container(&request.container_id)?;
    if request.cmd.is_empty() {
        return Err(Error::invalid(format!(
            "container {}: exec: cmd is empty",
            container.id
        )));
    }
    let timeout = u64::try_from(request.timeout)
        .ok()
        .filter(|seconds| *seconds > 0)
        .map(Duration::from_secs);
    exec::exec_sync(specs, &container, request.cmd, timeout).await
}

//! ExecSync (CRI-139 to CRI-141): leaves the container's state unchanged, so it bypasses the queue.

use std::time::Duration;

use proto_cri::v1 as cri;

use super::exec::process;
use crate::{
    monitor::{ExecSpec, MonitorError, Why},
    pod::{
        error::{Error, Kind, Result},
        registry::Registry,
        spec::SpecStore,
    },
};

/// # Errors
/// WrongState unless RUNNING; TimedOut when the timeout killed it; Exhausted when its output
/// exceeds the limit of all calls together; Failed with the kernel's error when execve failed.
pub async fn exec_sync(
    pods: &Registry,
    specs: &SpecStore,
    request: cri::ExecSyncRequest,
) -> Result<cri::ExecSyncResponse> {
    let (_, container) = pods.container(&request.container_id)?;
    let timeout = u64::try_from(request.timeout)
        .ok()
        .filter(|seconds| *seconds > 0)
        .map(Duration::from_secs);
    let (monitor, process) = process(specs, &container, request.cmd).await?;
    let output = monitor
        .exec_sync(ExecSpec {
            process,
            tty: false,
            stdin: false,
            window: None,
            timeout,
        })
        .await
        .map_err(|error| {
            let kind = match error {
                MonitorError::ExecTimedOut { .. } => Kind::TimedOut,
                MonitorError::Container {
                    why: Why::Budget(_),
                    ..
                } => Kind::Exhausted,
                _ => Kind::Failed,
            };
            Error::new(kind, error.to_string())
        })?;
    Ok(cri::ExecSyncResponse {
        stdout: output.stdout,
        stderr: output.stderr,
        exit_code: output.code,
    })
}

//! Processes beside init. Uses no queue: an exec changes no state of the container.

use std::time::Duration;

use proto_cri::v1 as cri;

use super::{
    error::{AtStep as _, Error, Kind, Result},
    spec::SpecStore,
    state::Container,
};
use crate::monitor::{ExecSpec, MonitorError, process_of};

/// CRI-139, CRI-140.
///
/// # Errors
/// WrongState unless RUNNING; TimedOut when the timeout killed it; Failed with the kernel's
/// words when it could not be executed.
pub async fn exec_sync(
    specs: &SpecStore,
    container: &Container,
    argv: Vec<String>,
    timeout: Option<Duration>,
) -> Result<cri::ExecSyncResponse> {
    let monitor = container.running_monitor()?;
    let specs = specs.read(&container.id).await?;
    let mut process = process_of(&specs.spec).step("exec")?;
    process.argv = argv.into_iter().map(String::into_bytes).collect();
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

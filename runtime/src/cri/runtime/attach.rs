//! Attach: checks the request, and returns the URL of its stream.

use proto_cri::v1 as cri;

use super::exec::check;
use crate::{
    pod::{
        error::{Error, Result},
        registry::Registry,
    },
    stream::{Job, Streams, Wanted},
};

/// # Errors
/// A request that contradicts itself or the container, or a container that is not running.
pub async fn attach(
    pods: &Registry,
    streams: &Streams,
    request: &cri::AttachRequest,
) -> Result<cri::AttachResponse> {
    let wanted = Wanted {
        stdin: request.stdin,
        stdout: request.stdout,
        stderr: request.stderr,
        tty: request.tty,
    };
    check("attach", &request.container_id, wanted)?;
    let (_, container) = pods.container(&request.container_id)?;
    container.running_monitor().await?;
    let config = &container.cell.get().config;
    let refuse = |why: &str| {
        let text = format!("container {}: attach: {why}", container.id);
        Err(Error::invalid(text))
    };
    match (wanted.tty, config.tty) {
        (true, false) => return refuse("tty is set, and the container has no terminal"),
        (false, true) => return refuse("tty is not set, and the container has a terminal"),
        _ => {}
    }
    if wanted.stdin && !config.stdin {
        return refuse("stdin is set, and the container was created without");
    }
    let url = streams.url(Job::Attach { container, wanted })?;
    Ok(cri::AttachResponse { url })
}

//! `cairn ps`: uses only CRI, so that it works with any runtime.

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use proto_cri::v1::{self as cri, runtime_service_client::RuntimeServiceClient};
use tonic::transport::Channel;

use super::{
    args,
    client::{channel, containers, terminal},
    ps_tree::{self, Listed},
};
use crate::{
    clock,
    cri::{MAX_MESSAGE, is_not_found},
};

/// Concurrent requests.
const AT_ONCE: usize = 8;

/// `cairn ps`.
///
/// # Errors
/// One line for the user.
pub async fn ps(arguments: args::Ps) -> Result<(), String> {
    let channel = channel(&arguments.ask.connect).await?;
    // Containers first: a pod that is made in between is listed then, too.
    let containers = containers(channel.clone()).await?;
    let mut runtime = RuntimeServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
    let pods = runtime
        .list_pod_sandbox(cri::ListPodSandboxRequest::default())
        .await
        .map_err(|status| format!("ListPodSandbox: {}", status.message()))?
        .into_inner()
        .items;
    let exited =
        |container: &cri::Container| container.state() == cri::ContainerState::ContainerExited;
    let wanted = containers
        .into_iter()
        .filter(|c| arguments.all || !exited(c));
    let listed: Vec<Option<Listed>> = stream::iter(wanted.map(|c| look_at(runtime.clone(), c)))
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let mut pods = ps_tree::pods(&pods, listed.into_iter().flatten().collect());
    if !arguments.all {
        pods.retain(ps_tree::Pod::is_active);
    }
    arguments.ask.output.print(
        || ps_tree::table(&pods, clock::now_ns(), arguments.all, terminal().1),
        || ps_tree::json(&pods),
    );
    Ok(())
}

/// A container with its status; `None` if it was removed since the list.
async fn look_at(
    mut runtime: RuntimeServiceClient<Channel>,
    container: cri::Container,
) -> Result<Option<Listed>, String> {
    let request = cri::ContainerStatusRequest {
        container_id: container.id.clone(),
        // Verbose status has the pid. It reads files, so only running containers are asked.
        verbose: container.state() == cri::ContainerState::ContainerRunning,
    };
    let answer = match runtime.container_status(request).await {
        Err(status) if is_not_found(&status) => return Ok(None),
        Err(status) => {
            return Err(format!(
                "ContainerStatus {}: {}",
                container.id,
                status.message()
            ));
        }
        Ok(answer) => answer.into_inner(),
    };
    let info = answer.info.get("info").map_or("", String::as_str);
    let info: serde_json::Value = serde_json::from_str(info).unwrap_or_default();
    let pid = info["pid"].as_u64().filter(|pid| *pid != 0);
    Ok(answer.status.map(|status| Listed {
        container,
        status,
        pid,
    }))
}

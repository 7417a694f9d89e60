//! Every field of every CRI request is used, rejected by name, or harmless; the lists are checked
//! with the descriptors. `walk.rs` has the lists for the configurations of pods and containers.

use std::collections::BTreeSet;

use crate::walk::{self, CRI_HANDLED, CRI_OPAQUE};

/// Fields that affect the work or the answer, by the file that reads them (`cri/runtime/<rpc>.rs`
/// or `pod/<rpc>.rs` if none is named).
const USED: &[&str] = &[
    "AttachRequest.container_id",
    "AttachRequest.stderr",
    "AttachRequest.stdin",
    "AttachRequest.stdout",
    "AttachRequest.tty",
    "AuthConfig.auth",
    "AuthConfig.identity_token",
    "AuthConfig.password",
    "AuthConfig.registry_token",
    "AuthConfig.server_address",
    "AuthConfig.username",
    "ContainerFilter.id",
    "ContainerFilter.label_selector",
    "ContainerFilter.pod_sandbox_id",
    "ContainerFilter.state",
    "ContainerStateValue.state",
    "ContainerStatsFilter.id",
    "ContainerStatsFilter.label_selector",
    "ContainerStatsFilter.pod_sandbox_id",
    "ContainerStatsRequest.container_id",
    "ContainerStatusRequest.container_id",
    "ContainerStatusRequest.verbose",
    "CreateContainerRequest.config",
    "CreateContainerRequest.pod_sandbox_id",
    "CreateContainerRequest.sandbox_config",
    "ExecRequest.cmd",
    "ExecRequest.container_id",
    "ExecRequest.stderr",
    "ExecRequest.stdin",
    "ExecRequest.stdout",
    "ExecRequest.tty",
    "ExecSyncRequest.cmd",
    "ExecSyncRequest.container_id",
    "ExecSyncRequest.timeout",
    "ImageFilter.image",
    "ImageStatusRequest.image",
    "ImageStatusRequest.verbose",
    "ListContainerStatsRequest.filter",
    "ListContainersRequest.filter",
    "ListImagesRequest.filter",
    "ListPodSandboxRequest.filter",
    "ListPodSandboxStatsRequest.filter",
    "PodSandboxFilter.id",
    "PodSandboxFilter.label_selector",
    "PodSandboxFilter.state",
    "PodSandboxStateValue.state",
    "PodSandboxStatsFilter.id",
    "PodSandboxStatsFilter.label_selector",
    "PodSandboxStatsRequest.pod_sandbox_id",
    "PodSandboxStatusRequest.pod_sandbox_id",
    "PodSandboxStatusRequest.verbose",
    "PortForwardRequest.pod_sandbox_id",
    "PortForwardRequest.port",
    "PullImageRequest.auth",
    "PullImageRequest.image",
    "RemoveContainerRequest.container_id",
    "RemoveImageRequest.image",
    "RemovePodSandboxRequest.pod_sandbox_id",
    "ReopenContainerLogRequest.container_id",
    "RunPodSandboxRequest.config",
    "RunPodSandboxRequest.runtime_handler",
    "StartContainerRequest.container_id",
    "StatusRequest.verbose",
    "StopContainerRequest.container_id",
    "StopContainerRequest.timeout",
    "StopPodSandboxRequest.pod_sandbox_id",
    "StreamContainerStatsRequest.filter",
    "StreamContainersRequest.filter",
    "StreamImagesRequest.filter",
    "StreamPodSandboxStatsRequest.filter",
    "StreamPodSandboxesRequest.filter",
    "UpdateContainerResourcesRequest.container_id",
    "UpdateContainerResourcesRequest.linux",
    "UpdatePodSandboxResourcesRequest.overhead",
    "UpdatePodSandboxResourcesRequest.pod_sandbox_id",
    "UpdatePodSandboxResourcesRequest.resources",
];

/// Fields that are rejected by name if set, and calls that are rejected completely.
const REFUSED: &[&str] = &[
    "CheckpointContainerRequest.container_id",
    "CheckpointContainerRequest.location",
    "CheckpointContainerRequest.timeout",
    "CheckpointPodRequest.container_ids",
    "CheckpointPodRequest.options",
    "CheckpointPodRequest.output_path",
    "CheckpointPodRequest.pod_sandbox_id",
    "RestorePodRequest.checkpoint_path",
    "RestorePodRequest.config",
    "RestorePodRequest.container_configs",
    "RestorePodRequest.options",
    "RestorePodRequest.runtime_handler",
    "UpdateContainerResourcesRequest.annotations",
    "UpdateContainerResourcesRequest.windows",
];

/// Fields without an effect, and the reason why none is needed.
const HARMLESS: &[(&str, &str)] = &[
    (
        "VersionRequest.version",
        "says what the client is; there is one version of the API, and the answer names it",
    ),
    (
        "PullImageRequest.sandbox_config",
        "an image is the same for all pods: nothing of it is put where only one pod is",
    ),
    (
        "UpdateRuntimeConfigRequest.runtime_config",
        "the kubelet tells the node's pod CIDR; the bridge's subnet and CNI's are the operator's",
    ),
    (
        "RuntimeConfig.network_config",
        "as UpdateRuntimeConfigRequest.runtime_config",
    ),
    (
        "NetworkConfig.pod_cidr",
        "as UpdateRuntimeConfigRequest.runtime_config",
    ),
];

#[test]
fn no_field_of_any_request_is_dropped_in_silence() {
    let set = proto_gen::descriptors("cri/api.proto").expect("it compiles");
    let methods = set.file.iter().flat_map(|file| &file.service);
    let methods = methods.flat_map(|service| &service.method);
    let inputs: BTreeSet<&str> = methods
        .filter_map(|method| method.input_type().rsplit('.').next())
        .collect();
    assert!(inputs.len() > 40, "{inputs:?}");
    let roots: Vec<&str> = inputs.into_iter().collect();
    let opaque = [CRI_OPAQUE, &["WindowsContainerResources"]].concat();
    let harmless: Vec<&str> = HARMLESS.iter().map(|(field, _)| *field).collect();
    let elsewhere: Vec<&str> = walk::CRI_ELSEWHERE
        .iter()
        .map(|(field, _)| *field)
        .collect();
    walk::check(
        "cri/api.proto",
        &roots,
        &opaque,
        &[
            CRI_HANDLED,
            &elsewhere,
            walk::CRI_REFUSED,
            USED,
            REFUSED,
            &harmless,
        ],
    );
}

//! RuntimeService: a method that changes a pod or container queues an operation in the pod
//! (`pod/op.rs`); others call the file of their name in `runtime/`.

use std::{sync::Arc, time::Duration};

use futures_util::TryStreamExt as _;
use proto_cri::v1::{runtime_service_server::RuntimeService, *};
use tonic::Status;

use super::{
    answer::{Answer, Streamed, answer, streamed},
    relays::relays,
    runtime::{
        attach::attach, container_stats::container_stats, container_status::container_status,
        exec::exec, exec_sync::exec_sync, get_container_events::get_container_events,
        list_container_stats::list_container_stats, list_containers::list_containers,
        list_metric_descriptors::list_metric_descriptors, list_pod_sandbox::list_pod_sandbox,
        list_pod_sandbox_metrics::list_pod_sandbox_metrics,
        list_pod_sandbox_stats::list_pod_sandbox_stats, pod_sandbox_stats::pod_sandbox_stats,
        pod_sandbox_status::pod_sandbox_status, port_forward::port_forward,
        reopen_container_log::reopen_container_log, runtime_config::runtime_config, status::status,
        update_runtime_config::update_runtime_config, version::version,
    },
    service::Cri,
    status::unserved,
};
use crate::pod::{create_container::create_container, op::Op, remove_by_id, run_pod_sandbox};

/// CRI-162.
const NO_CRIU: &str =
    "it needs CRIU, which cairn does not use: containers are made and not restored";

relays! {
    impl RuntimeService for Cri as |self|;

    type StreamPodSandboxesStream = Streamed<StreamPodSandboxesResponse>;
    type StreamContainersStream = Streamed<StreamContainersResponse>;
    type StreamContainerStatsStream = Streamed<StreamContainerStatsResponse>;
    type StreamPodSandboxStatsStream = Streamed<StreamPodSandboxStatsResponse>;
    type StreamPodSandboxMetricsStream = Streamed<StreamPodSandboxMetricsResponse>;
    type GetContainerEventsStream = Streamed<ContainerEventResponse>;

    fn version(_: VersionRequest) -> VersionResponse {
        version()
    }
    fn status(request: StatusRequest) -> StatusResponse {
        status(self, request.verbose).await
    }
    fn runtime_config(_: RuntimeConfigRequest) -> RuntimeConfigResponse {
        runtime_config(self.pods.node.policies.default.cgroup_driver)
    }
    fn update_runtime_config(request: UpdateRuntimeConfigRequest) -> UpdateRuntimeConfigResponse {
        update_runtime_config(&request)
    }

    fn run_pod_sandbox(request: RunPodSandboxRequest) -> RunPodSandboxResponse {
        RunPodSandboxResponse { pod_sandbox_id: run_pod_sandbox::run(&self.pods, request).await? }
    }
    fn stop_pod_sandbox(request: StopPodSandboxRequest) -> StopPodSandboxResponse {
        self.pods.registry.ask(&request.pod_sandbox_id, Op::StopPod).await?;
        StopPodSandboxResponse {}
    }
    fn remove_pod_sandbox(request: RemovePodSandboxRequest) -> RemovePodSandboxResponse {
        remove_by_id::pod(&self.pods, &request.pod_sandbox_id).await?;
        RemovePodSandboxResponse {}
    }
    fn update_pod_sandbox_resources(request: UpdatePodSandboxResourcesRequest) -> UpdatePodSandboxResourcesResponse {
        let id = request.pod_sandbox_id.clone();
        self.pods.registry.ask(&id, Op::UpdatePod(Arc::new(request))).await?;
        UpdatePodSandboxResourcesResponse {}
    }
    fn pod_sandbox_status(request: PodSandboxStatusRequest) -> PodSandboxStatusResponse {
        pod_sandbox_status(&self.pods.registry, &*self.pods.node.machine, &request)?
    }
    fn list_pod_sandbox(request: ListPodSandboxRequest) -> ListPodSandboxResponse {
        ListPodSandboxResponse { items: list_pod_sandbox(&self.pods.registry, request.filter.as_ref()) }
    }
    fn stream_pod_sandboxes(request: StreamPodSandboxesRequest) -> Streamed<StreamPodSandboxesResponse> {
        streamed(list_pod_sandbox(&self.pods.registry, request.filter.as_ref()), |pod_sandboxes| {
            StreamPodSandboxesResponse { pod_sandboxes }
        })
    }

    fn create_container(request: CreateContainerRequest) -> CreateContainerResponse {
        CreateContainerResponse { container_id: create_container(&self.pods.registry, request).await? }
    }
    fn start_container(request: StartContainerRequest) -> StartContainerResponse {
        self.pods.registry.ask_container(&request.container_id, Op::Start).await?;
        StartContainerResponse {}
    }
    fn stop_container(request: StopContainerRequest) -> StopContainerResponse {
        // Zero or less: kill at once.
        let grace = Duration::from_secs(u64::try_from(request.timeout).unwrap_or(0));
        self.pods.registry.ask_container(&request.container_id, Op::Stop { grace }).await?;
        StopContainerResponse {}
    }
    fn remove_container(request: RemoveContainerRequest) -> RemoveContainerResponse {
        remove_by_id::container(&self.pods, &request.container_id).await?;
        RemoveContainerResponse {}
    }
    fn update_container_resources(request: UpdateContainerResourcesRequest) -> UpdateContainerResourcesResponse {
        let id = request.container_id.clone();
        self.pods.registry.ask_container(&id, Op::Update(Arc::new(request))).await?;
        UpdateContainerResourcesResponse {}
    }
    fn container_status(request: ContainerStatusRequest) -> ContainerStatusResponse {
        container_status(&self.pods.registry, &self.pods.node.specs, request).await?
    }
    fn list_containers(request: ListContainersRequest) -> ListContainersResponse {
        ListContainersResponse { containers: list_containers(&self.pods.registry, request.filter.as_ref()) }
    }
    fn stream_containers(request: StreamContainersRequest) -> Streamed<StreamContainersResponse> {
        streamed(list_containers(&self.pods.registry, request.filter.as_ref()), |containers| {
            StreamContainersResponse { containers }
        })
    }
    fn reopen_container_log(request: ReopenContainerLogRequest) -> ReopenContainerLogResponse {
        reopen_container_log(&self.pods.registry, request).await?
    }
    fn get_container_events(_: GetEventsRequest) -> Streamed<ContainerEventResponse> {
        Box::pin(get_container_events(&self.pods.notices.events)?.map_err(Status::from))
    }

    fn exec_sync(request: ExecSyncRequest) -> ExecSyncResponse {
        exec_sync(&self.pods.registry, &self.pods.node.specs, request).await?
    }
    fn exec(request: ExecRequest) -> ExecResponse {
        exec(&self.pods.registry, &self.pods.node.specs, &self.streams, request).await?
    }
    fn attach(request: AttachRequest) -> AttachResponse {
        attach(&self.pods.registry, &self.streams, &request).await?
    }
    fn port_forward(request: PortForwardRequest) -> PortForwardResponse {
        port_forward(&self.pods.registry, &self.streams, &request)?
    }

    fn container_stats(request: ContainerStatsRequest) -> ContainerStatsResponse {
        container_stats(&self.statistics, &request).await?
    }
    fn list_container_stats(request: ListContainerStatsRequest) -> ListContainerStatsResponse {
        ListContainerStatsResponse {
            stats: list_container_stats(&self.statistics, request.filter).await,
        }
    }
    fn stream_container_stats(request: StreamContainerStatsRequest) -> Streamed<StreamContainerStatsResponse> {
        streamed(list_container_stats(&self.statistics, request.filter).await, |container_stats| {
            StreamContainerStatsResponse { container_stats }
        })
    }
    fn pod_sandbox_stats(request: PodSandboxStatsRequest) -> PodSandboxStatsResponse {
        pod_sandbox_stats(&self.statistics, &request).await?
    }
    fn list_pod_sandbox_stats(request: ListPodSandboxStatsRequest) -> ListPodSandboxStatsResponse {
        ListPodSandboxStatsResponse {
            stats: list_pod_sandbox_stats(&self.statistics, request.filter).await,
        }
    }
    fn stream_pod_sandbox_stats(request: StreamPodSandboxStatsRequest) -> Streamed<StreamPodSandboxStatsResponse> {
        streamed(list_pod_sandbox_stats(&self.statistics, request.filter).await, |pod_sandbox_stats| {
            StreamPodSandboxStatsResponse { pod_sandbox_stats }
        })
    }
    fn list_metric_descriptors(_: ListMetricDescriptorsRequest) -> ListMetricDescriptorsResponse {
        list_metric_descriptors()
    }
    fn list_pod_sandbox_metrics(_: ListPodSandboxMetricsRequest) -> ListPodSandboxMetricsResponse {
        ListPodSandboxMetricsResponse {
            pod_metrics: list_pod_sandbox_metrics(&self.statistics).await,
        }
    }
    fn stream_pod_sandbox_metrics(_: StreamPodSandboxMetricsRequest) -> Streamed<StreamPodSandboxMetricsResponse> {
        streamed(list_pod_sandbox_metrics(&self.statistics).await, |pod_sandbox_metrics| {
            StreamPodSandboxMetricsResponse { pod_sandbox_metrics }
        })
    }

    fn checkpoint_container(_: CheckpointContainerRequest) -> CheckpointContainerResponse {
        Err(unserved("CheckpointContainer", NO_CRIU))?
    }
    fn checkpoint_pod(_: CheckpointPodRequest) -> CheckpointPodResponse {
        Err(unserved("CheckpointPod", NO_CRIU))?
    }
    fn restore_pod(_: RestorePodRequest) -> RestorePodResponse {
        Err(unserved("RestorePod", NO_CRIU))?
    }
}

//! RuntimeService: each method calls the file of its name in `runtime/`.

use futures_util::TryStreamExt as _;
use proto_cri::v1::{runtime_service_server::RuntimeService, *};
use tonic::Status;

use super::{
    answer::{Answer, Streamed, answer, streamed},
    relays::relays,
    runtime::{
        attach::attach, container_stats::container_stats, container_status::container_status,
        create_container::create_container, exec::exec, exec_sync::exec_sync,
        get_container_events::get_container_events, list_container_stats::list_container_stats,
        list_containers::list_containers, list_metric_descriptors::list_metric_descriptors,
        list_pod_sandbox::list_pod_sandbox, list_pod_sandbox_metrics::list_pod_sandbox_metrics,
        list_pod_sandbox_stats::list_pod_sandbox_stats, pod_sandbox_stats::pod_sandbox_stats,
        pod_sandbox_status::pod_sandbox_status, port_forward::port_forward,
        remove_container::remove_container, remove_pod_sandbox::remove_pod_sandbox,
        reopen_container_log::reopen_container_log, run_pod_sandbox::run_pod_sandbox,
        runtime_config::runtime_config, start_container::start_container, status::status,
        stop_container::stop_container, stop_pod_sandbox::stop_pod_sandbox,
        update_container_resources::update_container_resources,
        update_pod_sandbox_resources::update_pod_sandbox_resources,
        update_runtime_config::update_runtime_config, version::version,
    },
    service::Cri,
    status::unserved,
};

/// CRI-162.
const NO_CRIU: &str =
    "it needs CRIU, which cairn does not use: containers are made and not restored";

relays! {
    impl RuntimeService for Cri as |self, request|;

    type StreamPodSandboxesStream = Streamed<StreamPodSandboxesResponse>;
    type StreamContainersStream = Streamed<StreamContainersResponse>;
    type StreamContainerStatsStream = Streamed<StreamContainerStatsResponse>;
    type StreamPodSandboxStatsStream = Streamed<StreamPodSandboxStatsResponse>;
    type StreamPodSandboxMetricsStream = Streamed<StreamPodSandboxMetricsResponse>;
    type GetContainerEventsStream = Streamed<ContainerEventResponse>;

    fn version(VersionRequest) -> VersionResponse {
        version()
    }
    fn status(StatusRequest) -> StatusResponse {
        status(self, request.verbose).await
    }
    fn runtime_config(RuntimeConfigRequest) -> RuntimeConfigResponse {
        runtime_config(self.policies.default.cgroup_driver)
    }
    fn update_runtime_config(UpdateRuntimeConfigRequest) -> UpdateRuntimeConfigResponse {
        update_runtime_config(&request)
    }

    fn run_pod_sandbox(RunPodSandboxRequest) -> RunPodSandboxResponse {
        run_pod_sandbox(&self.run_pod_sandbox, request).await?
    }
    fn stop_pod_sandbox(StopPodSandboxRequest) -> StopPodSandboxResponse {
        stop_pod_sandbox(&self.pods, request).await?
    }
    fn remove_pod_sandbox(RemovePodSandboxRequest) -> RemovePodSandboxResponse {
        remove_pod_sandbox(&self.pods, request).await?
    }
    fn update_pod_sandbox_resources(UpdatePodSandboxResourcesRequest) -> UpdatePodSandboxResourcesResponse {
        update_pod_sandbox_resources(&self.pods, request).await?
    }
    fn pod_sandbox_status(PodSandboxStatusRequest) -> PodSandboxStatusResponse {
        pod_sandbox_status(&self.pods, &request)?
    }
    fn list_pod_sandbox(ListPodSandboxRequest) -> ListPodSandboxResponse {
        ListPodSandboxResponse { items: list_pod_sandbox(&self.pods, request.filter.as_ref()) }
    }
    fn stream_pod_sandboxes(StreamPodSandboxesRequest) -> Streamed<StreamPodSandboxesResponse> {
        streamed(list_pod_sandbox(&self.pods, request.filter.as_ref()), |pod_sandboxes| {
            StreamPodSandboxesResponse { pod_sandboxes }
        })
    }

    fn create_container(CreateContainerRequest) -> CreateContainerResponse {
        create_container(&self.pods, request).await?
    }
    fn start_container(StartContainerRequest) -> StartContainerResponse {
        start_container(&self.pods, request).await?
    }
    fn stop_container(StopContainerRequest) -> StopContainerResponse {
        stop_container(&self.pods, request).await?
    }
    fn remove_container(RemoveContainerRequest) -> RemoveContainerResponse {
        remove_container(&self.pods, request).await?
    }
    fn update_container_resources(UpdateContainerResourcesRequest) -> UpdateContainerResourcesResponse {
        update_container_resources(&self.pods, request).await?
    }
    fn container_status(ContainerStatusRequest) -> ContainerStatusResponse {
        container_status(&self.pods, &self.specs, request).await?
    }
    fn list_containers(ListContainersRequest) -> ListContainersResponse {
        ListContainersResponse { containers: list_containers(&self.pods, request.filter.as_ref()) }
    }
    fn stream_containers(StreamContainersRequest) -> Streamed<StreamContainersResponse> {
        streamed(list_containers(&self.pods, request.filter.as_ref()), |containers| {
            StreamContainersResponse { containers }
        })
    }
    fn reopen_container_log(ReopenContainerLogRequest) -> ReopenContainerLogResponse {
        reopen_container_log(&self.pods, request).await?
    }
    fn get_container_events(GetEventsRequest) -> Streamed<ContainerEventResponse> {
        Box::pin(get_container_events(&self.events)?.map_err(Status::from))
    }

    fn exec_sync(ExecSyncRequest) -> ExecSyncResponse {
        exec_sync(&self.pods, &self.specs, request).await?
    }
    fn exec(ExecRequest) -> ExecResponse {
        exec(&self.pods, &self.specs, &self.streams, request).await?
    }
    fn attach(AttachRequest) -> AttachResponse {
        attach(&self.pods, &self.streams, &request)?
    }
    fn port_forward(PortForwardRequest) -> PortForwardResponse {
        port_forward(&self.pods, &self.streams, &request)?
    }

    fn container_stats(ContainerStatsRequest) -> ContainerStatsResponse {
        container_stats(&self.statistics, &request).await?
    }
    fn list_container_stats(ListContainerStatsRequest) -> ListContainerStatsResponse {
        ListContainerStatsResponse {
            stats: list_container_stats(&self.statistics, request.filter).await,
        }
    }
    fn stream_container_stats(StreamContainerStatsRequest) -> Streamed<StreamContainerStatsResponse> {
        streamed(list_container_stats(&self.statistics, request.filter).await, |container_stats| {
            StreamContainerStatsResponse { container_stats }
        })
    }
    fn pod_sandbox_stats(PodSandboxStatsRequest) -> PodSandboxStatsResponse {
        pod_sandbox_stats(&self.statistics, &request).await?
    }
    fn list_pod_sandbox_stats(ListPodSandboxStatsRequest) -> ListPodSandboxStatsResponse {
        ListPodSandboxStatsResponse {
            stats: list_pod_sandbox_stats(&self.statistics, request.filter).await,
        }
    }
    fn stream_pod_sandbox_stats(StreamPodSandboxStatsRequest) -> Streamed<StreamPodSandboxStatsResponse> {
        streamed(list_pod_sandbox_stats(&self.statistics, request.filter).await, |pod_sandbox_stats| {
            StreamPodSandboxStatsResponse { pod_sandbox_stats }
        })
    }
    fn list_metric_descriptors(ListMetricDescriptorsRequest) -> ListMetricDescriptorsResponse {
        list_metric_descriptors()
    }
    fn list_pod_sandbox_metrics(ListPodSandboxMetricsRequest) -> ListPodSandboxMetricsResponse {
        ListPodSandboxMetricsResponse {
            pod_metrics: list_pod_sandbox_metrics(&self.statistics).await,
        }
    }
    fn stream_pod_sandbox_metrics(StreamPodSandboxMetricsRequest) -> Streamed<StreamPodSandboxMetricsResponse> {
        streamed(list_pod_sandbox_metrics(&self.statistics).await, |pod_sandbox_metrics| {
            StreamPodSandboxMetricsResponse { pod_sandbox_metrics }
        })
    }

    fn checkpoint_container(CheckpointContainerRequest) -> CheckpointContainerResponse {
        Err(unserved("CheckpointContainer", NO_CRIU))?
    }
    fn checkpoint_pod(CheckpointPodRequest) -> CheckpointPodResponse {
        Err(unserved("CheckpointPod", NO_CRIU))?
    }
    fn restore_pod(RestorePodRequest) -> RestorePodResponse {
        Err(unserved("RestorePod", NO_CRIU))?
    }
}

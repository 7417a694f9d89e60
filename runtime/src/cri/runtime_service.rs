//! RuntimeService: each method calls the file of its name in `runtime/`.

use futures_util::TryStreamExt as _;
use proto_cri::v1::{self as cri, runtime_service_server::RuntimeService};
use tonic::{Request, Status};

use super::{
    answer::{Answer, Streamed, answer, streamed},
    runtime::{
        attach::attach,
        container_stats::container_stats,
        container_status::container_status,
        create_container::create_container,
        exec::exec,
        exec_sync::exec_sync,
        get_container_events::get_container_events,
        list_container_stats::list_container_stats,
        list_containers::list_containers,
        list_metric_descriptors::list_metric_descriptors,
        list_pod_sandbox::list_pod_sandbox,
        list_pod_sandbox_metrics::list_pod_sandbox_metrics,
        list_pod_sandbox_stats::list_pod_sandbox_stats,
        pod_sandbox_stats::pod_sandbox_stats,
        pod_sandbox_status::pod_sandbox_status,
        port_forward::port_forward,
        remove_container::remove_container,
        remove_pod_sandbox::remove_pod_sandbox,
        reopen_container_log::reopen_container_log,
        run_pod_sandbox::run_pod_sandbox,
        runtime_config::runtime_config,
        start_container::start_container,
        status::{Facts, status},
        stop_container::stop_container,
        stop_pod_sandbox::stop_pod_sandbox,
        update_container_resources::update_container_resources,
        update_pod_sandbox_resources::update_pod_sandbox_resources,
        update_runtime_config::update_runtime_config,
        version::version,
    },
    service::Cri,
    status::unserved,
};

/// CRI-162.
const NO_CRIU: &str =
    "it needs CRIU, which cairn does not use: containers are made and not restored";

#[tonic::async_trait]
impl RuntimeService for Cri {
    async fn version(&self, _: Request<cri::VersionRequest>) -> Answer<cri::VersionResponse> {
        answer(version())
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<cri::RunPodSandboxRequest>,
    ) -> Answer<cri::RunPodSandboxResponse> {
        answer(run_pod_sandbox(&self.run_pod_sandbox, request.into_inner()).await?)
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<cri::StopPodSandboxRequest>,
    ) -> Answer<cri::StopPodSandboxResponse> {
        answer(stop_pod_sandbox(&self.pods, request.into_inner()).await?)
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<cri::RemovePodSandboxRequest>,
    ) -> Answer<cri::RemovePodSandboxResponse> {
        answer(remove_pod_sandbox(&self.pods, request.into_inner()).await?)
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<cri::PodSandboxStatusRequest>,
    ) -> Answer<cri::PodSandboxStatusResponse> {
        answer(pod_sandbox_status(&self.pods, request.get_ref())?)
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<cri::ListPodSandboxRequest>,
    ) -> Answer<cri::ListPodSandboxResponse> {
        let filter = request.get_ref().filter.as_ref();
        answer(cri::ListPodSandboxResponse {
            items: list_pod_sandbox(&self.pods, filter),
        })
    }

    type StreamPodSandboxesStream = Streamed<cri::StreamPodSandboxesResponse>;

    async fn stream_pod_sandboxes(
        &self,
        request: Request<cri::StreamPodSandboxesRequest>,
    ) -> Answer<Self::StreamPodSandboxesStream> {
        let filter = request.get_ref().filter.as_ref();
        let items = list_pod_sandbox(&self.pods, filter);
        Ok(streamed(items, |pod_sandboxes| {
            cri::StreamPodSandboxesResponse { pod_sandboxes }
        }))
    }

    async fn create_container(
        &self,
        request: Request<cri::CreateContainerRequest>,
    ) -> Answer<cri::CreateContainerResponse> {
        answer(create_container(&self.pods, request.into_inner()).await?)
    }

    async fn start_container(
        &self,
        request: Request<cri::StartContainerRequest>,
    ) -> Answer<cri::StartContainerResponse> {
        answer(start_container(&self.pods, request.into_inner()).await?)
    }

    async fn stop_container(
        &self,
        request: Request<cri::StopContainerRequest>,
    ) -> Answer<cri::StopContainerResponse> {
        answer(stop_container(&self.pods, request.into_inner()).await?)
    }

    async fn remove_container(
        &self,
        request: Request<cri::RemoveContainerRequest>,
    ) -> Answer<cri::RemoveContainerResponse> {
        answer(remove_container(&self.pods, request.into_inner()).await?)
    }

    async fn list_containers(
        &self,
        request: Request<cri::ListContainersRequest>,
    ) -> Answer<cri::ListContainersResponse> {
        let filter = request.get_ref().filter.as_ref();
        answer(cri::ListContainersResponse {
            containers: list_containers(&self.pods, filter),
        })
    }

    type StreamContainersStream = Streamed<cri::StreamContainersResponse>;

    async fn stream_containers(
        &self,
        request: Request<cri::StreamContainersRequest>,
    ) -> Answer<Self::StreamContainersStream> {
        let filter = request.get_ref().filter.as_ref();
        let items = list_containers(&self.pods, filter);
        Ok(streamed(items, |containers| {
            cri::StreamContainersResponse { containers }
        }))
    }

    async fn container_status(
        &self,
        request: Request<cri::ContainerStatusRequest>,
    ) -> Answer<cri::ContainerStatusResponse> {
        answer(container_status(&self.pods, &self.specs, request.into_inner()).await?)
    }

    async fn update_container_resources(
        &self,
        request: Request<cri::UpdateContainerResourcesRequest>,
    ) -> Answer<cri::UpdateContainerResourcesResponse> {
        answer(update_container_resources(&self.pods, request.into_inner()).await?)
    }

    async fn reopen_container_log(
        &self,
        request: Request<cri::ReopenContainerLogRequest>,
    ) -> Answer<cri::ReopenContainerLogResponse> {
        answer(reopen_container_log(&self.pods, request.into_inner()).await?)
    }

    async fn exec_sync(
        &self,
        request: Request<cri::ExecSyncRequest>,
    ) -> Answer<cri::ExecSyncResponse> {
        answer(exec_sync(&self.pods, &self.specs, request.into_inner()).await?)
    }

    async fn exec(&self, request: Request<cri::ExecRequest>) -> Answer<cri::ExecResponse> {
        let (pods, specs, streams) = (&self.pods, &self.specs, &self.streams);
        answer(exec(pods, specs, streams, request.into_inner()).await?)
    }

    async fn attach(&self, request: Request<cri::AttachRequest>) -> Answer<cri::AttachResponse> {
        let (pods, streams) = (&self.pods, &self.streams);
        answer(attach(pods, streams, request.get_ref())?)
    }

    async fn port_forward(
        &self,
        request: Request<cri::PortForwardRequest>,
    ) -> Answer<cri::PortForwardResponse> {
        let (pods, streams) = (&self.pods, &self.streams);
        answer(port_forward(pods, streams, request.get_ref())?)
    }

    async fn container_stats(
        &self,
        request: Request<cri::ContainerStatsRequest>,
    ) -> Answer<cri::ContainerStatsResponse> {
        answer(container_stats(&self.statistics, request.get_ref()).await?)
    }

    async fn list_container_stats(
        &self,
        request: Request<cri::ListContainerStatsRequest>,
    ) -> Answer<cri::ListContainerStatsResponse> {
        let filter = request.into_inner().filter;
        answer(cri::ListContainerStatsResponse {
            stats: list_container_stats(&self.statistics, filter).await,
        })
    }

    type StreamContainerStatsStream = Streamed<cri::StreamContainerStatsResponse>;

    async fn stream_container_stats(
        &self,
        request: Request<cri::StreamContainerStatsRequest>,
    ) -> Answer<Self::StreamContainerStatsStream> {
        let filter = request.into_inner().filter;
        let items = list_container_stats(&self.statistics, filter).await;
        Ok(streamed(items, |container_stats| {
            cri::StreamContainerStatsResponse { container_stats }
        }))
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<cri::PodSandboxStatsRequest>,
    ) -> Answer<cri::PodSandboxStatsResponse> {
        answer(pod_sandbox_stats(&self.statistics, request.get_ref()).await?)
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<cri::ListPodSandboxStatsRequest>,
    ) -> Answer<cri::ListPodSandboxStatsResponse> {
        let filter = request.into_inner().filter;
        answer(cri::ListPodSandboxStatsResponse {
            stats: list_pod_sandbox_stats(&self.statistics, filter).await,
        })
    }

    type StreamPodSandboxStatsStream = Streamed<cri::StreamPodSandboxStatsResponse>;

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<cri::StreamPodSandboxStatsRequest>,
    ) -> Answer<Self::StreamPodSandboxStatsStream> {
        let filter = request.into_inner().filter;
        let items = list_pod_sandbox_stats(&self.statistics, filter).await;
        Ok(streamed(items, |pod_sandbox_stats| {
            cri::StreamPodSandboxStatsResponse { pod_sandbox_stats }
        }))
    }

    async fn update_runtime_config(
        &self,
        request: Request<cri::UpdateRuntimeConfigRequest>,
    ) -> Answer<cri::UpdateRuntimeConfigResponse> {
        answer(update_runtime_config(request.get_ref()))
    }

    async fn status(&self, request: Request<cri::StatusRequest>) -> Answer<cri::StatusResponse> {
        let facts = Facts {
            config: &self.config,
            host: &self.host,
            policies: &self.policies,
            images: &self.images,
            network: &self.network,
            hooks: &self.hooks,
        };
        answer(status(facts, request.get_ref().verbose).await)
    }

    async fn checkpoint_container(
        &self,
        _: Request<cri::CheckpointContainerRequest>,
    ) -> Answer<cri::CheckpointContainerResponse> {
        Err(unserved("CheckpointContainer", NO_CRIU))
    }

    async fn checkpoint_pod(
        &self,
        _: Request<cri::CheckpointPodRequest>,
    ) -> Answer<cri::CheckpointPodResponse> {
        Err(unserved("CheckpointPod", NO_CRIU))
    }

    async fn restore_pod(
        &self,
        _: Request<cri::RestorePodRequest>,
    ) -> Answer<cri::RestorePodResponse> {
        Err(unserved("RestorePod", NO_CRIU))
    }

    type GetContainerEventsStream = Streamed<cri::ContainerEventResponse>;

    async fn get_container_events(
        &self,
        _: Request<cri::GetEventsRequest>,
    ) -> Answer<Self::GetContainerEventsStream> {
        let events = get_container_events(&self.events)?;
        answer(Box::pin(events.map_err(Status::from)))
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<cri::ListMetricDescriptorsRequest>,
    ) -> Answer<cri::ListMetricDescriptorsResponse> {
        answer(list_metric_descriptors())
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<cri::ListPodSandboxMetricsRequest>,
    ) -> Answer<cri::ListPodSandboxMetricsResponse> {
        answer(cri::ListPodSandboxMetricsResponse {
            pod_metrics: list_pod_sandbox_metrics(&self.statistics).await,
        })
    }

    type StreamPodSandboxMetricsStream = Streamed<cri::StreamPodSandboxMetricsResponse>;

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<cri::StreamPodSandboxMetricsRequest>,
    ) -> Answer<Self::StreamPodSandboxMetricsStream> {
        let items = list_pod_sandbox_metrics(&self.statistics).await;
        Ok(streamed(items, |pod_sandbox_metrics| {
            cri::StreamPodSandboxMetricsResponse {
                pod_sandbox_metrics,
            }
        }))
    }

    async fn runtime_config(
        &self,
        _: Request<cri::RuntimeConfigRequest>,
    ) -> Answer<cri::RuntimeConfigResponse> {
        answer(runtime_config(self.policies.default.cgroup_driver))
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<cri::UpdatePodSandboxResourcesRequest>,
    ) -> Answer<cri::UpdatePodSandboxResourcesResponse> {
        answer(update_pod_sandbox_resources(&self.pods, request.into_inner()).await?)
    }
}

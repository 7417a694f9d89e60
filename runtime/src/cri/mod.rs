//! The edge: the two CRI services. Methods delegate to one file per RPC; errors become gRPC
//! codes in `status.rs` alone. An RPC that is not served answers UNIMPLEMENTED by name
//! (CRI-005).

pub mod image;
pub mod runtime;
pub mod status;
pub mod view;

use std::{pin::Pin, sync::Arc};

use proto_cri::v1::{
    self as cri, image_service_server::ImageService, runtime_service_server::RuntimeService,
};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use self::status::unserved;
use crate::services::Services;

/// The longest message either way; stock clients accept as much (CRI-002).
pub const MAX_MESSAGE: usize = 16 << 20;
/// Items in one message of a streamed list (CRI-120).
const CHUNK: usize = 200;

/// Both services on one socket.
#[derive(Clone)]
pub struct Cri {
    pub services: Arc<Services>,
}

type Answer<T> = Result<Response<T>, Status>;
type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn answer<T>(value: T) -> Answer<T> {
    Ok(Response::new(value))
}

/// A list in messages of at most [`CHUNK`] items; an empty list is an empty stream.
fn streamed<I, M>(items: Vec<I>, message: fn(Vec<I>) -> M) -> Response<Streamed<M>>
where
    I: Send + 'static,
    M: Send + 'static,
{
    let mut messages = Vec::with_capacity(items.len().div_ceil(CHUNK));
    let mut items = items.into_iter().peekable();
    while items.peek().is_some() {
        messages.push(Ok(message(items.by_ref().take(CHUNK).collect())));
    }
    Response::new(Box::pin(tokio_stream::iter(messages)))
}

#[tonic::async_trait]
impl RuntimeService for Cri {
    async fn version(&self, _: Request<cri::VersionRequest>) -> Answer<cri::VersionResponse> {
        answer(runtime::version::version())
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<cri::RunPodSandboxRequest>,
    ) -> Answer<cri::RunPodSandboxResponse> {
        answer(
            runtime::run_pod_sandbox::run_pod_sandbox(&self.services, request.into_inner()).await?,
        )
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<cri::StopPodSandboxRequest>,
    ) -> Answer<cri::StopPodSandboxResponse> {
        answer(
            runtime::stop_pod_sandbox::stop_pod_sandbox(&self.services, request.into_inner())
                .await?,
        )
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<cri::RemovePodSandboxRequest>,
    ) -> Answer<cri::RemovePodSandboxResponse> {
        answer(
            runtime::remove_pod_sandbox::remove_pod_sandbox(&self.services, request.into_inner())
                .await?,
        )
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<cri::PodSandboxStatusRequest>,
    ) -> Answer<cri::PodSandboxStatusResponse> {
        answer(runtime::pod_sandbox_status::pod_sandbox_status(
            &self.services,
            request.get_ref(),
        )?)
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<cri::ListPodSandboxRequest>,
    ) -> Answer<cri::ListPodSandboxResponse> {
        let filter = request.get_ref().filter.as_ref();
        answer(cri::ListPodSandboxResponse {
            items: runtime::list_pod_sandbox::list_pod_sandbox(&self.services, filter),
        })
    }

    type StreamPodSandboxesStream = Streamed<cri::StreamPodSandboxesResponse>;

    async fn stream_pod_sandboxes(
        &self,
        request: Request<cri::StreamPodSandboxesRequest>,
    ) -> Answer<Self::StreamPodSandboxesStream> {
        let filter = request.get_ref().filter.as_ref();
        let items = runtime::list_pod_sandbox::list_pod_sandbox(&self.services, filter);
        Ok(streamed(items, |pod_sandboxes| {
            cri::StreamPodSandboxesResponse { pod_sandboxes }
        }))
    }

    async fn create_container(
        &self,
        request: Request<cri::CreateContainerRequest>,
    ) -> Answer<cri::CreateContainerResponse> {
        answer(
            runtime::create_container::create_container(&self.services, request.into_inner())
                .await?,
        )
    }

    async fn start_container(
        &self,
        request: Request<cri::StartContainerRequest>,
    ) -> Answer<cri::StartContainerResponse> {
        answer(
            runtime::start_container::start_container(&self.services, request.into_inner()).await?,
        )
    }

    async fn stop_container(
        &self,
        request: Request<cri::StopContainerRequest>,
    ) -> Answer<cri::StopContainerResponse> {
        answer(runtime::stop_container::stop_container(&self.services, request.into_inner()).await?)
    }

    async fn remove_container(
        &self,
        request: Request<cri::RemoveContainerRequest>,
    ) -> Answer<cri::RemoveContainerResponse> {
        answer(
            runtime::remove_container::remove_container(&self.services, request.into_inner())
                .await?,
        )
    }

    async fn list_containers(
        &self,
        request: Request<cri::ListContainersRequest>,
    ) -> Answer<cri::ListContainersResponse> {
        let filter = request.get_ref().filter.as_ref();
        answer(cri::ListContainersResponse {
            containers: runtime::list_containers::list_containers(&self.services, filter),
        })
    }

    type StreamContainersStream = Streamed<cri::StreamContainersResponse>;

    async fn stream_containers(
        &self,
        request: Request<cri::StreamContainersRequest>,
    ) -> Answer<Self::StreamContainersStream> {
        let filter = request.get_ref().filter.as_ref();
        let items = runtime::list_containers::list_containers(&self.services, filter);
        Ok(streamed(items, |containers| {
            cri::StreamContainersResponse { containers }
        }))
    }

    async fn container_status(
        &self,
        request: Request<cri::ContainerStatusRequest>,
    ) -> Answer<cri::ContainerStatusResponse> {
        answer(
            runtime::container_status::container_status(&self.services, request.into_inner())
                .await?,
        )
    }

    async fn update_container_resources(
        &self,
        request: Request<cri::UpdateContainerResourcesRequest>,
    ) -> Answer<cri::UpdateContainerResourcesResponse> {
        answer(
            runtime::update_container_resources::update_container_resources(
                &self.services,
                request.into_inner(),
            )
            .await?,
        )
    }

    async fn reopen_container_log(
        &self,
        request: Request<cri::ReopenContainerLogRequest>,
    ) -> Answer<cri::ReopenContainerLogResponse> {
        answer(
            runtime::reopen_container_log::reopen_container_log(
                &self.services,
                request.into_inner(),
            )
            .await?,
        )
    }

    async fn exec_sync(
        &self,
        request: Request<cri::ExecSyncRequest>,
    ) -> Answer<cri::ExecSyncResponse> {
        answer(runtime::exec_sync::exec_sync(&self.services, request.into_inner()).await?)
    }

    async fn exec(&self, _: Request<cri::ExecRequest>) -> Answer<cri::ExecResponse> {
        Err(unserved("Exec (streaming)"))
    }

    async fn attach(&self, _: Request<cri::AttachRequest>) -> Answer<cri::AttachResponse> {
        Err(unserved("Attach"))
    }

    async fn port_forward(
        &self,
        _: Request<cri::PortForwardRequest>,
    ) -> Answer<cri::PortForwardResponse> {
        Err(unserved("PortForward"))
    }

    async fn container_stats(
        &self,
        _: Request<cri::ContainerStatsRequest>,
    ) -> Answer<cri::ContainerStatsResponse> {
        Err(unserved("ContainerStats"))
    }

    async fn list_container_stats(
        &self,
        _: Request<cri::ListContainerStatsRequest>,
    ) -> Answer<cri::ListContainerStatsResponse> {
        Err(unserved("ListContainerStats"))
    }

    type StreamContainerStatsStream = Streamed<cri::StreamContainerStatsResponse>;

    async fn stream_container_stats(
        &self,
        _: Request<cri::StreamContainerStatsRequest>,
    ) -> Answer<Self::StreamContainerStatsStream> {
        Err(unserved("StreamContainerStats"))
    }

    async fn pod_sandbox_stats(
        &self,
        _: Request<cri::PodSandboxStatsRequest>,
    ) -> Answer<cri::PodSandboxStatsResponse> {
        Err(unserved("PodSandboxStats"))
    }

    async fn list_pod_sandbox_stats(
        &self,
        _: Request<cri::ListPodSandboxStatsRequest>,
    ) -> Answer<cri::ListPodSandboxStatsResponse> {
        Err(unserved("ListPodSandboxStats"))
    }

    type StreamPodSandboxStatsStream = Streamed<cri::StreamPodSandboxStatsResponse>;

    async fn stream_pod_sandbox_stats(
        &self,
        _: Request<cri::StreamPodSandboxStatsRequest>,
    ) -> Answer<Self::StreamPodSandboxStatsStream> {
        Err(unserved("StreamPodSandboxStats"))
    }

    async fn update_runtime_config(
        &self,
        request: Request<cri::UpdateRuntimeConfigRequest>,
    ) -> Answer<cri::UpdateRuntimeConfigResponse> {
        answer(runtime::update_runtime_config::update_runtime_config(
            request.get_ref(),
        ))
    }

    async fn status(&self, request: Request<cri::StatusRequest>) -> Answer<cri::StatusResponse> {
        answer(runtime::status::status(&self.services, request.get_ref().verbose).await)
    }

    async fn checkpoint_container(
        &self,
        _: Request<cri::CheckpointContainerRequest>,
    ) -> Answer<cri::CheckpointContainerResponse> {
        Err(unserved("CheckpointContainer"))
    }

    async fn checkpoint_pod(
        &self,
        _: Request<cri::CheckpointPodRequest>,
    ) -> Answer<cri::CheckpointPodResponse> {
        Err(unserved("CheckpointPod"))
    }

    async fn restore_pod(
        &self,
        _: Request<cri::RestorePodRequest>,
    ) -> Answer<cri::RestorePodResponse> {
        Err(unserved("RestorePod"))
    }

    type GetContainerEventsStream = Streamed<cri::ContainerEventResponse>;

    async fn get_container_events(
        &self,
        _: Request<cri::GetEventsRequest>,
    ) -> Answer<Self::GetContainerEventsStream> {
        // Kubelet falls back to its generic PLEG (CRI-161).
        Err(unserved("GetContainerEvents"))
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<cri::ListMetricDescriptorsRequest>,
    ) -> Answer<cri::ListMetricDescriptorsResponse> {
        Err(unserved("ListMetricDescriptors"))
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<cri::ListPodSandboxMetricsRequest>,
    ) -> Answer<cri::ListPodSandboxMetricsResponse> {
        Err(unserved("ListPodSandboxMetrics"))
    }

    type StreamPodSandboxMetricsStream = Streamed<cri::StreamPodSandboxMetricsResponse>;

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<cri::StreamPodSandboxMetricsRequest>,
    ) -> Answer<Self::StreamPodSandboxMetricsStream> {
        Err(unserved("StreamPodSandboxMetrics"))
    }

    async fn runtime_config(
        &self,
        _: Request<cri::RuntimeConfigRequest>,
    ) -> Answer<cri::RuntimeConfigResponse> {
        answer(runtime::runtime_config::runtime_config())
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<cri::UpdatePodSandboxResourcesRequest>,
    ) -> Answer<cri::UpdatePodSandboxResourcesResponse> {
        answer(
            runtime::update_pod_sandbox_resources::update_pod_sandbox_resources(
                &self.services,
                request.into_inner(),
            )
            .await?,
        )
    }
}

#[tonic::async_trait]
impl ImageService for Cri {
    async fn list_images(
        &self,
        request: Request<cri::ListImagesRequest>,
    ) -> Answer<cri::ListImagesResponse> {
        let filter = request.get_ref().filter.as_ref();
        answer(cri::ListImagesResponse {
            images: image::list_images::list_images(&self.services, filter)?,
        })
    }

    type StreamImagesStream = Streamed<cri::StreamImagesResponse>;

    async fn stream_images(
        &self,
        request: Request<cri::StreamImagesRequest>,
    ) -> Answer<Self::StreamImagesStream> {
        let filter = request.get_ref().filter.as_ref();
        let items = image::list_images::list_images(&self.services, filter)?;
        Ok(streamed(items, |images| cri::StreamImagesResponse {
            images,
        }))
    }

    async fn image_status(
        &self,
        request: Request<cri::ImageStatusRequest>,
    ) -> Answer<cri::ImageStatusResponse> {
        answer(image::image_status::image_status(
            &self.services,
            request.get_ref(),
        )?)
    }

    async fn pull_image(
        &self,
        request: Request<cri::PullImageRequest>,
    ) -> Answer<cri::PullImageResponse> {
        answer(image::pull_image::pull_image(&self.services, request.into_inner()).await?)
    }

    async fn remove_image(
        &self,
        request: Request<cri::RemoveImageRequest>,
    ) -> Answer<cri::RemoveImageResponse> {
        answer(image::remove_image::remove_image(&self.services, request.into_inner()).await?)
    }

    async fn image_fs_info(
        &self,
        _: Request<cri::ImageFsInfoRequest>,
    ) -> Answer<cri::ImageFsInfoResponse> {
        answer(image::image_fs_info::image_fs_info(&self.services))
    }
}

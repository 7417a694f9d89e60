//! The edge: the two CRI services. Methods delegate to one file per RPC; errors become gRPC
//! codes in `status.rs` alone. An RPC that is not served answers UNIMPLEMENTED by name
//! (CRI-005).

pub mod image;
mod measure;
pub mod runtime;
pub mod status;
pub mod view;

use std::{pin::Pin, sync::Arc};

use futures_util::TryStreamExt as _;
use prost::Message;
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
/// Bytes of items in one message of a streamed list: a pod's metrics may have 100 kB.
const CHUNK_BYTES: usize = 4 << 20;

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

/// A list in messages as [`chunks`] cuts it; an empty list is an empty stream.
fn streamed<I, M>(items: Vec<I>, message: fn(Vec<I>) -> M) -> Response<Streamed<M>>
where
    I: Message,
    M: Send + 'static,
{
    let messages: Vec<_> = chunks(items)
        .into_iter()
        .map(|chunk| Ok(message(chunk)))
        .collect();
    Response::new(Box::pin(tokio_stream::iter(messages)))
}

/// Items in their order, at most [`CHUNK`] of them or [`CHUNK_BYTES`] together; an item that is
/// larger stands alone.
fn chunks<I: Message>(items: Vec<I>) -> Vec<Vec<I>> {
    let mut chunks: Vec<Vec<I>> = Vec::new();
    let mut bytes = 0;
    for item in items {
        let size = item.encoded_len();
        match chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK && bytes + size <= CHUNK_BYTES => {
                bytes += size;
                chunk.push(item);
            }
            _ => {
                bytes = size;
                chunks.push(vec![item]);
            }
        }
    }
    chunks
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
        request: Request<cri::ContainerStatsRequest>,
    ) -> Answer<cri::ContainerStatsResponse> {
        answer(runtime::container_stats::container_stats(&self.services, request.get_ref()).await?)
    }

    async fn list_container_stats(
        &self,
        request: Request<cri::ListContainerStatsRequest>,
    ) -> Answer<cri::ListContainerStatsResponse> {
        let filter = request.into_inner().filter;
        answer(cri::ListContainerStatsResponse {
            stats: runtime::list_container_stats::list_container_stats(&self.services, filter)
                .await,
        })
    }

    type StreamContainerStatsStream = Streamed<cri::StreamContainerStatsResponse>;

    async fn stream_container_stats(
        &self,
        request: Request<cri::StreamContainerStatsRequest>,
    ) -> Answer<Self::StreamContainerStatsStream> {
        let filter = request.into_inner().filter;
        let items =
            runtime::list_container_stats::list_container_stats(&self.services, filter).await;
        Ok(streamed(items, |container_stats| {
            cri::StreamContainerStatsResponse { container_stats }
        }))
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<cri::PodSandboxStatsRequest>,
    ) -> Answer<cri::PodSandboxStatsResponse> {
        answer(
            runtime::pod_sandbox_stats::pod_sandbox_stats(&self.services, request.get_ref())
                .await?,
        )
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<cri::ListPodSandboxStatsRequest>,
    ) -> Answer<cri::ListPodSandboxStatsResponse> {
        let filter = request.into_inner().filter;
        answer(cri::ListPodSandboxStatsResponse {
            stats: runtime::list_pod_sandbox_stats::list_pod_sandbox_stats(&self.services, filter)
                .await,
        })
    }

    type StreamPodSandboxStatsStream = Streamed<cri::StreamPodSandboxStatsResponse>;

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<cri::StreamPodSandboxStatsRequest>,
    ) -> Answer<Self::StreamPodSandboxStatsStream> {
        let filter = request.into_inner().filter;
        let items =
            runtime::list_pod_sandbox_stats::list_pod_sandbox_stats(&self.services, filter).await;
        Ok(streamed(items, |pod_sandbox_stats| {
            cri::StreamPodSandboxStatsResponse { pod_sandbox_stats }
        }))
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
        let events = runtime::get_container_events::get_container_events(&self.services)?;
        answer(Box::pin(events.map_err(Status::from)))
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<cri::ListMetricDescriptorsRequest>,
    ) -> Answer<cri::ListMetricDescriptorsResponse> {
        answer(runtime::list_metric_descriptors::list_metric_descriptors())
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<cri::ListPodSandboxMetricsRequest>,
    ) -> Answer<cri::ListPodSandboxMetricsResponse> {
        answer(cri::ListPodSandboxMetricsResponse {
            pod_metrics: runtime::list_pod_sandbox_metrics::list_pod_sandbox_metrics(
                &self.services,
            )
            .await,
        })
    }

    type StreamPodSandboxMetricsStream = Streamed<cri::StreamPodSandboxMetricsResponse>;

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<cri::StreamPodSandboxMetricsRequest>,
    ) -> Answer<Self::StreamPodSandboxMetricsStream> {
        let items =
            runtime::list_pod_sandbox_metrics::list_pod_sandbox_metrics(&self.services).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn image(bytes: usize) -> cri::Image {
        cri::Image {
            id: "i".repeat(bytes),
            ..Default::default()
        }
    }

    fn lengths(items: Vec<cri::Image>) -> Vec<usize> {
        chunks(items).iter().map(Vec::len).collect()
    }

    #[test]
    fn a_streamed_list_is_cut_by_count_and_by_bytes_and_loses_nothing() {
        assert_eq!(lengths(Vec::new()), [0; 0]);
        assert_eq!(lengths(vec![image(10); CHUNK + 1]), [CHUNK, 1]);
        // With the field's own bytes, three of these are more than fits.
        assert_eq!(lengths(vec![image(CHUNK_BYTES / 3); 5]), [2, 2, 1]);
        let large = vec![image(1), image(CHUNK_BYTES), image(1)];
        assert_eq!(lengths(large), [1, 1, 1]);
    }
}

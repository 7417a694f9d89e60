//! ImageService: each method calls the file of its name in `image/`.

use proto_cri::v1::{self as cri, image_service_server::ImageService};
use tonic::Request;

use super::{
    answer::{Answer, Streamed, answer, streamed},
    image::{
        image_fs_info::image_fs_info, image_status::image_status, list_images::list_images,
        pull_image::pull_image, remove_image::remove_image,
    },
    service::Cri,
};

#[tonic::async_trait]
impl ImageService for Cri {
    async fn list_images(
        &self,
        request: Request<cri::ListImagesRequest>,
    ) -> Answer<cri::ListImagesResponse> {
        let filter = request.get_ref().filter.as_ref();
        answer(cri::ListImagesResponse {
            images: list_images(&self.images, filter)?,
        })
    }

    type StreamImagesStream = Streamed<cri::StreamImagesResponse>;

    async fn stream_images(
        &self,
        request: Request<cri::StreamImagesRequest>,
    ) -> Answer<Self::StreamImagesStream> {
        let filter = request.get_ref().filter.as_ref();
        let items = list_images(&self.images, filter)?;
        Ok(streamed(items, |images| cri::StreamImagesResponse {
            images,
        }))
    }

    async fn image_status(
        &self,
        request: Request<cri::ImageStatusRequest>,
    ) -> Answer<cri::ImageStatusResponse> {
        answer(image_status(&self.images, request.get_ref()).await?)
    }

    async fn pull_image(
        &self,
        request: Request<cri::PullImageRequest>,
    ) -> Answer<cri::PullImageResponse> {
        answer(pull_image(&self.images, &self.policies, request.into_inner()).await?)
    }

    async fn remove_image(
        &self,
        request: Request<cri::RemoveImageRequest>,
    ) -> Answer<cri::RemoveImageResponse> {
        answer(remove_image(&self.images, request.into_inner()).await?)
    }

    async fn image_fs_info(
        &self,
        _: Request<cri::ImageFsInfoRequest>,
    ) -> Answer<cri::ImageFsInfoResponse> {
        answer(image_fs_info(&self.images))
    }
}

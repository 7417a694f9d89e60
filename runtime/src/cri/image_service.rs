//! ImageService: each method calls the file of its name in `image/`.

use proto_cri::v1::{image_service_server::ImageService, *};

use super::{
    answer::{Answer, Streamed, answer, streamed},
    image::{
        image_fs_info::image_fs_info, image_status::image_status, list_images::list_images,
        pull_image::pull_image, remove_image::remove_image,
    },
    relays::relays,
    service::Cri,
};

relays! {
    impl ImageService for Cri as |self|;

    type StreamImagesStream = Streamed<StreamImagesResponse>;

    fn list_images(request: ListImagesRequest) -> ListImagesResponse {
        ListImagesResponse { images: list_images(&self.pods.node.images, request.filter.as_ref())? }
    }
    fn stream_images(request: StreamImagesRequest) -> Streamed<StreamImagesResponse> {
        streamed(list_images(&self.pods.node.images, request.filter.as_ref())?, |images| {
            StreamImagesResponse { images }
        })
    }
    fn image_status(request: ImageStatusRequest) -> ImageStatusResponse {
        image_status(&self.pods.node.images, &request).await?
    }
    fn pull_image(request: PullImageRequest) -> PullImageResponse {
        pull_image(&self.pods.node.images, &self.pods.node.policies, request).await?
    }
    fn remove_image(request: RemoveImageRequest) -> RemoveImageResponse {
        remove_image(&self.pods.node.images, request).await?
    }
    fn image_fs_info(_: ImageFsInfoRequest) -> ImageFsInfoResponse {
        image_fs_info(&self.pods.node.images)
    }
}

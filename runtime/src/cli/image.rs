//! `cairn image ls`, `pull` and `rm` by CRI; the progress of a pull by `cairn.v1`.

use std::{convert::Infallible, time::Duration};

use proto_cairn::v1::{PullsRequest, cairn_client::CairnClient};
use proto_cri::v1::{self as cri, image_service_client::ImageServiceClient};
use serde_json::json;
use tonic::transport::Channel;

use super::{
    args::{Ask, ImagePull, ImageRm},
    client::{channel, containers, status_text},
    image_table,
    pull_progress::Shown,
    standard_output,
};
use crate::{cri::MAX_MESSAGE, image::Reference};

/// Interval of progress requests.
const LOOK: Duration = Duration::from_millis(250);

/// `cairn image ls`.
///
/// # Errors
/// One line for the user.
pub async fn ls(ask: Ask) -> Result<(), String> {
    let channel = channel(&ask.connect).await?;
    let mut client =
        ImageServiceClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
    let images = client
        .list_images(cri::ListImagesRequest::default())
        .await
        .map_err(|status| format!("ListImages: {}", status.message()))?
        .into_inner()
        .images;
    let images = image_table::images(images, &containers(channel).await?);
    ask.output.print(
        || image_table::table(&images),
        || json!({ "images": images }),
    );
    Ok(())
}

/// `cairn image pull IMAGE`, until the image is present or `interrupted` is ready: then the daemon
/// cancels the pull, unless another caller waits for it. Prints the image's id and name.
///
/// # Errors
/// One line for the user, without credentials.
pub async fn pull(
    arguments: ImagePull,
    interrupted: impl Future<Output = ()>,
) -> Result<(), String> {
    let reference: Reference = arguments.image.parse().map_err(|e| format!("{e}"))?;
    let auth = arguments.creds.as_deref().map(credentials).transpose()?;
    let channel = channel(&arguments.connect).await?;
    let name = reference.to_string();
    let request = cri::PullImageRequest {
        image: named(arguments.image),
        auth,
        sandbox_config: None,
    };
    let mut client = ImageServiceClient::new(channel.clone());
    let mut shown = Shown::of(name.clone());
    let answer = tokio::select! {
        answer = client.pull_image(request) => Some(answer),
        () = interrupted => None,
        never = watch(channel, &name, &mut shown) => match never {},
    };
    shown.end();
    let answer = answer.ok_or_else(|| {
        format!("pull {name}: interrupted: it is given up, unless another waits for the same")
    })?;
    let answer = answer.map_err(status_text)?;
    let line = format!("{} {name}\n", answer.into_inner().image_ref);
    standard_output::write(&line).map(drop)
}

/// Shows the progress of the pull; a runtime without progress is asked once.
async fn watch(channel: Channel, name: &str, shown: &mut Shown) -> Infallible {
    let mut client = CairnClient::new(channel);
    let mut tick = tokio::time::interval(LOOK);
    loop {
        tick.tick().await;
        let Ok(answer) = client.pulls(PullsRequest {}).await else {
            return std::future::pending().await;
        };
        let pulls = answer.into_inner().pulls;
        // Other credentials make another pull of the same image: the one ahead is shown.
        let of_this = pulls.iter().filter(|pull| pull.image == name);
        if let Some(pull) = of_this.max_by_key(|pull| pull.bytes) {
            shown.show(pull.bytes, pull.of_bytes);
        }
    }
}

/// Parses `--creds`. Errors do not repeat the value, because the screen may be visible to others.
fn credentials(given: &str) -> Result<cri::AuthConfig, String> {
    let (username, password) = given
        .split_once(':')
        .ok_or("--creds: user:password is expected")?;
    Ok(cri::AuthConfig {
        username: username.to_owned(),
        password: password.to_owned(),
        ..Default::default()
    })
}

/// An image's name as in requests.
fn named(image: String) -> Option<cri::ImageSpec> {
    Some(cri::ImageSpec {
        image,
        ..Default::default()
    })
}

/// `cairn image rm IMAGE...`: prints each removed id with its removed names.
///
/// # Errors
/// One line for the user; images after the first failure are not tried.
pub async fn rm(arguments: ImageRm) -> Result<(), String> {
    let channel = channel(&arguments.connect).await?;
    let mut client = ImageServiceClient::new(channel.clone());
    for wanted in arguments.images {
        let request = cri::ImageStatusRequest {
            image: named(wanted.clone()),
            verbose: false,
        };
        let found = client
            .image_status(request)
            .await
            .map_err(|status| format!("image {wanted}: {}", status.message()))?
            .into_inner()
            .image
            .ok_or_else(|| {
                format!(
                    "image {wanted}: there is none of this name or id: `cairn image ls` lists all"
                )
            })?;
        let containers = containers(channel.clone()).await?;
        let users = image_table::users(&found.id, &containers);
        let request = cri::RemoveImageRequest {
            image: named(found.id.clone()),
        };
        client.remove_image(request).await.map_err(status_text)?;
        let line = format!("{} {}\n", found.id, found.repo_tags.join(" "));
        let _ = standard_output::write(&line)?;
        if !users.is_empty() {
            eprintln!(
                "cairn: {wanted} was in use: its layers stay until these containers are removed: {}",
                image_table::named(&users)
            );
        }
    }
    Ok(())
}

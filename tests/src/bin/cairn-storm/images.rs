//! A client's calls on its own images: pull, status, remove.

use cairn_tests::cri;

use crate::{
    book::{Stage, subject},
    calls::{Link, Manner, Outcome, Subject},
    registry,
    report::Op,
};

/// One image of a client's own.
pub(crate) struct Image {
    pub(crate) name: String,
    /// `Made` after an acknowledged pull, `Removing` from the first unacknowledged removal,
    /// otherwise `Stopped` (absent).
    pub(crate) stage: Stage,
    pub(crate) subject: Subject,
}

/// A client's images, before any pull.
pub(crate) fn all(link: &Link, client: u32) -> Vec<Image> {
    (0..registry::EACH)
        .map(|n| {
            let name = registry::image(client, n);
            Image {
                subject: subject(link, &name),
                name,
                stage: Stage::Stopped,
            }
        })
        .collect()
}

fn spec(image: &Image) -> Option<cri::ImageSpec> {
    Some(cri::ImageSpec {
        image: image.name.clone(),
        ..Default::default()
    })
}

/// PullImage.
pub(crate) async fn pull(link: &Link, image: &mut Image, manner: Manner) {
    if image.stage != Stage::Made {
        image.stage = Stage::Asked;
    }
    let request = cri::PullImageRequest {
        image: spec(image),
        ..Default::default()
    };
    let reported = link
        .call(Op::PullImage, &image.subject, manner, async |cri| {
            cri.client.image.clone().pull_image(request).await
        })
        .await;
    if reported.done().is_some() {
        image.stage = Stage::Made;
    }
}

/// ImageStatus: acknowledged pulls are present; removed images are not.
pub(crate) async fn check(link: &Link, image: &Image) {
    let request = cri::ImageStatusRequest {
        image: spec(image),
        verbose: false,
    };
    let reported = link
        .call(
            Op::ImageStatus,
            &image.subject,
            Manner::default(),
            async |cri| {
                let mut client = cri.client.image;
                Ok(client.image_status(request).await?.into_inner())
            },
        )
        .await;
    let Outcome::Done(answer) = reported else {
        return;
    };
    let there = answer.image.is_some();
    let legal = match image.stage {
        Stage::Made => there,
        Stage::Stopped => !there,
        _ => true,
    };
    if !legal {
        let word = if there { "there" } else { "not there" };
        let what = format!("the image is {word}; it is {:?} in the books", image.stage);
        link.violation(&image.subject, &what);
    }
}

/// RemoveImage. Returns whether it was acknowledged.
pub(crate) async fn remove(link: &Link, image: &mut Image, manner: Manner) -> bool {
    image.stage = Stage::Removing;
    let request = cri::RemoveImageRequest { image: spec(image) };
    let reported = link
        .call(Op::RemoveImage, &image.subject, manner, async |cri| {
            cri.client.image.clone().remove_image(request).await
        })
        .await;
    let done = reported.done().is_some();
    if done {
        image.stage = Stage::Stopped;
    }
    done
}

//! `cairn image verify` in the daemon: one blocking thread reads, and reports to the client.

use std::{collections::BTreeSet, sync::Arc};

use proto_cairn::v1::{
    ImageDamage, VerifiedImage, VerifyImagesResponse, VerifyProgress,
    verify_images_response::Step as Notified,
};
use tokio::sync::mpsc;
use tonic::Status;

use super::report_progress::report_progress;
use crate::{
    image::{Digest, Images, InTheWay, Progress, SetAside, Verified, Watch},
    pod::{
        error::{Error, Kind, Result},
        registry::Registry,
    },
};

/// Answers in flight; the verification waits for a slow reader.
const ANSWERS: usize = 16;

type Answer = std::result::Result<VerifyImagesResponse, Status>;

/// Starts to verify these images, or all; ends when the client stops reading.
pub(super) fn start(
    images: Images,
    registry: Arc<Registry>,
    wanted: &[String],
    repair: bool,
) -> Result<mpsc::Receiver<Answer>> {
    let ids = wanted.iter().map(|text| find(&images, text));
    let ids = ids.collect::<Result<Vec<_>>>()?;
    let (answers, receiver) = mpsc::channel(ANSWERS);
    let progress = Progress::default();
    let work = {
        let (answers, progress) = (answers.clone(), progress.clone());
        move || run(&images, &registry, &ids, repair, &progress, &answers)
    };
    let work = tokio::task::spawn_blocking(work);
    tokio::spawn(async move {
        tokio::select! {
            ended = work => if let Err(error) = ended {
                let error = Error::failed(format!("verify images: {error}"));
                let _ = answers.send(Err(error.into())).await; // the client may have left
            },
            () = report_progress(&progress, &answers, word) => {}
        }
    });
    Ok(receiver)
}

fn find(images: &Images, text: &str) -> Result<Digest> {
    let found = images.resolve_damaged(text);
    match found.map_err(|error| Error::invalid(error.to_string()))? {
        Some(id) => Ok(id),
        None => Err(Error::new(
            Kind::NotFound,
            format!("image {text}: there is none of this name or id: `cairn image ls` lists all"),
        )),
    }
}

/// Blocking.
#[expect(clippy::disallowed_methods, reason = "called by blocking()")]
fn run(
    images: &Images,
    registry: &Registry,
    ids: &[Digest],
    repair: bool,
    progress: &Progress,
    answers: &mpsc::Sender<Answer>,
) {
    let watch = Watch {
        progress,
        is_over: &|| answers.is_closed(),
    };
    let notify = |image: VerifiedImage| {
        let step = Some(Notified::Image(image));
        let _ = answers.blocking_send(Ok(VerifyImagesResponse { step })); // as above
    };
    // Set aside after all checks, because the removal of one image may affect others.
    let mut damaged = Vec::new();
    let verified = images.verify(ids, &watch, &mut |found| {
        if repair && !found.damages.is_empty() {
            damaged.push(found)
        } else {
            notify(message(&found))
        }
    });
    if let Err(error) = verified {
        let error = Error::failed(format!("verify images: {error}"));
        let _ = answers.blocking_send(Err(error.into()));
        return;
    }
    // The client has left.
    if answers.is_closed() {
        return;
    }
    let known: BTreeSet<_> = damaged
        .iter()
        .flat_map(|found| found.names.clone())
        .collect();
    for found in damaged {
        let mut image = message(&found);
        match images.set_aside(&found) {
            Ok(SetAside::Away(others)) => {
                tracing::info!(image = %found.id, ?others, "damaged: set aside for the next pull");
                image.set_aside = true;
                image.others_set_aside = others;
                image.others_set_aside.retain(|name| !known.contains(name));
            }
            Ok(SetAside::Needed(layer, in_the_way)) => {
                image.not_set_aside = refusal(registry, &layer, &in_the_way);
            }
            Err(error) => image.not_set_aside = error.to_string(),
        }
        notify(image);
    }
}

fn message(found: &Verified) -> VerifiedImage {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let damages = found.damages.iter().map(|damage| ImageDamage {
        layer: damage
            .layer
            .as_ref()
            .map_or_else(String::new, Digest::to_string),
        path: damage.path.clone(),
        problem: damage.why.clone(),
    });
    VerifiedImage {
        id: found.id.to_string(),
        names: found.names.clone(),
        layers: number(found.layers),
        unverifiable: number(found.unknown),
        entries: found.entries,
        damages: damages.collect(),
        more_damages: found.untold,
        ..VerifiedImage::default()
    }
}

/// The reason that a layer stays, and what to do.
fn refusal(registry: &Registry, layer: &Digest, in_the_way: &InTheWay) -> String {
    match in_the_way {
        InTheWay::Users(ids) => {
            let users: Vec<_> = ids.iter().map(|id| user(registry, id)).collect();
            format!(
                "layer {layer} is in use by {}: remove that first",
                users.join(", ")
            )
        }
        InTheWay::Work => format!(
            "layer {layer} is needed by a pull, an import or another verification: try again when that has ended"
        ),
        InTheWay::Unknown => format!(
            "layer {layer} may be in use: of some container root it cannot be read of which layers it is; the log of \
             the daemon's start names it"
        ),
    }
}

/// `container pod/name (1a2b3c4d5e6f7)`, or `pod …`.
fn user(registry: &Registry, id: &str) -> String {
    let all = registry.containers();
    if let Some((pod, container)) = all.iter().find(|(_, container)| container.id == id) {
        let (pod, record) = (pod.cell.get().metadata(), container.cell.get());
        return format!("container {}/{} ({id:.13})", pod.name, record.name());
    }
    match registry.any(id) {
        Some(pod) => {
            let pod = pod.cell.get().metadata();
            format!("pod {}/{} ({id:.13})", pod.namespace, pod.name)
        }
        None => format!("container {id:.13}"),
    }
}

fn word(bytes: u64, of_bytes: u64) -> VerifyImagesResponse {
    let step = Some(Notified::Progress(VerifyProgress { bytes, of_bytes }));
    VerifyImagesResponse { step }
}

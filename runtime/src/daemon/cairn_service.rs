//! The service `cairn.v1`: requests of our own commands to a running daemon.

use std::{path::PathBuf, pin::pin, sync::Arc};

use proto_cairn::v1::{
    CollectNetworksRequest, CollectNetworksResponse, DirectoriesRequest, DirectoriesResponse,
    Directory, ExplainRequest, ExplainResponse, HeldObject, HeldRequest, HeldResponse,
    ImportImageRequest, ImportImageResponse, ImportedImage, NetworksRequest, NetworksResponse,
    Plugin, PluginsRequest, PluginsResponse, PullUnderWay, PullsRequest, PullsResponse,
    RejectedPlugin, RemoveRequest, RemoveResponse, TimelineEvent, TimelineRequest,
    cairn_server::Cairn, import_image_request::Part, import_image_response::Step,
};
use tokio::{io::AsyncWriteExt as _, sync::mpsc};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{Request, Status, Streaming};

use super::{networks, report_progress::report_progress};
use crate::{
    clock::nanoseconds,
    cri::{Answer, Streamed, answer},
    explain,
    image::{Images, Progress},
    pod::{
        dirs::Dirs,
        error::{AtStep as _, Error, Kind},
        held::AllHeld,
        pods::Pods,
        remove_by_id,
    },
    trace::Filter,
};

/// Progress lines in flight; the import waits for a slow reader.
const PROGRESS: usize = 16;
/// Bytes between the client's stream and the importer.
const PIPE: usize = 1 << 20;

pub struct CairnService {
    pub pods: Arc<Pods>,
}

#[tonic::async_trait]
impl Cairn for CairnService {
    type ImportImageStream = Streamed<ImportImageResponse>;

    async fn import_image(
        &self,
        request: Request<Streaming<ImportImageRequest>>,
    ) -> Answer<Self::ImportImageStream> {
        let mut parts = request.into_inner();
        let name = match parts.message().await?.and_then(|message| message.part) {
            Some(Part::Start(start)) => start.name,
            _ => {
                return Err(
                    Error::invalid("ImportImage: the first message must be `start`").into(),
                );
            }
        };
        let (answers, receiver) = mpsc::channel(PROGRESS);
        let images = self.pods.node.images.clone();
        tokio::spawn(async move {
            let result = import(&images, &name, parts, &answers).await;
            if let Err(error) = result {
                // The client may have left; nothing of the import is left then either.
                let _ = answers.send(Err(error.into())).await;
            }
        });
        answer(Box::pin(ReceiverStream::new(receiver)))
    }

    type TimelineStream = Streamed<TimelineEvent>;

    async fn timeline(&self, request: Request<TimelineRequest>) -> Answer<Self::TimelineStream> {
        let request = request.into_inner();
        let wanted = request.pod;
        let mut events = self
            .pods
            .notices
            .log
            .subscribe(Filter::new(&wanted), request.follow);
        let (lines, receiver) = mpsc::channel(PROGRESS);
        tokio::spawn(async move {
            let mut found = wanted.is_empty();
            while let Some(event) = events.recv().await {
                // Losses are reported to all clients.
                found |= event.missing() == 0;
                let json = serde_json::to_string(&*event);
                let line = json
                    .map(|json| TimelineEvent { json })
                    .map_err(|error| Error::failed(format!("event {}: {error}", event.seq)).into());
                if lines.send(line).await.is_err() {
                    return;
                }
            }
            if !found {
                let text = format!(
                    "timeline {wanted:?}: the event log has no pod and no container of this id, beginning of an id, or name"
                );
                let error = Error::new(Kind::NotFound, text);
                let _ = lines.send(Err(error.into())).await;
            }
        });
        answer(Box::pin(ReceiverStream::new(receiver)))
    }

    async fn plugins(&self, _: Request<PluginsRequest>) -> Answer<PluginsResponse> {
        let hooks = &self.pods.notices.hooks;
        answer(PluginsResponse {
            plugins: hooks.plugins().iter().map(plugin).collect(),
            rejected: hooks.rejections().into_iter().map(rejected).collect(),
        })
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Answer<ExplainResponse> {
        let wanted = request.into_inner().container;
        let explained = explain::gather(&self.pods, &wanted).await?;
        let json = serde_json::to_string(&explained).step(&format!("explain {wanted}"))?;
        answer(ExplainResponse { json })
    }

    async fn held(&self, _: Request<HeldRequest>) -> Answer<HeldResponse> {
        let objects = held_objects(&self.pods.registry.held());
        answer(HeldResponse { objects })
    }

    async fn remove(&self, request: Request<RemoveRequest>) -> Answer<RemoveResponse> {
        let RemoveRequest { id, force } = request.into_inner();
        let pods = Arc::clone(&self.pods);
        // Detached: a client that leaves does not cause half a removal.
        let removed = tokio::spawn(async move { remove_by_id::run(&pods, &id, force).await }).await;
        let (id, skipped) = removed.step("remove")??;
        answer(RemoveResponse { id, skipped })
    }

    async fn pulls(&self, _: Request<PullsRequest>) -> Answer<PullsResponse> {
        let pulls = self
            .pods
            .node
            .images
            .pulls()
            .into_iter()
            .map(|pull| PullUnderWay {
                image: pull.reference,
                bytes: pull.progress.0,
                of_bytes: pull.progress.1,
                seconds: pull.seconds,
            });
        answer(PullsResponse {
            pulls: pulls.collect(),
        })
    }

    async fn networks(&self, _: Request<NetworksRequest>) -> Answer<NetworksResponse> {
        let networks = networks::list(&self.pods).await?;
        answer(NetworksResponse { networks })
    }

    async fn collect_networks(
        &self,
        request: Request<CollectNetworksRequest>,
    ) -> Answer<CollectNetworksResponse> {
        let look = request.into_inner().dry_run;
        let pods = Arc::clone(&self.pods);
        // Detached: a client that leaves does not cause half a collection.
        let collected = tokio::spawn(async move { networks::collect(&pods, look).await }).await;
        let collected = collected.step("collect networks")?;
        answer(CollectNetworksResponse { collected })
    }

    async fn directories(&self, _: Request<DirectoriesRequest>) -> Answer<DirectoriesResponse> {
        let Dirs { root, state } = self.pods.node.dirs.clone();
        // A hanging disk must not block a serving thread.
        let look = move || vec![directory("root", root), directory("state", state)];
        let directories = tokio::task::spawn_blocking(look).await;
        let directories = directories.step("look at the directories")?;
        answer(DirectoriesResponse { directories })
    }
}

fn directory(key: &str, path: PathBuf) -> Directory {
    let mut directory = Directory {
        key: key.to_owned(),
        path: path.display().to_string(),
        ..Directory::default()
    };
    match rustix::fs::statvfs(&path) {
        Ok(disk) => {
            directory.size_bytes = disk.f_blocks.saturating_mul(disk.f_frsize);
            directory.free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
            directory.inodes = disk.f_files;
            directory.free_inodes = disk.f_favail;
        }
        Err(error) => directory.problem = error.to_string(),
    }
    directory
}

fn held_objects(held: &AllHeld) -> Vec<HeldObject> {
    let pods = held.pods.values().map(|pod| {
        let metadata = pod.config.metadata.clone().unwrap_or_default();
        HeldObject {
            id: pod.id.clone(),
            kind: "sandbox".to_owned(),
            name: format!("{}/{}", metadata.namespace, metadata.name),
            pod: String::new(),
            record: pod.record_path.display().to_string(),
            reason: pod.reason.clone(),
        }
    });
    let containers = held.containers.values().map(|container| HeldObject {
        id: container.id.clone(),
        kind: "container".to_owned(),
        name: container.config.metadata.clone().unwrap_or_default().name,
        pod: container.pod.clone().unwrap_or_default(),
        record: container.record_path.display().to_string(),
        reason: container.reason.clone(),
    });
    pods.chain(containers).collect()
}

fn rejected(rejection: nri::Rejection) -> RejectedPlugin {
    RejectedPlugin {
        kind: kind(Some(rejection.kind)).to_owned(),
        pid: rejection.pid.unwrap_or_default(),
        reason: rejection.reason,
        age_ns: nanoseconds(rejection.age),
        times: rejection.times,
    }
}

fn kind(kind: Option<nri::Kind>) -> &'static str {
    match kind {
        Some(nri::Kind::InProcess) => "in-process",
        Some(nri::Kind::Launched) => "launched",
        Some(nri::Kind::External) => "external",
        None => "",
    }
}

fn plugin(info: &nri::PluginInfo) -> Plugin {
    let state = match info.state {
        nri::PluginState::Joining => "joining",
        nri::PluginState::Active => "active",
        nri::PluginState::Shadowed => "shadowed",
        nri::PluginState::Overdue => "overdue",
        nri::PluginState::Absent => "absent",
        nri::PluginState::Ended => "gone",
    };
    let protocol = match info.kind {
        Some(_) if info.old_style => "v1alpha1, StateChange",
        Some(_) => "v1alpha1",
        None => "",
    };
    let kind = kind(info.kind);
    let names = info
        .events
        .iter()
        .map(|event| nri::mask::event_name(event).to_owned());
    Plugin {
        index: info.id.index.clone(),
        name: info.id.name.clone(),
        state: state.to_owned(),
        kind: kind.to_owned(),
        pid: info.pid.unwrap_or(0),
        protocol: protocol.to_owned(),
        events: names.collect(),
        required: info.required,
        must_run: info.must_run,
        calls: info.calls,
        errors: info.errors,
        p50_ns: nanoseconds(info.p50),
        p99_ns: nanoseconds(info.p99),
        backlog: info.backlog as u64,
        last_error: info.last_error.clone().unwrap_or_default(),
        since_ns: nanoseconds(info.since),
        last_error_age_ns: nanoseconds(info.last_error_age),
        on_timeout: info.on_timeout.as_str().to_owned(),
        fail_request: info.fail_request,
    }
}

fn word(moved: u64, _: u64) -> ImportImageResponse {
    let line = format!("unpacked {:.1} MB", moved as f64 / 1e6);
    ImportImageResponse {
        step: Some(Step::Progress(line)),
    }
}

async fn import(
    images: &Images,
    name: &str,
    mut parts: Streaming<ImportImageRequest>,
    answers: &mpsc::Sender<Result<ImportImageResponse, Status>>,
) -> Result<(), Error> {
    let (mut sink, source) = tokio::io::duplex(PIPE);
    let feed = async move {
        while let Some(part) = parts.next().await {
            let part = part.map_err(|status| Error::failed(status.message()))?;
            // An importer that accepts no further bytes has failed, and reports the reason.
            if let Some(Part::Data(bytes)) = part.part
                && sink.write_all(&bytes).await.is_err()
            {
                break;
            }
        }
        Ok::<(), Error>(())
    };
    let name = (!name.is_empty()).then_some(name);
    let progress = Progress::default();
    let work = async {
        let mut importing = pin!(images.import(source, name, &progress));
        let imported = tokio::select! {
            biased;
            fed = feed => {
                fed?;
                importing.await
            }
            // It has failed: nothing reads the rest of the archive.
            imported = &mut importing => imported,
        };
        imported.map_err(|error| Error::invalid(format!("import: {error}")))
    };
    let imported = tokio::select! {
        imported = work => imported?,
        () = report_progress(&progress, answers, word) => return Ok(()),
    };
    for image in imported {
        let image = ImportedImage {
            id: image.id.to_string(),
            tags: image.tags,
        };
        let answer = ImportImageResponse {
            step: Some(Step::Image(image)),
        };
        if answers.send(Ok(answer)).await.is_err() {
            break;
        }
    }
    Ok(())
}

//! The service `cairn.v1`: what our own commands ask of a running daemon.

use std::{pin::Pin, sync::Arc, time::Duration};

use proto_cairn::v1::{
    ImportImageRequest, ImportImageResponse, ImportedImage, Plugin, PluginsRequest,
    PluginsResponse, TimelineEvent, TimelineRequest, cairn_server::Cairn,
    import_image_request::Part, import_image_response::Step,
};
use tokio::{io::AsyncWriteExt as _, sync::mpsc};
use tokio_stream::{Stream, StreamExt as _, wrappers::ReceiverStream};
use tokio_util::io::SyncIoBridge;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    image::{ImportFrom, Progress},
    pod::error::Error,
    services::Services,
    trace::Filter,
};

/// Progress lines in flight; the import waits for a slow reader.
const PROGRESS: usize = 16;
/// Bytes between the client's stream and the importer.
const PIPE: usize = 1 << 20;
/// Between two progress lines.
const TELL: Duration = Duration::from_secs(1);

pub struct CairnService {
    services: Arc<Services>,
}

impl CairnService {
    pub fn new(services: Arc<Services>) -> Self {
        Self { services }
    }
}

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Cairn for CairnService {
    type ImportImageStream = Streamed<ImportImageResponse>;

    async fn import_image(
        &self,
        request: Request<Streaming<ImportImageRequest>>,
    ) -> Result<Response<Self::ImportImageStream>, Status> {
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
        let services = Arc::clone(&self.services);
        tokio::spawn(async move {
            let result = import(&services, &name, parts, &answers).await;
            if let Err(error) = result {
                // The client may be gone; nothing of the import is left then either.
                let _ = answers.send(Err(error.into())).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    type TimelineStream = Streamed<TimelineEvent>;

    async fn timeline(
        &self,
        request: Request<TimelineRequest>,
    ) -> Result<Response<Self::TimelineStream>, Status> {
        let request = request.into_inner();
        let log = self.services.journal.log();
        let events = log.subscribe(Filter::new(&request.pod), request.follow);
        let lines = ReceiverStream::new(events).map(|event| {
            let json = serde_json::to_string(&*event)
                .map_err(|error| Error::failed(format!("event {}: {error}", event.seq)))?;
            Ok(TimelineEvent { json })
        });
        Ok(Response::new(Box::pin(lines)))
    }

    async fn plugins(
        &self,
        _: Request<PluginsRequest>,
    ) -> Result<Response<PluginsResponse>, Status> {
        let plugins = self.services.hooks.plugins();
        Ok(Response::new(PluginsResponse {
            plugins: plugins.iter().map(plugin).collect(),
        }))
    }
}

fn plugin(info: &nri::PluginInfo) -> Plugin {
    let nanoseconds = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    let state = match info.state {
        nri::PluginState::Joining => "joining",
        nri::PluginState::Active => "active",
        nri::PluginState::Overdue => "overdue",
        nri::PluginState::Absent => "absent",
        nri::PluginState::Gone => "gone",
    };
    let version = match info.version {
        Some(nri::Version::V1Alpha1) if info.old_style => "v1alpha1, StateChange",
        Some(nri::Version::V1Alpha1) => "v1alpha1",
        Some(nri::Version::V1Beta1) => "v1beta1",
        None => "",
    };
    let kind = match info.kind {
        Some(nri::Kind::InProcess) => "in-process",
        Some(nri::Kind::Launched) => "launched",
        Some(nri::Kind::External) => "external",
        None => "",
    };
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
        protocol: version.to_owned(),
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
    }
}

/// A line a second while there is something new to tell; ends when the client is gone.
async fn tell(progress: &Progress, answers: &mpsc::Sender<Result<ImportImageResponse, Status>>) {
    let mut tick = tokio::time::interval(TELL);
    let mut told = 0;
    loop {
        tokio::select! {
            () = answers.closed() => return,
            _ = tick.tick() => {}
        }
        let (moved, _) = progress.get();
        if moved != told {
            told = moved;
            let line = format!("unpacked {:.1} MB", moved as f64 / 1e6);
            // Progress is a courtesy: a slow reader misses lines, the import does not wait.
            let _ = answers.try_send(Ok(ImportImageResponse {
                step: Some(Step::Progress(line)),
            }));
        }
    }
}

async fn import(
    services: &Services,
    name: &str,
    mut parts: Streaming<ImportImageRequest>,
    answers: &mpsc::Sender<Result<ImportImageResponse, Status>>,
) -> Result<(), Error> {
    let (mut sink, source) = tokio::io::duplex(PIPE);
    let feed = async move {
        while let Some(part) = parts.next().await {
            let part = part.map_err(|status| Error::failed(status.message()))?;
            if let Some(Part::Data(bytes)) = part.part {
                sink.write_all(&bytes)
                    .await
                    .map_err(|_| Error::failed("the archive goes on after its end"))?;
            }
        }
        Ok::<(), Error>(())
    };
    let name = (!name.is_empty()).then_some(name);
    let progress = Progress::default();
    let source = ImportFrom::Reader(Box::new(SyncIoBridge::new(source)));
    let work = async {
        let (fed, imported) = tokio::join!(feed, services.images.import(source, name, &progress));
        let imported = imported.map_err(|error| Error::invalid(format!("import: {error}")))?;
        fed.map(|()| imported)
    };
    let imported = tokio::select! {
        imported = work => imported?,
        () = tell(&progress, answers) => return Ok(()),
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

//! The daemon: lock, bind, open, recover, serve, drain. A checked configuration comes before any
//! side effect. The sockets are bound first, and served when the records are read, while recovery goes on.

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc, time::Duration};

use futures_util::{
    future::BoxFuture,
    stream::{Stream, StreamExt as _},
};
use proto_cairn::v1::cairn_server::CairnServer;
use proto_cri::v1::{
    image_service_server::ImageServiceServer, runtime_service_server::RuntimeServiceServer,
};
use sd_notify::NotifyState;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::{Server, server::Router};
use tower::layer::util::{Identity, Stack};

use super::{
    cairn_service::CairnService,
    calls::Calls,
    every_call::EveryCall,
    metrics,
    mistaken::{Client, Report},
    open::open,
};
use crate::{
    accept::clients,
    config::Config,
    cri::{Cri, MAX_MESSAGE, Statistics},
    memory,
    pod::{
        error::{self, AtStep as _, Kind},
        events::Events,
        notices::Notices,
        recover::{self, Recovery},
    },
    preflight, replace, spans,
    stats::{Layers, Sampler},
    store::{self, Lock},
    stream,
    trace::{Action, Subject},
};

/// Time limit for running RPCs at shutdown.
const DRAIN: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Open(#[from] error::Error),
    #[error("listen on {path}: {cause}")]
    Listen { path: String, cause: io::Error },
    #[error("listen on {path}: another program answers there: end it, or set another `listen`")]
    Taken { path: String },
    /// Every start fails until the configuration or the host is changed.
    #[error("{0}")]
    Unusable(String),
    #[error("start the async runtime: {0}")]
    Threads(io::Error),
    #[error("wait for signals: {0}")]
    Signals(io::Error),
    #[error("serve: {0}")]
    Serve(#[from] tonic::transport::Error),
}

/// Serves until `shutdown` is ready, then drains. The boxes keep the code of the daemon out of the
/// crate of the program, which would compile it alone, after this one.
///
/// # Errors
/// One line for the user; nothing is served then.
pub fn serve(
    config: Config,
    shutdown: BoxFuture<'static, ()>,
) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(serve_until(config, shutdown))
}

async fn serve_until(config: Config, mut shutdown: BoxFuture<'static, ()>) -> Result<(), Error> {
    preflight::required().map_err(Error::Unusable)?;
    replace::keep_a_descriptor();
    let _root = Lock::take(&config.root)?;
    let _state = Lock::take(&config.state)?;
    let listener = bind(config.socket())?;
    let metrics = match config.metrics() {
        Some(address) => Some(
            TcpListener::bind(address)
                .await
                .map_err(|cause| Error::Listen {
                    path: address.to_string(),
                    cause,
                })?,
        ),
        None => None,
    };
    let address = config.stream.address();
    let listen = |cause| Error::Listen {
        path: format!("{address} (streaming)"),
        cause,
    };
    let streams_at = stream::Listener::bind(address, config.stream.tls())
        .await
        .map_err(listen)?;
    let streams = stream::Streams::new(&streams_at, config.stream.idle_timeout);
    let (collector, sampled) = (
        &config.tracing.endpoint,
        config.tracing.sampling_per_million,
    );
    let tracing = spans::start(collector, sampled)
        .map_err(|why| Error::Unusable(format!("tracing.endpoint: {why}")))?;
    let (recorder, exporter) = tracing.unzip();
    let socket = config.socket().to_owned();
    let Some(opened) = unless(&mut shutdown, open(config)).await else {
        remove_socket(&socket);
        return Ok(());
    };
    let pods = opened.map_err(|error| match error.kind {
        Kind::Invalid | Kind::Unsupported => Error::Unusable(error.text),
        _ => Error::Open(error),
    })?;
    let Notices { hooks, events, log } = &pods.notices;
    let version = env!("CARGO_PKG_VERSION").to_owned();
    log.record(Subject::daemon(), Action::DaemonStarted { version });
    let Some(recovered) = unless(&mut shutdown, recover::run(&pods)).await else {
        hooks.shutdown("the runtime is shutting down").await;
        remove_socket(&socket);
        return Ok(());
    };
    let Recovery {
        summary,
        mut nri,
        rest,
    } = recovered?;
    tracing::info!(
        pods = summary.pods,
        containers = summary.containers,
        held = summary.held,
        socket = %socket.display(),
        "cairn {} serves",
        env!("CARGO_PKG_VERSION"),
    );
    let calls = Calls::default();
    let sources = metrics::Sources {
        calls: calls.clone(),
        pods: Arc::clone(&pods),
    };
    let metrics = metrics.map(|listener| tokio::spawn(metrics::serve(listener, sources)));
    notify(NotifyState::Ready);
    let sampler = Sampler::default();
    let cri = Cri {
        pods: Arc::clone(&pods),
        statistics: Arc::new(Statistics {
            pods: Arc::clone(&pods),
            sampler: sampler.clone(),
            layers: Layers::default(),
        }),
        streams: Arc::clone(&streams),
    };
    let sampling = tokio::spawn(async move { sampler.run().await });
    let giving_back = tokio::spawn(memory::give_freed_back());
    let streaming = tokio::spawn(Arc::clone(&streams).serve(streams_at));
    let server = Server::builder()
        .layer(EveryCall { calls, recorder })
        .add_service(
            RuntimeServiceServer::new(cri.clone())
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
        )
        .add_service(
            ImageServiceServer::new(cri)
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
        )
        .add_service(CairnServer::new(CairnService {
            pods: Arc::clone(&pods),
        }));
    let end = async {
        tokio::select! {
            () = shutdown => {
                log.record(Subject::daemon(), Action::DaemonStopping);
                Ok(())
            }
            error = failed(&mut nri) => Err(Error::Open(error)),
        }
    };
    let pods_of = Arc::clone(&pods);
    let report: Report = Arc::new(move |pid| pods_of.notices.hooks.mistaken(pid));
    let clients = clients(listener);
    let clients = clients.map(move |client| Ok(Client::new(client?, Arc::clone(&report))));
    let result = run(server, events, &streams, clients, end).await;
    rest.abort();
    streaming.abort();
    sampling.abort();
    giving_back.abort();
    notify(NotifyState::Stopping);
    if let Some(metrics) = metrics {
        metrics.abort();
    }
    if let Some(nri) = nri.filter(|nri| !nri.is_finished()) {
        nri.abort();
        // Its plugins end with it.
        let _ = nri.await;
    }
    hooks.shutdown("the runtime is shutting down").await;
    log.end().await;
    if let Some(exporter) = exporter {
        exporter.end().await;
    }
    remove_socket(&socket);
    result
}

async fn run(
    server: Router<Stack<EveryCall, Identity>>,
    events: &Events,
    streams: &Arc<stream::Streams>,
    clients: impl Stream<Item = io::Result<Client>>,
    end: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = server.serve_with_incoming_shutdown(clients, async {
        // A dropped sender is a shutdown too.
        let _ = stopped.await;
    });
    tokio::pin!(server, end);
    let ended = tokio::select! {
        result = &mut server => return Ok(result?),
        ended = &mut end => ended,
    };
    // They would outlast any deadline.
    events.close();
    drop(stop);
    let drained = tokio::join!(tokio::time::timeout(DRAIN, server), streams.end()).0;
    match drained {
        Ok(result) => {
            tracing::info!("drained: every request under way has ended");
            result?;
        }
        Err(_) => {
            tracing::warn!(after = ?DRAIN, "not drained: requests under way are abandoned; their records resume");
        }
    }
    ended
}

/// The result of a step of the start, unless the daemon is to end first.
async fn unless<T>(end: &mut BoxFuture<'static, ()>, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = end => None,
        done = work => Some(done),
    }
}

/// The error of a start of NRI that plugins hold up. Ready only if it fails.
async fn failed(nri: &mut Option<AbortOnDropHandle<error::Result<()>>>) -> error::Error {
    if let Some(nri) = nri
        && let Err(error) = nri.await.step("NRI").flatten()
    {
        return error;
    }
    std::future::pending().await
}

/// Replaces a dead socket, never a live one.
#[expect(
    clippy::disallowed_methods,
    reason = "at the start, before anybody is served"
)]
fn bind(path: &Path) -> Result<UnixListener, Error> {
    let shown = path.display().to_string();
    let listen = |cause| Error::Listen {
        path: shown.clone(),
        cause,
    };
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(listen)?;
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => return Err(Error::Taken { path: shown }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(listen)?;
        }
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(listen)?;
    // Only for root and its group (CRI-010).
    fs::set_permissions(path, fs::Permissions::from_mode(0o660)).map_err(listen)?;
    Ok(listener)
}

#[expect(clippy::disallowed_methods, reason = "of our own sockets")]
fn remove_socket(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(%error, "the socket is left behind");
    }
}

/// Notifies systemd, if it asked for it.
fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

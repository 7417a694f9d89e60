//! The daemon: lock, open, recover, bind, serve, drain.
//!
//! Nothing is touched before the configuration was checked, and no RPC is served before
//! recovery is done (CRI-812).

use std::{
    fs, io,
    os::unix::{fs::PermissionsExt as _, net::UnixDatagram},
    path::Path,
    sync::Arc,
    time::Duration,
};

use proto_cairn::v1::cairn_server::CairnServer;
use proto_cri::v1::{
    image_service_server::ImageServiceServer, runtime_service_server::RuntimeServiceServer,
};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::{
    cairn_service::CairnService,
    config::Config,
    cri::{Cri, MAX_MESSAGE},
    metrics,
    pod::{error, recover},
    services::Services,
    store::{self, Lock},
};

/// How long RPCs under way may take to end when the daemon is told to.
const DRAIN: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Open(#[from] error::Error),
    #[error("listen on {path}: {cause}")]
    Listen { path: String, cause: io::Error },
    #[error("listen on {path}: another program answers there")]
    Taken { path: String },
    #[error("serve: {0}")]
    Serve(#[from] tonic::transport::Error),
}

/// Serves until `shutdown` is ready, then drains.
///
/// # Errors
/// One line for a person; nothing is served then.
pub async fn serve(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
    let _root = Lock::take(&config.root)?;
    let _state = Lock::take(&config.state)?;
    let listener = bind(config.socket())?;
    let metrics = match config.metrics() {
        Some(address) => Some(
            metrics::bind(address)
                .await
                .map_err(|cause| Error::Listen {
                    path: address.to_string(),
                    cause,
                })?,
        ),
        None => None,
    };
    let socket = config.socket().to_owned();
    let services = Arc::new(Services::open(config).await?);
    let summary = recover::recover(&services).await?;
    tracing::info!(
        pods = summary.pods,
        containers = summary.containers,
        set_aside = summary.set_aside,
        socket = %socket.display(),
        "cairn {} serves",
        env!("CARGO_PKG_VERSION"),
    );
    let metrics =
        metrics.map(|listener| tokio::spawn(metrics::serve(listener, Arc::clone(&services))));
    notify("READY=1");
    let sampler = services.sampler.clone();
    let sampling = tokio::spawn(async move { sampler.run().await });
    let result = run(&services, listener, shutdown).await;
    sampling.abort();
    notify("STOPPING=1");
    if let Some(metrics) = metrics {
        metrics.abort();
    }
    services.hooks.shutdown("the runtime is ending").await;
    remove_socket(&socket);
    result
}

async fn run(
    services: &Arc<Services>,
    listener: UnixListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let cri = Cri {
        services: Arc::clone(services),
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = Server::builder()
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
        .add_service(CairnServer::new(CairnService::new(Arc::clone(services))))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async {
            // A dropped sender is a shutdown too.
            let _ = stopped.await;
        });
    tokio::pin!(server, shutdown);
    tokio::select! {
        result = &mut server => return Ok(result?),
        () = &mut shutdown => {}
    }
    // They would outlast any deadline.
    services.events.close();
    drop(stop);
    match tokio::time::timeout(DRAIN, server).await {
        Ok(result) => {
            tracing::info!("drained: every request under way has ended");
            Ok(result?)
        }
        Err(_) => {
            tracing::warn!(after = ?DRAIN, "not drained: requests under way are abandoned; their records resume");
            Ok(())
        }
    }
}

/// A dead socket is replaced, a living one never (design.md, "NRI socket", holds here too).
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
    // root and its group only (CRI-010).
    fs::set_permissions(path, fs::Permissions::from_mode(0o660)).map_err(listen)?;
    Ok(listener)
}

fn remove_socket(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(%error, "the socket is left behind");
    }
}

/// sd_notify, where systemd asked for it.
fn notify(message: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let send = || -> io::Result<()> {
        use std::os::{linux::net::SocketAddrExt as _, unix::ffi::OsStrExt as _};
        let socket = UnixDatagram::unbound()?;
        match path.as_bytes().strip_prefix(b"@") {
            Some(name) => {
                let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
                socket.send_to_addr(message.as_bytes(), &address)?;
            }
            None => {
                socket.send_to(message.as_bytes(), &path)?;
            }
        }
        Ok(())
    };
    if let Err(error) = send() {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

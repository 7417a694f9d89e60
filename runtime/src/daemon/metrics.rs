//! Prometheus text on a loopback port, where the configuration asks for it: `GET /metrics`.
//!
//! Bounded: so many connections at a time, each for so long.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use hyper::{Request, Response, StatusCode, body::Incoming, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, sync::Semaphore};

use crate::pod::hooks::Hooks;

/// Scrapers at a time; more wait in the kernel's queue.
const CONNECTIONS: usize = 8;
/// A connection is closed after so long, whatever it does.
const LIFETIME: Duration = Duration::from_secs(30);
/// For the head of a request.
const HEAD: Duration = Duration::from_secs(5);

/// Takes the port.
///
/// # Errors
/// When it is taken.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves until dropped.
pub async fn serve(listener: TcpListener, hooks: Arc<Hooks>) -> Infallible {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            // Nobody closes it.
            return std::future::pending().await;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "metrics: accept");
                tokio::time::sleep(HEAD).await;
                continue;
            }
        };
        let hooks = Arc::clone(&hooks);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(&hooks, &request));
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // A scraper that is slow or gone is its own trouble.
            let _ = tokio::time::timeout(LIFETIME, connection).await;
            drop(place);
        });
    }
}

fn answer(
    hooks: &Hooks,
    request: &Request<Incoming>,
) -> std::future::Ready<Result<Response<String>, Infallible>> {
    let (status, text) = match request.uri().path() {
        "/metrics" => (StatusCode::OK, hooks.metrics()),
        _ => (StatusCode::NOT_FOUND, "only /metrics is here\n".to_owned()),
    };
    let mut response = Response::new(text);
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4");
    response
        .headers_mut()
        .insert(hyper::header::CONTENT_TYPE, kind);
    std::future::ready(Ok(response))
}

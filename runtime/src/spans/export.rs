//! From the queue to the collector, in batches. Nobody waits for it; what does not get there is dropped, and that it does
//! not is told once.

use std::{sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use rustls_platform_verifier::ConfigVerifierExt as _;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_rustls::TlsConnector;
use tonic::{
    Request,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint, Uri},
};
use tonic_prost::ProstCodec;

use crate::one_line::one_line;

use super::{
    current::Recorder,
    wire::{self, EXPORT, Span},
};

/// Spans that wait for the collector; more are dropped.
const QUEUE: usize = 4096;
/// Spans in one message.
const BATCH: usize = 512;
/// For the others of a batch.
const GATHER: Duration = Duration::from_millis(300);
/// Until a collector that failed is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// For one message, and at the end for the last ones.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two signs of life of an idle connection.
const ALIVE: Duration = Duration::from_secs(30);
/// Of a text that a collector says, in characters.
const LONGEST: usize = 300;
const FAREWELL: Duration = Duration::from_secs(2);

/// Sends until it is ended.
pub struct Exporter {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Nothing where no collector is named; the endpoint was checked. Of calls that bring no trace, so many of a million are
/// traced.
///
/// # Errors
/// One line: TLS cannot be had.
pub fn start(endpoint: &str, per_million: u32) -> Result<Option<(Recorder, Exporter)>, String> {
    if endpoint.is_empty() {
        return Ok(None);
    }
    let channel = channel(endpoint).map_err(|why| format!("\"{endpoint}\": {why}"))?;
    let (queue, spans) = mpsc::channel(QUEUE);
    let (stop, stopped) = oneshot::channel();
    let collector = Collector {
        channel,
        endpoint: endpoint.to_owned(),
        host: host_name(),
        reached: true,
    };
    let task = tokio::spawn(collector.run(spans, stopped));
    let recorder = Recorder::new(queue, per_million);
    Ok(Some((recorder, Exporter { stop, task })))
}

impl Exporter {
    /// Sends what is there, if that goes quickly.
    pub async fn end(self) {
        let Self { stop, mut task } = self;
        drop(stop);
        if timeout(FAREWELL, &mut task).await.is_err() {
            task.abort();
        }
    }
}

/// With TLS or without.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Connects when there is something to send, and again after a connection was lost.
fn channel(endpoint: &str) -> Result<Channel, String> {
    let uri: Uri = endpoint.parse().map_err(|e| format!("{e}"))?;
    let tls = match uri.scheme_str() {
        Some("https") => Some(tls()?),
        _ => None,
    };
    let connect = move |uri: Uri| {
        let tls = tls.clone();
        async move {
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
            let port = uri.port_u16().unwrap_or(4317);
            let tcp = TcpStream::connect((host, port)).await?;
            Ok::<_, std::io::Error>(TokioIo::new(match tls {
                None => Box::new(tcp) as Box<dyn Io>,
                Some(tls) => {
                    let name = ServerName::try_from(host.to_owned());
                    let name = name.map_err(std::io::Error::other)?;
                    Box::new(tls.connect(name, tcp).await?)
                }
            }))
        }
    };
    Ok(Endpoint::from(uri)
        .connect_timeout(LIMIT)
        // One that has vanished without a word is noticed, and connected to anew.
        .http2_keep_alive_interval(ALIVE)
        .keep_alive_timeout(LIMIT)
        .connect_with_connector_lazy(tower::service_fn(connect)))
}

/// With the authorities of this machine.
fn tls() -> Result<TlsConnector, String> {
    // Only the first call counts; the provider is the same each time.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = ClientConfig::with_platform_verifier().map_err(|e| format!("TLS: {e}"))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

#[expect(
    clippy::disallowed_methods,
    reason = "at the start, before anybody is served"
)]
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.unwrap_or_default().trim().to_owned()
}

struct Collector {
    channel: Channel,
    endpoint: String,
    host: String,
    /// By the last attempt.
    reached: bool,
}

impl Collector {
    async fn run(mut self, mut spans: mpsc::Receiver<Span>, mut stopped: oneshot::Receiver<()>) {
        let mut batch = Vec::new();
        let mut ending = false;
        loop {
            if !ending {
                ending = tokio::select! {
                    _ = &mut stopped => true,
                    _ = spans.recv_many(&mut batch, BATCH) => {
                        timeout(GATHER, &mut stopped).await.is_ok()
                    }
                };
            }
            while batch.len() < BATCH
                && let Ok(span) = spans.try_recv()
            {
                batch.push(span);
            }
            if batch.is_empty() {
                return;
            }
            let sent = self.send(std::mem::take(&mut batch)).await;
            let reached = sent.is_ok();
            if let Err(why) = sent
                && self.reached
            {
                let endpoint = &self.endpoint;
                tracing::warn!(
                    "tracing: spans do not get to {endpoint}: {why}: they are dropped until they do"
                );
            } else if reached && !self.reached {
                tracing::info!("tracing: spans get to {} again", self.endpoint);
            }
            self.reached = reached;
            if !reached && !ending {
                ending = tokio::select! {
                    _ = &mut stopped => true,
                    () = sleep(AGAIN) => false,
                };
            }
        }
    }

    async fn send(&self, spans: Vec<Span>) -> Result<(), String> {
        let request = Request::new(wire::request(spans, &self.host));
        let mut client = Grpc::new(self.channel.clone());
        let call = async {
            client.ready().await.map_err(|error| innermost(&error))?;
            let path = PathAndQuery::from_static(EXPORT);
            let codec = ProstCodec::<_, wire::ExportTraceServiceResponse>::default();
            let answer = client.unary(request, path, codec).await;
            answer.map_err(|status| match std::error::Error::source(&status) {
                Some(cause) => innermost(cause),
                None => told(status.message()),
            })
        };
        let answer = timeout(LIMIT, call).await;
        let answer = answer.map_err(|_| format!("no answer within {LIMIT:?}"))??;
        // It has taken the rest: that is no reason to wait.
        if let Some(partial) = answer.into_inner().partial_success
            && partial.rejected_spans > 0
        {
            let (count, why) = (partial.rejected_spans, told(&partial.error_message));
            tracing::debug!("tracing: {} refuses {count} spans: {why}", self.endpoint);
        }
        Ok(())
    }
}

/// What a collector says, on one line and not too long.
fn told(text: &str) -> String {
    one_line(text).chars().take(LONGEST).collect()
}

fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

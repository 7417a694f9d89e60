//! Sends spans from the queue to the collector, in batches. Nothing waits for it; spans that cannot
//! be sent are dropped, and the first failure is logged.

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

/// Limit of queued spans; further ones are dropped.
const QUEUE: usize = 4096;
/// Spans per message.
const BATCH: usize = 512;
/// Wait for further spans of a batch.
const GATHER: Duration = Duration::from_millis(300);
/// Wait before retrying a failed collector.
const AGAIN: Duration = Duration::from_secs(5);
/// Timeout of one message, and of a connection attempt.
const LIMIT: Duration = Duration::from_secs(10);
/// Interval of keep-alives on an idle connection.
const ALIVE: Duration = Duration::from_secs(30);
/// Limit of a collector's text, in characters.
const LONGEST: usize = 300;
/// Limit for sending the last spans at the end.
const LAST_SEND: Duration = Duration::from_secs(2);

/// The running exporter; sends until [`Self::end`].
pub struct Exporter {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Starts the exporter; `None` if no collector is configured. The endpoint was validated. Of calls
/// without a parent trace, `per_million` of a million are traced.
///
/// # Errors
/// One line: TLS is not available.
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
    /// Sends the remaining spans within [`LAST_SEND`].
    pub async fn end(self) {
        let Self { stop, mut task } = self;
        drop(stop);
        if timeout(LAST_SEND, &mut task).await.is_err() {
            task.abort();
        }
    }
}

/// A connection with or without TLS.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Connects at the first message, and again after a loss.
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
        // Detects a silent collector, and reconnects.
        .http2_keep_alive_interval(ALIVE)
        .keep_alive_timeout(LIMIT)
        .connect_with_connector_lazy(tower::service_fn(connect)))
}

/// Uses the certificate authorities of this machine.
fn tls() -> Result<TlsConnector, String> {
    // Later calls fail; the provider is always the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = ClientConfig::with_platform_verifier().map_err(|e| format!("TLS: {e}"))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

#[expect(
    clippy::disallowed_methods,
    reason = "at the start, before any client is served"
)]
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.unwrap_or_default().trim().to_owned()
}

struct Collector {
    channel: Channel,
    endpoint: String,
    host: String,
    /// The result of the last attempt.
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
                    "tracing: cannot send spans to {endpoint}, dropping them until it answers: {why}"
                );
            } else if reached && !self.reached {
                tracing::info!("tracing: sending spans to {} again", self.endpoint);
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
                None => bounded(status.message()),
            })
        };
        let answer = timeout(LIMIT, call).await;
        let answer = answer.map_err(|_| format!("no answer within {LIMIT:?}"))??;
        // The others were accepted, so there is no reason to wait.
        if let Some(partial) = answer.into_inner().partial_success
            && partial.rejected_spans > 0
        {
            let (count, why) = (partial.rejected_spans, bounded(&partial.error_message));
            tracing::debug!("tracing: {} rejected {count} spans: {why}", self.endpoint);
        }
        Ok(())
    }
}

/// A collector's text, on one line and bounded.
fn bounded(text: &str) -> String {
    one_line(text).chars().take(LONGEST).collect()
}

fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

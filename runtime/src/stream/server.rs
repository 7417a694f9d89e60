//! The HTTP server behind the URLs: takes connections, matches tokens, upgrades, runs sessions.

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, UPGRADE},
    service::service_fn,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    attach, exec,
    hang_up::HangUp,
    job::Job,
    limits::Limits,
    port_forward,
    remote::{Remote, Wanted},
    sessions::Sessions,
    spdy, tls,
    tokens::{OUTSTANDING, Tokens},
    websocket,
    wire::{
        channels::MAX_CHANNELS,
        handshake::{self, Carries, Refusal, STREAM_PROTOCOL, Upgrade, Verb},
    },
};
use crate::{
    accept::{self, Place, time_for_head},
    pod::error::{self, Error, Kind},
};

/// For the answer 101 to be sent.
const SWITCH: Duration = Duration::from_secs(10);
/// For sessions to end when the daemon does.
const DRAIN: Duration = Duration::from_secs(5);

/// The port that is taken before anything is served.
pub struct Listener {
    tcp: TcpListener,
    tls: Option<TlsAcceptor>,
    base: String,
}

impl Listener {
    /// # Errors
    /// An address that is taken, or a certificate that is none.
    pub async fn bind(address: SocketAddr, tls: Option<(&Path, &Path)>) -> io::Result<Self> {
        let tls = tls
            .map(|(cert, key)| tls::acceptor(cert, key))
            .transpose()?;
        let tcp = TcpListener::bind(address).await?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let base = format!("{scheme}://{}", reachable(tcp.local_addr()?));
        Ok(Self { tcp, tls, base })
    }
}

/// Clients on this machine reach what listens everywhere by loopback.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// Hands out URLs, and serves them.
pub struct Streams {
    tokens: Tokens<Job>,
    base: String,
    limits: Limits,
    open: Arc<Sessions>,
    tasks: TaskTracker,
}

impl Job {
    /// The id of the pod that its session counts for.
    fn pod(&self) -> String {
        match self {
            Self::Exec { container, .. } | Self::Attach { container, .. } => {
                container.cell.get().pod.clone()
            }
            Self::PortForward { pod, .. } => pod.id.clone(),
        }
    }

    fn verb(&self) -> Verb {
        match self {
            Self::Exec { .. } => Verb::Exec,
            Self::Attach { .. } => Verb::Attach,
            Self::PortForward { .. } => Verb::PortForward,
        }
    }
}

impl Streams {
    pub fn new(listener: &Listener, idle: Duration) -> Arc<Self> {
        Arc::new(Self {
            tokens: Tokens::default(),
            base: listener.base.clone(),
            limits: Limits {
                idle,
                stop: CancellationToken::new(),
            },
            open: Arc::default(),
            tasks: TaskTracker::new(),
        })
    }

    /// Where a client finds what it asked for: once, and soon.
    ///
    /// # Errors
    /// Exhausted when too many wait.
    pub fn url(&self, job: Job) -> error::Result<String> {
        let verb = job.verb().name();
        let token = self.tokens.add(job).ok_or_else(|| {
            let text =
                format!("{OUTSTANDING} streaming requests wait for their clients; try again");
            Error::new(Kind::Exhausted, text)
        })?;
        Ok(format!("{}/{verb}/{token}", self.base))
    }

    /// Serves until dropped.
    pub async fn serve(self: Arc<Self>, listener: Listener) -> Infallible {
        let Listener { tcp, tls, .. } = listener;
        let connection =
            |stream, peer, place| Arc::clone(&self).connection(stream, peer, tls.clone(), place);
        tokio::select! {
            never = accept::serve(tcp, "streaming", connection) => never,
            () = self.tokens.expire() => std::future::pending().await,
        }
    }

    /// Ends all sessions.
    pub async fn end(&self) {
        self.limits.stop.cancel();
        self.tasks.close();
        if timeout(DRAIN, self.tasks.wait()).await.is_err() {
            tracing::warn!(left = self.tasks.len(), "streaming sessions are abandoned");
        }
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        peer: SocketAddr,
        tls: Option<TlsAcceptor>,
        place: Place,
    ) {
        let head = time_for_head(peer);
        // Without it the connection is slower.
        let _ = stream.set_nodelay(true);
        let Ok(hang_up) = HangUp::of(&stream) else {
            return;
        };
        match tls {
            None => self.http(stream, head, hang_up, place).await,
            Some(tls) => {
                if let Ok(Ok(stream)) = timeout(head, tls.accept(stream)).await {
                    self.http(stream, head, hang_up, place).await;
                }
            }
        }
    }

    async fn http<S>(self: Arc<Self>, stream: S, head: Duration, hang_up: HangUp, place: Place)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // For the one session that a connection can have.
        let for_session = Arc::new(Mutex::new(Some((hang_up, place))));
        let service = service_fn(move |request: Request<Incoming>| {
            let (streams, for_session) = (Arc::clone(&self), Arc::clone(&for_session));
            async move {
                let answer = streams.answer(request, &for_session);
                Ok::<_, Infallible>(answer.unwrap_or_else(refused))
            }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head)
            .max_buf_size(16 << 10)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        // A client that is slow or gone is its own trouble.
        let _ = timeout(head + SWITCH, connection).await;
    }

    fn answer(
        self: &Arc<Self>,
        mut request: Request<Incoming>,
        for_session: &Mutex<Option<(HangUp, Place)>>,
    ) -> Result<Response<String>, Refusal> {
        if let Some((_, place)) = &*for_session.lock() {
            place.head_read();
        }
        let nothing = || Refusal::new(StatusCode::NOT_FOUND, "404 page not found");
        let (verb, token) = handshake::target(request.uri().path()).ok_or_else(nothing)?;
        let upgrade = handshake::upgrade(verb, request.method(), request.headers())?;
        let fits = |job: &Job| job.verb() == verb;
        // A token that is refused here has not been used: its client may try again.
        let begin = |job: &Job| {
            check_ports(job, &upgrade)?;
            self.open.begin(&job.pod())
        };
        let (job, open) = self.tokens.take(token, fits, begin).ok_or_else(nothing)??;
        let (hang_up, place) = for_session.lock().take().ok_or_else(nothing)?;
        let response = switching(&upgrade);
        let upgraded = hyper::upgrade::on(&mut request);
        let streams = Arc::clone(self);
        self.tasks.spawn(async move {
            streams.session(upgraded, upgrade, job, hang_up).await;
            drop(open);
        });
        // From here on it counts as a session.
        drop(place);
        Ok(response)
    }

    async fn session(&self, upgraded: OnUpgrade, upgrade: Upgrade, job: Job, hang_up: HangUp) {
        let Ok(Ok(io)) = timeout(SWITCH, upgraded).await else {
            return;
        };
        let io = TokioIo::new(io);
        match job {
            Job::Exec {
                container,
                process,
                wanted,
            } => {
                if let Some(remote) = remote(io, upgrade, wanted, hang_up).await {
                    exec::run(remote, &container, *process, wanted, &self.limits).await;
                }
            }
            Job::Attach { container, wanted } => {
                if let Some(remote) = remote(io, upgrade, wanted, hang_up).await {
                    attach::run(remote, &container, wanted, &self.limits).await;
                }
            }
            Job::PortForward { pod, ports } => match upgrade {
                Upgrade::Spdy(_) => {
                    let (link, opened) = spdy::serve(io, hang_up, port_forward::MAX_STREAMS);
                    port_forward::by_spdy(link, opened, pod, &self.limits).await;
                }
                Upgrade::WebSocket { protocol, .. } => {
                    let socket = websocket::upgraded(io).await;
                    match protocol.carries {
                        Carries::Spdy => {
                            let tunnel = websocket::Tunnel::new(socket);
                            let (link, opened) =
                                spdy::serve(tunnel, hang_up, port_forward::MAX_STREAMS);
                            port_forward::by_spdy(link, opened, pod, &self.limits).await;
                        }
                        Carries::Channels { format, .. } => {
                            let count = u8::try_from(2 * ports.len()).unwrap_or(MAX_CHANNELS);
                            let (link, streams) = websocket::serve(socket, hang_up, format, count);
                            port_forward::by_channels(link, streams, ports, pod, &self.limits)
                                .await;
                        }
                    }
                }
            },
        }
    }
}

/// The streams of an exec or attach. `None`: the client did not open them.
async fn remote(
    io: TokioIo<Upgraded>,
    upgrade: Upgrade,
    wanted: Wanted,
    hang_up: HangUp,
) -> Option<Remote> {
    let remote = match upgrade {
        Upgrade::Spdy(protocol) => Remote::by_spdy(io, hang_up, wanted, protocol).await,
        Upgrade::WebSocket { protocol, .. } => {
            let (format, status) = match protocol.carries {
                Carries::Channels { format, status } => (format, status),
                // Not among the protocols of commands.
                Carries::Spdy => return None,
            };
            let socket = websocket::upgraded(io).await;
            Ok(Remote::by_websocket(socket, hang_up, wanted, format, status).await)
        }
    };
    match remote {
        Ok(remote) => Some(remote),
        Err(why) => {
            tracing::debug!(why, "a streaming session did not begin");
            None
        }
    }
}

/// Two channels for each port, as far as channels go. In the other protocols streams name ports.
fn check_ports(job: &Job, upgrade: &Upgrade) -> Result<(), Refusal> {
    let (Job::PortForward { ports, .. }, Upgrade::WebSocket { protocol, .. }) = (job, upgrade)
    else {
        return Ok(());
    };
    let most = usize::from(MAX_CHANNELS / 2);
    if protocol.carries == Carries::Spdy || (1..=most).contains(&ports.len()) {
        return Ok(());
    }
    let text = format!(
        "unable to upgrade: {} ports were asked for, and a WebSocket of channels forwards 1 to {most}",
        ports.len()
    );
    Err(Refusal::new(StatusCode::BAD_REQUEST, text))
}

fn switching(upgrade: &Upgrade) -> Response<String> {
    let mut response = Response::new(String::new());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    match upgrade {
        Upgrade::Spdy(protocol) => {
            headers.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
            headers.insert(STREAM_PROTOCOL, HeaderValue::from_static(protocol.name));
        }
        Upgrade::WebSocket { key, protocol } => {
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            let accept = derive_accept_key(key.as_bytes());
            if let Ok(accept) = HeaderValue::from_str(&accept) {
                headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
            }
            if let Some(name) = protocol.name {
                headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(name));
            }
        }
    }
    response
}

fn refused(refusal: Refusal) -> Response<String> {
    let mut response = Response::new(refusal.text + "\n");
    *response.status_mut() = refusal.code;
    // Only here: hyper's own switch puts it on the answer 101 too, in place of `Upgrade`.
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
    for (name, value) in refusal.headers {
        response.headers_mut().append(name, value);
    }
    response
}

//! The plugin side: connect to a runtime, or take the socket it has given, and serve handlers.
//!
//! ```text
//!   connect ─► serve connection 1 ─► RegisterPlugin ─► Configure answered ─► running ─► lost
//!      ▲                                                                                  │
//!      └──────────────── back-off, if reconnecting is asked for ◄─────────────────────────┘
//! ```
//!
//! ```no_run
//! use nri::{Handlers, stub::Stub};
//!
//! # async fn run() -> Result<(), nri::stub::StubError> {
//! let handlers = Handlers::new()
//!     .run_pod_sandbox(|pod| async move {
//!         println!("pod {}/{}", pod.namespace, pod.name);
//!         Ok(())
//!     })
//!     .create_container(|_pod, container| async move {
//!         if container.args.is_empty() {
//!             return Err("a container without a command".into());
//!         }
//!         Ok((None, Vec::new()))
//!     });
//! Stub::builder(handlers).name("example").index("10").reconnect(true).run().await
//! # }
//! ```
//!
//! Dropping a future of this module at any point leaves nothing behind (NRI-915).

use std::{
    env, io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    path::PathBuf,
    process::Command,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use prost::Message;
use proto_nri::{
    ConfigureRequest, ContainerEviction, ContainerUpdate, RegisterPluginRequest, ShutdownRequest,
    UpdateContainersRequest, UpdateContainersResponse,
};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use tokio::{
    net::UnixStream,
    sync::oneshot,
    time::{Instant, sleep},
};

use crate::{
    owners::{BadPluginId, PluginId},
    plugin_side::handlers::{Handlers, PluginService},
    settings::DEFAULT_SOCKET,
    wire::mux::{Mux, MuxError, PLUGIN_SERVICE, RUNTIME_SERVICE},
    wire::rpc::{CallError, Client, Code, Incoming, Serve, Serving, Status, one_line, serve},
    wire::transport::{ENV_INDEX, ENV_NAME, ENV_SOCKET},
    wire::version::{NRI_VERSION, Version, plugin_services, runtime_nri_version},
};

const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// After so long a life the back-off begins anew (NRI-916).
const BACKOFF_RESET: Duration = Duration::from_secs(60);
/// When the runtime said that it stops (NRI-1051).
const BACKOFF_STOPPING: Duration = Duration::from_secs(5);

tokio::task_local! {
    static DEADLINE: Option<Instant>;
}

/// Inside a handler: how long the runtime still waits for the answer (NRI-919). When it is over the
/// handler's future is dropped. `None` outside of handlers, or if the runtime does not say.
pub fn time_left() -> Option<Duration> {
    let deadline = DEADLINE.try_with(|d| *d).ok().flatten()?;
    Some(deadline.saturating_duration_since(Instant::now()))
}

/// Error of starting a plugin, or the reason of its end.
#[derive(Debug, thiserror::Error)]
pub enum StubError {
    #[error("a plugin needs a handler for at least one event")]
    NoHandlers,
    #[error("plugin identity: {0}")]
    Identity(#[from] BadPluginId),
    #[error("conflicting plugin indices {0} and {1}")]
    IndexTwice(String, String),
    #[error("{ENV_SOCKET}={value:?}: {cause}")]
    InheritedSocket { value: String, cause: io::Error },
    #[error("cannot connect to {path}: {cause}")]
    Connect { path: PathBuf, cause: io::Error },
    #[error("cannot serve the connection: {0}")]
    Serve(io::Error),
    #[error("the runtime refused the registration: {0}")]
    Register(CallError),
    #[error("the runtime did not configure the plugin: {0}")]
    NotConfigured(MuxError),
    #[error("the runtime did not configure the plugin within {0:?}")]
    ConfigureTimeout(Duration),
    #[error("configuration refused: {0}")]
    Configure(Status),
    #[error("the connection has ended: {0}")]
    Ended(MuxError),
    /// With the runtime's reason; v1alpha1 has no place for one, and it is empty.
    #[error("the runtime has ended the connection{}{}", if .0.is_empty() { "" } else { ": " }, one_line(.0))]
    Dismissed(String),
}

/// Which version is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// What all runtimes speak.
    #[default]
    V1Alpha1,
    /// Only v1beta1, which follows a withdrawn draft.
    V1Beta1,
    /// v1beta1 if the runtime knows it, else v1alpha1, on the same connection (NRI-1042).
    Newest,
}

/// Collects what a [`Stub`] needs.
#[derive(Debug)]
pub struct StubBuilder {
    handlers: Handlers,
    name: Option<String>,
    index: Option<String>,
    socket: PathBuf,
    connection: Option<StdUnixStream>,
    protocol: Protocol,
    registration_timeout: Duration,
    reconnect: bool,
    on_disconnect: Option<OnDisconnect>,
    state_change_only: bool,
}

/// Told why a connection ended, or was not made, and in how long the next is tried, if it is.
struct OnDisconnect(Box<Disconnected>);

type Disconnected = dyn Fn(&StubError, Option<Duration>) + Send + Sync;

impl std::fmt::Debug for OnDisconnect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnDisconnect")
    }
}

/// A running plugin.
#[derive(Debug)]
pub struct Stub {
    id: PluginId,
    mux: Mux,
    _serving: Serving,
    runtime: Runtime,
    info: RuntimeInfo,
    dismissed: Arc<Mutex<Option<String>>>,
}

/// Identity of the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeInfo {
    pub name: String,
    pub version: String,
    /// Said, or inferred from name and version (NRI-340); `None` if neither tells.
    pub nri_version: Option<String>,
    pub registration_timeout: Duration,
    pub request_timeout: Duration,
    /// The version this connection speaks.
    pub protocol: Version,
}

/// The runtime as a plugin reaches it. Clones are handles to the same connection.
#[derive(Clone)]
pub struct Runtime {
    client: Client,
    version: Version,
    limit: Duration,
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Runtime({})", self.version.as_str())
    }
}

impl Runtime {
    /// Asks the runtime to update and evict containers; gives the updates that could not be applied
    /// (NRI-917). Does not wait longer than the runtime's request timeout.
    pub async fn update_containers(
        &self,
        update: Vec<ContainerUpdate>,
        evict: Vec<ContainerEviction>,
    ) -> Result<Vec<ContainerUpdate>, CallError> {
        let request = UpdateContainersRequest { update, evict };
        let service = self.version.runtime_service();
        let (method, limit) = ("UpdateContainers", self.limit);
        let reply = self
            .client
            .call(service, method, request.encode_to_vec(), limit);
        let reply = UpdateContainersResponse::decode(reply.await?.as_slice());
        Ok(reply
            .map_err(|e| CallError::BadReply(e.to_string()))?
            .failed)
    }
}

impl StubBuilder {
    /// Overrides the name from `NRI_PLUGIN_NAME` or the file name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Two digits. An error if `NRI_PLUGIN_IDX` says otherwise.
    pub fn index(mut self, index: impl Into<String>) -> Self {
        self.index = Some(index.into());
        self
    }

    /// Socket to connect to, unless the runtime has passed one.
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = path.into();
        self
    }

    /// Uses this connection for the first start instead of connecting.
    pub fn connection(mut self, connection: StdUnixStream) -> Self {
        self.connection = Some(connection);
        self
    }

    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// For RegisterPlugin and the wait for Configure; 5 s by default.
    pub fn registration_timeout(mut self, limit: Duration) -> Self {
        self.registration_timeout = limit;
        self
    }

    /// [`StubBuilder::run`] connects again when the connection is lost: after 0.5 s, then ever later,
    /// up to 30 s (NRI-916). Not for launched plugins, whose socket is gone for good.
    pub fn reconnect(mut self, reconnect: bool) -> Self {
        self.reconnect = reconnect;
        self
    }

    /// Called by [`StubBuilder::run`] when a connection has ended or could not be made: with the reason, and
    /// in how long it connects again; `None` where it does not. A new connection begins with `configure`
    /// and `synchronize`, as the first.
    pub fn on_disconnect<F>(mut self, told: F) -> Self
    where
        F: Fn(&StubError, Option<Duration>) + Send + Sync + 'static,
    {
        self.on_disconnect = Some(OnDisconnect(Box::new(told)));
        self
    }

    /// Behaves as plugins from before dedicated calls do: answers the nine plain events with
    /// UNIMPLEMENTED and takes them as `StateChange`. For tests of runtimes.
    pub fn state_change_only(mut self) -> Self {
        self.state_change_only = true;
        self
    }

    /// Identity that the plugin will register with (NRI-900).
    pub fn identity(&self) -> Result<PluginId, StubError> {
        let arg0 = env::args_os().next().map(PathBuf::from).unwrap_or_default();
        let base = arg0
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let var = |name| env::var(name).ok().filter(|v: &String| !v.is_empty());
        identity(
            var(ENV_NAME),
            var(ENV_INDEX),
            self.name.clone(),
            self.index.clone(),
            &base,
        )
    }

    /// Connects, registers and waits until the runtime has configured the plugin. The connection is
    /// served in the background from then on. May be dropped at any time.
    pub async fn start(&mut self) -> Result<Stub, StubError> {
        if self.handlers.events().is_empty() {
            return Err(StubError::NoHandlers);
        }
        let id = self.identity()?;
        let stream = self.connect().await?;
        let mux = Mux::new(stream, REQUEST_TIMEOUT * 5);
        let (configured, wait_configured) = oneshot::channel();
        let dismissed = Arc::default();
        let server = Arc::new(PluginServer {
            service: PluginService::new(self.handlers.clone()),
            configured: Mutex::new(Some(configured)),
            dismissed: Arc::clone(&dismissed),
            state_change_only: self.state_change_only,
        });
        let served = serve(mux.open(PLUGIN_SERVICE), &plugin_services(), server).await;
        let serving = served.map_err(StubError::Serve)?;
        let client = Client::new(mux.open(RUNTIME_SERVICE), None);
        mux.start();
        let version = self.register(&client, &id).await?;
        let limit = self.registration_timeout;
        let configured = tokio::select! {
            configured = wait_configured => configured.ok(),
            why = mux.closed() => return Err(StubError::NotConfigured(why)),
            () = sleep(limit) => return Err(StubError::ConfigureTimeout(limit)),
        };
        let request = match configured {
            Some(Ok(request)) => request,
            Some(Err(status)) => return Err(StubError::Configure(status)),
            None => return Err(StubError::NotConfigured(MuxError::Closed)),
        };
        let info = runtime_info(request, version);
        let runtime = Runtime {
            client,
            version,
            limit: info.request_timeout,
        };
        Ok(Stub {
            id,
            mux,
            _serving: serving,
            runtime,
            info,
            dismissed,
        })
    }

    /// Starts and serves until the connection is lost, or for ever if reconnecting.
    pub async fn run(mut self) -> Result<(), StubError> {
        let inherited = env::var_os(ENV_SOCKET).is_some();
        let mut backoff = BACKOFF_FIRST;
        loop {
            let begun = Instant::now();
            let ended = match self.start().await {
                Ok(stub) => stub.wait().await,
                Err(
                    e
                    @ (StubError::NoHandlers | StubError::Identity(_) | StubError::IndexTwice(..)),
                ) => {
                    return Err(e);
                }
                Err(e) => e,
            };
            let told = |pause| {
                if let Some(OnDisconnect(told)) = &self.on_disconnect {
                    told(&ended, pause);
                }
            };
            if !self.reconnect || inherited {
                told(None);
                return Err(ended);
            }
            if begun.elapsed() >= BACKOFF_RESET {
                backoff = BACKOFF_FIRST;
            }
            let pause = match &ended {
                StubError::Dismissed(why) if why.starts_with("instance-replaced") => {
                    told(None);
                    return Err(ended);
                }
                StubError::Dismissed(_) => backoff.max(BACKOFF_STOPPING),
                _ => backoff,
            };
            // A spread of an eighth, so that plugins of one node do not come back all at once.
            let spread = pause / 8 * (std::process::id() % 8) / 8;
            told(Some(pause + spread));
            tracing::info!("{ended}; connecting again in {:?}", pause + spread);
            sleep(pause + spread).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    async fn connect(&mut self) -> Result<UnixStream, StubError> {
        let fail = |path: PathBuf| move |cause| StubError::Connect { path, cause };
        if let Some(given) = self.connection.take() {
            let path = PathBuf::from("the given connection");
            given.set_nonblocking(true).map_err(fail(path.clone()))?;
            return UnixStream::from_std(given).map_err(fail(path));
        }
        if let Ok(value) = env::var(ENV_SOCKET) {
            return inherited(&value).map_err(|cause| StubError::InheritedSocket { value, cause });
        }
        let connected = UnixStream::connect(&self.socket).await;
        connected.map_err(fail(self.socket.clone()))
    }

    async fn register(&self, client: &Client, id: &PluginId) -> Result<Version, StubError> {
        let request = RegisterPluginRequest {
            plugin_name: id.name.clone(),
            plugin_idx: id.index.clone(),
            nri_version: NRI_VERSION.to_owned(),
        }
        .encode_to_vec();
        let limit = self.registration_timeout;
        let ask = |version: Version| {
            let (service, request) = (version.runtime_service(), request.clone());
            async move {
                let done = client.call(service, "RegisterPlugin", request, limit).await;
                done.map(|_| version)
            }
        };
        let registered = match self.protocol {
            Protocol::V1Alpha1 => ask(Version::V1Alpha1).await,
            Protocol::V1Beta1 => ask(Version::V1Beta1).await,
            Protocol::Newest => match ask(Version::V1Beta1).await {
                Err(CallError::Status(s)) if is_unknown_service(&s) => ask(Version::V1Alpha1).await,
                registered => registered,
            },
        };
        registered.map_err(StubError::Register)
    }
}

/// Takes the three variables that a launched plugin is started with from a program that the plugin starts itself, which
/// must not take itself for the launched one. The library cannot take them from the process: other threads may be reading
/// its environment.
pub fn forget_launch(command: &mut Command) -> &mut Command {
    command
        .env_remove(ENV_NAME)
        .env_remove(ENV_INDEX)
        .env_remove(ENV_SOCKET)
}

/// What runtimes answer that do not have a service; those built on ttrpc-rust differ (NRI-142).
fn is_unknown_service(status: &Status) -> bool {
    status.is(Code::Unimplemented)
        || (status.is(Code::InvalidArgument) || status.is(Code::NotFound))
            && status.message.contains("service")
}

impl Stub {
    /// Begins with the handlers of a plugin.
    pub fn builder(handlers: Handlers) -> StubBuilder {
        StubBuilder {
            handlers,
            name: None,
            index: None,
            socket: DEFAULT_SOCKET.into(),
            connection: None,
            protocol: Protocol::default(),
            registration_timeout: REGISTRATION_TIMEOUT,
            reconnect: false,
            on_disconnect: None,
            state_change_only: false,
        }
    }

    /// The NRI version that the plugin said it speaks: this library's.
    pub fn nri_version(&self) -> &'static str {
        NRI_VERSION
    }

    /// Identity that the plugin registered with.
    pub fn id(&self) -> &PluginId {
        &self.id
    }

    /// Identity of the runtime.
    pub fn runtime_info(&self) -> &RuntimeInfo {
        &self.info
    }

    /// To ask the runtime for updates.
    pub fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    /// Waits until the connection ends; says why.
    pub async fn wait(&self) -> StubError {
        let why = self.mux.closed().await;
        let dismissed = self.dismissed.lock();
        match &*dismissed {
            Some(reason) => StubError::Dismissed(reason.clone()),
            None => StubError::Ended(why),
        }
    }

    /// Ends the connection. Dropping the stub does the same.
    pub fn stop(&self) {
        self.mux.close(MuxError::Closed);
    }
}

type Configured = Result<ConfigureRequest, Status>;

/// Serves the plugin's methods, and notes Configure and Shutdown.
struct PluginServer {
    service: PluginService,
    configured: Mutex<Option<oneshot::Sender<Configured>>>,
    dismissed: Arc<Mutex<Option<String>>>,
    state_change_only: bool,
}

#[async_trait::async_trait]
impl Serve for PluginServer {
    async fn answer(&self, call: Incoming) -> Result<Vec<u8>, Status> {
        let Incoming {
            method,
            payload,
            limit,
            ..
        } = call;
        if self.state_change_only && is_plain(method) {
            let text = format!("method {method} is not implemented");
            return Err(Status::new(Code::Unimplemented, text));
        }
        let request = (method == "Configure").then(|| ConfigureRequest::decode(payload.as_slice()));
        if method == "Shutdown" {
            let reason = ShutdownRequest::decode(payload.as_slice()).unwrap_or_default();
            let mut dismissed = self.dismissed.lock();
            *dismissed = Some(reason.reason);
        }
        let answer = self.service.answer(method, payload);
        let answer = DEADLINE
            .scope(limit.map(|l| Instant::now() + l), answer)
            .await;
        if let Some(Ok(request)) = request {
            let configured = self.configured.lock().take();
            if let Some(configured) = configured {
                let outcome = answer.as_ref().map(|_| request).map_err(Clone::clone);
                // Nobody waits: the stub was dropped.
                let _ = configured.send(outcome);
            }
        }
        answer
    }
}

/// The nine events that go as `StateChange` to an old plugin.
fn is_plain(method: &str) -> bool {
    let known = crate::mask::EVENTS.iter().find(|(_, name)| *name == method);
    known.is_some_and(|(event, _)| crate::wire::event::has_state_change(*event))
}

fn runtime_info(request: ConfigureRequest, protocol: Version) -> RuntimeInfo {
    let millis = |n: i64, default: Duration| match u64::try_from(n) {
        Ok(0) | Err(_) => default,
        Ok(n) => Duration::from_millis(n),
    };
    let nri_version = runtime_nri_version(
        &request.nri_version,
        &request.runtime_name,
        &request.runtime_version,
    );
    RuntimeInfo {
        name: request.runtime_name,
        version: request.runtime_version,
        nri_version,
        registration_timeout: millis(request.registration_timeout, REGISTRATION_TIMEOUT),
        request_timeout: millis(request.request_timeout, REQUEST_TIMEOUT),
        protocol,
    }
}

/// Environment, then options, then the file name `NN-name` (NRI-900).
fn identity(
    env_name: Option<String>,
    env_index: Option<String>,
    name: Option<String>,
    index: Option<String>,
    base: &str,
) -> Result<PluginId, StubError> {
    let index = match (env_index, index) {
        (Some(a), Some(b)) if a != b => return Err(StubError::IndexTwice(a, b)),
        (a, b) => a.or(b),
    };
    let name = name.or(env_name);
    Ok(match (index, name) {
        (Some(index), Some(name)) => PluginId::new(index, name)?,
        (Some(index), None) => PluginId::new(index, base)?,
        (None, name) => {
            let file: PluginId = base.parse()?;
            match name {
                Some(name) => PluginId::new(file.index, name)?,
                None => file,
            }
        }
    })
}

/// Takes the socket the runtime has given to a launched plugin (NRI-121).
///
/// The descriptor is fetched as a new one of our own, close-on-exec, and the old one is closed, so
/// that no child of the plugin holds the connection open.
fn inherited(value: &str) -> io::Result<UnixStream> {
    let fd: i32 = value.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    let ours: OwnedFd = pidfd_getfd(this, fd, PidfdGetfdFlags::empty())?;
    nix::unistd::close(fd)?;
    let stream = StdUnixStream::from(ours);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(s: &str) -> Option<String> {
        Some(s.to_owned())
    }

    #[test]
    fn the_end_of_a_connection_is_told_with_the_reason_if_there_is_one() {
        let told = |reason: &str| StubError::Dismissed(reason.to_owned()).to_string();
        assert_eq!(told(""), "the runtime has ended the connection");
        assert_eq!(
            told("runtime-stopping: it was\ntold to"),
            "the runtime has ended the connection: runtime-stopping: it was told to"
        );
    }

    #[test]
    fn identity_comes_from_environment_then_options_then_file_name() {
        let id = |en, ei, n, i, base| identity(en, ei, n, i, base).map(|id| id.to_string()).ok();
        assert_eq!(
            id(some("foo"), some("10"), None, None, "x").as_deref(),
            Some("10-foo")
        );
        assert_eq!(
            id(some("foo"), some("10"), some("bar"), None, "x").as_deref(),
            Some("10-bar")
        );
        assert_eq!(
            id(None, some("10"), None, None, "plug").as_deref(),
            Some("10-plug")
        );
        assert_eq!(
            id(None, None, None, None, "07-a-b").as_deref(),
            Some("07-a-b")
        );
        // A name by option survives an index from the file name (NRI-900, mended).
        assert_eq!(
            id(None, None, some("n"), None, "07-a").as_deref(),
            Some("07-n")
        );
        assert_eq!(id(None, None, some("n"), None, "plug"), None);
        assert_eq!(id(None, some("1"), some("n"), None, "plug"), None);
    }

    #[test]
    fn an_index_that_contradicts_the_environment_is_refused() {
        let twice = identity(None, some("10"), some("n"), some("11"), "x");
        assert!(matches!(twice, Err(StubError::IndexTwice(..))));
        assert!(identity(None, some("10"), some("n"), some("10"), "x").is_ok());
    }
}

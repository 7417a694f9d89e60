//! A plugin as a program: it connects to a runtime, or takes the socket that the runtime passed to
//! it, and serves a [`Plugin`](crate::Plugin).
//!
//! ```text
//!   connect ─► serve ─► RegisterPlugin ─► Configure answered ─► Synchronize answered ─► running ─► lost
//!      ▲                              (register returns)      (start returns)                     │
//!      └──────────────────────── back-off, in run() ◄─────────────────────────────────────────────┘
//! ```
//!
//! [`StubBuilder::run`] is the complete life of a plugin, for most programs. [`StubBuilder::start`]
//! is one connection of it, for programs with other work.
//!
//! ```
//! use std::sync::Arc;
//! use nri::{Adaptation, Context, Plugin, Result, Stub, proto::PodSandbox};
//! # use nri::{BoxFuture, FailedUpdate, PluginId, Requester, Snapshot, Source, proto::ContainerUpdate};
//! # struct Runtime;
//! # impl Source for Runtime {
//! #     fn snapshot(&self) -> Snapshot { Snapshot::default() }
//! #     fn update(&self, _: &Requester, _: Vec<ContainerUpdate>) -> BoxFuture<'_, Vec<FailedUpdate>> { Box::pin(async { Vec::new() }) }
//! #     fn evict(&self, _: &PluginId, _: String, _: String) -> BoxFuture<'_, std::result::Result<(), String>> { Box::pin(async { Ok(()) }) }
//! # }
//!
//! struct Names;
//!
//! impl Plugin for Names {
//!     async fn run_pod_sandbox(&self, _: &Context, pod: PodSandbox) -> Result<()> {
//!         if pod.name.is_empty() { Err("a pod without a name".into()) } else { Ok(()) }
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let socket = dir.path().join("nri.sock");
//! # let builder = Adaptation::builder("a-runtime", "1.0").socket(&socket).plugin_dir(dir.path().join("plugins"));
//! # let builder = builder.plugin_config_dir(dir.path().join("conf.d"));
//! # let runtime = builder.source(Arc::new(Runtime)).start().await?;
//! // A runtime listens at `socket`.
//! let plugin = Stub::builder(Names).name("names").index("10").socket(&socket).start().await?;
//! assert_eq!(plugin.runtime_info().name, "a-runtime");
//! // The plugin is synchronised: events come, and requests go.
//! plugin.runtime().evict("c1", "an example").await?;
//! # drop(runtime);
//! # Ok(()) }
//! ```
//!
//! Dropping a future of this module at any point leaves nothing behind (NRI-915).

use std::{
    env, fmt, io,
    os::unix::net::UnixStream as StdUnixStream,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use proto_nri::RegisterPluginRequest;
use tokio::{net::UnixStream, sync::oneshot, time::sleep};

use crate::{
    plugin_id::PluginId,
    plugin_side::{
        handlers::Handlers, runtime::Connection, runtime_info::REGISTRATION_TIMEOUT,
        service::PluginService,
    },
    settings::DEFAULT_SOCKET,
    source::BoxFuture,
    wire::{
        event::Wire,
        mux::{Mux, MuxError, PLUGIN_SERVICE, RUNTIME_SERVICE, Socket},
        process::ENV_SOCKET,
        rpc::{Client, Serving, serve},
        version::{NRI_VERSION, PLUGIN_API, RUNTIME_API, plugin_methods},
    },
};

mod error;
mod identity;
mod run;
mod server;

pub use self::{error::StubError, identity::forget_launch};
pub use crate::plugin_side::{context::time_left, runtime::Runtime, runtime_info::RuntimeInfo};

/// Time a write may wait while the runtime does not read.
const STALLED: Duration = Duration::from_secs(10);

/// Collects the parts of a [`Stub`]. By default a plugin is named after its file, `10-name`, and
/// connects to the default socket; a launched plugin gets everything from its runtime.
///
/// ```no_run
/// # async fn example(plugin: impl nri::Plugin) -> Result<(), nri::StubError> {
/// nri::Stub::builder(plugin)
///     .name("example")
///     .index("10")
///     .on_disconnect(|why, again| match again {
///         Some(pause) => eprintln!("{why}; trying again in {pause:.1?}"),
///         None => eprintln!("{why}"),
///     })
///     .run()
///     .await
/// # }
/// ```
#[derive(Debug)]
pub struct StubBuilder {
    handlers: Handlers,
    name: Option<String>,
    index: Option<String>,
    socket: PathBuf,
    connection: Option<StdUnixStream>,
    #[cfg(feature = "sim")]
    memory: Option<nri_sim::Memory>,
    registration_timeout: Duration,
    reconnect: bool,
    on_disconnect: Option<OnDisconnect>,
    state_change_only: bool,
    /// Shared by all connections of `run`.
    runtime: Runtime,
}

/// Called when a connection ends or fails: with the reason, and the pause before the next, if any.
struct OnDisconnect(Box<Disconnected>);

type Disconnected = dyn Fn(&StubError, Option<Duration>) + Send + Sync;

impl fmt::Debug for OnDisconnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnDisconnect")
    }
}

/// A plugin on one connection, served in the background until this is dropped.
#[derive(Debug)]
pub struct Stub {
    id: PluginId,
    mux: Mux,
    _serving: Serving,
    runtime: Runtime,
    info: Arc<RuntimeInfo>,
    dismissed: Arc<AtomicBool>,
}

impl StubBuilder {
    /// Overrides the name from `NRI_PLUGIN_NAME` or the file name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Two digits. An error if `NRI_PLUGIN_IDX` differs.
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

    /// Uses this connection for the next start.
    #[cfg(feature = "sim")]
    pub fn memory(mut self, connection: nri_sim::Memory) -> Self {
        self.memory = Some(connection);
        self
    }

    /// For RegisterPlugin and the wait for Configure; 5 s by default.
    pub fn registration_timeout(mut self, limit: Duration) -> Self {
        self.registration_timeout = limit;
        self
    }

    /// Whether [`StubBuilder::run`] reconnects when the connection is lost or cannot be made; true
    /// by default. Launched plugins never do.
    pub fn reconnect(mut self, reconnect: bool) -> Self {
        self.reconnect = reconnect;
        self
    }

    /// Called by [`StubBuilder::run`] when a connection has ended or could not be made: with the
    /// reason and the pause before it reconnects, or `None`. A new connection begins with
    /// `configure` and `synchronize`, like the first.
    pub fn on_disconnect<F>(mut self, notified: F) -> Self
    where
        F: Fn(&StubError, Option<Duration>) + Send + Sync + 'static,
    {
        self.on_disconnect = Some(OnDisconnect(Box::new(notified)));
        self
    }

    /// Simulates plugins older than dedicated calls: answers the nine plain events with
    /// UNIMPLEMENTED and takes them as `StateChange`. For tests of runtimes.
    pub fn state_change_only(mut self) -> Self {
        self.state_change_only = true;
        self
    }

    /// The identity to register (NRI-900).
    pub fn identity(&self) -> Result<PluginId, StubError> {
        identity::of_this_process(self.name.clone(), self.index.clone())
    }

    /// The runtime of [`StubBuilder::run`], for tasks of the plugin; valid on each connection.
    /// [`Stub::runtime`] is that of a single connection.
    pub fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    /// Connects, registers, and waits until the runtime has configured and synchronised the plugin:
    /// from then on it gets events, and may request updates and evictions. The connection is served
    /// in the background, until the [`Stub`] is dropped. Can be cancelled at any time.
    ///
    /// A runtime may synchronise late; that is not an error while the connection lives.
    pub fn start(&mut self) -> BoxFuture<'_, Result<Stub, StubError>> {
        Box::pin(async move {
            let stub = self.register().await?;
            stub.synchronized().await?;
            Ok(stub)
        })
    }

    /// As [`StubBuilder::start`], but returns as soon as the plugin is configured; synchronisation
    /// continues in the background ([`Stub::synchronized`]). For tests of runtimes, which check the
    /// state between.
    pub fn register(&mut self) -> BoxFuture<'_, Result<Stub, StubError>> {
        Box::pin(self.register_as(Runtime::detached().connection()))
    }

    async fn register_as(&mut self, connection: Connection) -> Result<Stub, StubError> {
        if self.handlers.events().is_empty() {
            return Err(StubError::NoHandlers);
        }
        let id = self.identity()?;
        let stream = self.connect().await?;
        let mux = Mux::new(stream, STALLED);
        let (configured, wait_configured) = oneshot::channel();
        let dismissed = Arc::default();
        let server = Arc::new(server::PluginServer {
            service: PluginService::connected(self.handlers.clone(), connection.clone()),
            connection: connection.clone(),
            configured: Mutex::new(Some(configured)),
            dismissed: Arc::clone(&dismissed),
            state_change_only: self.state_change_only,
        });
        let served = serve(
            mux.open(PLUGIN_SERVICE),
            PLUGIN_API,
            &plugin_methods(),
            server,
        )
        .await;
        let serving = served.map_err(StubError::Serve)?;
        let client = Client::new(mux.open(RUNTIME_SERVICE), RUNTIME_API);
        connection.attach(client.clone());
        mux.start();
        self.ask_to_register(&client, &id).await?;
        let limit = self.registration_timeout;
        let configured = tokio::select! {
            configured = wait_configured => configured.ok(),
            why = mux.closed() => return Err(StubError::NotConfigured(why.to_string())),
            () = sleep(limit) => return Err(StubError::ConfigureTimeout(limit)),
        };
        match configured {
            Some(Ok(())) => {}
            Some(Err(status)) => return Err(StubError::Configure(status)),
            None => return Err(StubError::NotConfigured(MuxError::Closed.to_string())),
        }
        Ok(Stub {
            id,
            mux,
            _serving: serving,
            info: connection.runtime.known(),
            runtime: connection.runtime,
            dismissed,
        })
    }

    async fn connect(&mut self) -> Result<Socket, StubError> {
        #[cfg(feature = "sim")]
        if let Some(memory) = self.memory.take() {
            return Ok(memory.into());
        }
        self.connect_stream().await.map(Socket::from)
    }

    async fn connect_stream(&mut self) -> Result<UnixStream, StubError> {
        let fail = |path: PathBuf| move |cause: io::Error| StubError::Connect { path, cause };
        if let Some(given) = self.connection.take() {
            let path = PathBuf::from("the given connection");
            given.set_nonblocking(true).map_err(fail(path.clone()))?;
            return UnixStream::from_std(given).map_err(fail(path));
        }
        if let Ok(value) = env::var(ENV_SOCKET) {
            return identity::inherited(&value)
                .map_err(|cause| StubError::InheritedSocket { value, cause });
        }
        let connected = UnixStream::connect(&self.socket).await;
        connected.map_err(fail(self.socket.clone()))
    }

    async fn ask_to_register(&self, client: &Client, id: &PluginId) -> Result<(), StubError> {
        let request = RegisterPluginRequest {
            plugin_name: id.name.clone(),
            plugin_idx: id.index.clone(),
            nri_version: NRI_VERSION.to_owned(),
        };
        let limit = self.registration_timeout;
        let registered = client.call("RegisterPlugin", request.to_wire(), limit);
        registered.await.map(drop).map_err(StubError::Register)
    }
}

impl Stub {
    /// Begins with a plugin: a [`Plugin`](crate::Plugin), an `Arc` of one, or a table of handlers.
    pub fn builder(plugin: impl Into<Handlers>) -> StubBuilder {
        StubBuilder {
            handlers: plugin.into(),
            name: None,
            index: None,
            socket: DEFAULT_SOCKET.into(),
            connection: None,
            #[cfg(feature = "sim")]
            memory: None,
            registration_timeout: REGISTRATION_TIMEOUT,
            reconnect: true,
            on_disconnect: None,
            state_change_only: false,
            runtime: Runtime::detached(),
        }
    }

    /// The registered identity.
    pub fn id(&self) -> &PluginId {
        &self.id
    }

    /// Identity of the runtime.
    pub fn runtime_info(&self) -> &RuntimeInfo {
        &self.info
    }

    /// Sends the runtime updates and evictions.
    pub fn runtime(&self) -> Runtime {
        self.runtime.clone()
    }

    /// Waits until the plugin has answered Synchronize; an error if it rejected it, or if the
    /// connection ended first.
    pub async fn synchronized(&self) -> Result<(), StubError> {
        tokio::select! {
            biased;
            outcome = self.runtime.synchronize_outcome() => outcome.map_err(StubError::Synchronize),
            ended = self.wait() => Err(ended),
        }
    }

    /// Waits until the connection ends; returns the reason.
    pub async fn wait(&self) -> StubError {
        let why = self.mux.closed().await;
        if self.dismissed.load(Ordering::SeqCst) {
            return StubError::Dismissed;
        }
        StubError::Ended(why.to_string())
    }

    /// Ends the connection. Dropping the stub does the same.
    pub fn stop(&self) {
        self.mux.close(MuxError::Closed);
    }
}

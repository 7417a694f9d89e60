//! A scripted plugin: it records every event, and blocks, fails or misbehaves on request.
//!
//! It runs in the test on the plugin side of the crate `nri`, connected over the daemon's real
//! socket, so that the daemon sees an external plugin like any other.

use std::{
    collections::BTreeMap, io::Write, net::Shutdown, os::unix::net::UnixStream, path::Path,
    sync::Arc, time::Duration,
};

use nri::{
    Handlers,
    proto::{
        Container, ContainerAdjustment, CreateContainerRequest, CreateContainerResponse, Event,
        PodSandbox, PodSandboxAdjustment, PodSandboxNetwork, RunPodSandboxRequest,
        RunPodSandboxResponse, ValidateContainerAdjustmentRequest,
    },
    stub::Stub,
};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use testkit::until::PATIENCE;

/// One event that the plugin received.
#[derive(Clone, Debug)]
pub struct Seen {
    pub event: Event,
    pub pod: PodSandbox,
    /// For container events.
    pub container: Option<Container>,
    /// Fields missing in the message.
    pub left_out: Arc<[String]>,
}

/// A plugin's reaction to an event, other than agreement.
#[derive(Clone, Debug)]
pub enum Deed {
    /// Answers with an error.
    Error(String),
    /// Never answers.
    Hang,
    /// Closes the connection in both directions, as a process that exits does.
    Exit,
    /// Writes an invalid frame, and never answers.
    Garbage,
    /// Writes a part of a frame, and nothing more.
    HalfFrame,
    /// Writes frames for unopened connections without end, and never answers.
    Flood,
    /// Registers once more on the same connection, as `77-other`, then agrees.
    RegisterAgain,
    /// Waits until the gate is opened, then agrees.
    Wait(Arc<Semaphore>),
    /// Panics in the handler.
    Panic,
}

type Answering = Arc<dyn Fn(&PodSandbox, &Container) -> CreateContainerResponse + Send + Sync>;

/// State shared by the test and the handlers.
struct Shared {
    seen: watch::Sender<Vec<Seen>>,
    deeds: Mutex<BTreeMap<i32, Deed>>,
    addresses: Mutex<Vec<String>>,
    answering: Mutex<Option<Answering>>,
    synchronised: watch::Sender<Option<(Vec<PodSandbox>, Vec<Container>)>>,
    /// A second handle to the plugin's connection, for raw writes.
    raw: UnixStream,
}

/// A connected plugin; dropping it disconnects it.
pub struct Plugin {
    shared: Arc<Shared>,
    stub: Stub,
}

/// A blocking hook: it waits until this is opened.
pub struct Gate(Arc<Semaphore>);

impl Gate {
    /// Opens the gate for good.
    pub fn open(&self) {
        self.0.add_permits(1_000);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// All events, in the order of a life.
pub const EVENTS: [Event; 13] = [
    Event::RunPodSandbox,
    Event::CreateContainer,
    Event::PostCreateContainer,
    Event::StartContainer,
    Event::PostStartContainer,
    Event::UpdateContainer,
    Event::PostUpdateContainer,
    Event::UpdatePodSandbox,
    Event::PostUpdatePodSandbox,
    Event::StopContainer,
    Event::RemoveContainer,
    Event::StopPodSandbox,
    Event::RemovePodSandbox,
];

impl Plugin {
    /// Connects, registers with all thirteen events, and waits until it is synchronized.
    ///
    /// # Panics
    /// If the daemon rejects it.
    pub async fn join(socket: &Path, index: &str, name: &str) -> Self {
        Self::subscribed(socket, index, name, &EVENTS).await
    }

    /// As [`Plugin::join`], with these events only.
    ///
    /// # Panics
    /// If the daemon rejects it.
    pub async fn subscribed(socket: &Path, index: &str, name: &str, events: &[Event]) -> Self {
        let plugin = Self::try_join(socket, index, name, events).await;
        plugin.unwrap_or_else(|e| panic!("plugin {index}-{name} is not taken: {e}"))
    }

    /// As [`Plugin::subscribed`].
    ///
    /// # Errors
    /// The reason of the daemon's rejection.
    pub async fn try_join(
        socket: &Path,
        index: &str,
        name: &str,
        events: &[Event],
    ) -> Result<Self, String> {
        Self::connect(socket, index, name, events, BTreeMap::new()).await
    }

    /// As [`Plugin::join`], misbehaving at one event from the start.
    ///
    /// # Panics
    /// If the daemon rejects it.
    pub async fn bad_from_the_start(
        socket: &Path,
        index: &str,
        name: &str,
        event: Event,
        deed: Deed,
    ) -> Self {
        let deeds = BTreeMap::from([(event as i32, deed)]);
        let plugin = Self::connect(socket, index, name, &EVENTS, deeds).await;
        plugin.unwrap_or_else(|e| panic!("plugin {index}-{name} is not taken: {e}"))
    }

    async fn connect(
        socket: &Path,
        index: &str,
        name: &str,
        events: &[Event],
        deeds: BTreeMap<i32, Deed>,
    ) -> Result<Self, String> {
        let raw = UnixStream::connect(socket).map_err(|e| format!("connect: {e}"))?;
        let connection = raw.try_clone().map_err(|e| format!("clone: {e}"))?;
        let shared = Arc::new(Shared {
            seen: watch::channel(Vec::new()).0,
            deeds: Mutex::new(deeds),
            addresses: Mutex::default(),
            answering: Mutex::default(),
            synchronised: watch::channel(None).0,
            raw,
        });
        let started = Stub::builder(handlers(&shared, events))
            .name(name)
            .index(index)
            .connection(connection)
            .register()
            .await;
        let stub = started.map_err(|e| e.to_string())?;
        let plugin = Self { shared, stub };
        plugin.synchronised().await;
        Ok(plugin)
    }

    /// The lists of its Synchronize.
    ///
    /// # Panics
    /// If Synchronize does not come in time.
    pub async fn synchronised(&self) -> (Vec<PodSandbox>, Vec<Container>) {
        let mut told = self.shared.synchronised.subscribe();
        let wait = told.wait_for(Option::is_some);
        let told = tokio::time::timeout(PATIENCE, wait).await;
        let told = told
            .expect("Synchronize comes")
            .expect("we hold the sender");
        told.clone().unwrap_or_default()
    }

    /// Makes the plugin misbehave at an event from now on.
    pub fn does(&self, event: Event, deed: Deed) {
        self.shared.deeds.lock().insert(event as i32, deed);
    }
    /// Ends the misbehavior.
    pub fn behaves(&self) {
        self.shared.deeds.lock().clear();
    }
    /// Makes an event's hook block until the gate is opened.
    pub fn blocks(&self, event: Event) -> Gate {
        let gate = Arc::new(Semaphore::new(0));
        self.does(event, Deed::Wait(gate.clone()));
        Gate(gate)
    }
    /// Answers RunPodSandbox with these addresses.
    pub fn gives(&self, ips: &[&str]) {
        *self.shared.addresses.lock() = ips.iter().map(ToString::to_string).collect();
    }
    /// Answers CreateContainer with an adjustment.
    pub fn adjusts<F>(&self, adjust: F)
    where
        F: Fn(&PodSandbox, &Container) -> Option<ContainerAdjustment> + Send + Sync + 'static,
    {
        self.answers(move |pod, container| CreateContainerResponse {
            adjust: adjust(pod, container),
            ..Default::default()
        });
    }
    /// Answers CreateContainer with a complete answer.
    pub fn answers<F>(&self, answer: F)
    where
        F: Fn(&PodSandbox, &Container) -> CreateContainerResponse + Send + Sync + 'static,
    {
        *self.shared.answering.lock() = Some(Arc::new(answer));
    }

    /// All events so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.borrow().clone()
    }
    /// All events so far, one line each: "Event pod" or "Event pod container".
    pub fn list(&self) -> Vec<String> {
        self.seen().iter().map(line).collect()
    }
    /// The names of the events so far.
    pub fn events(&self) -> Vec<Event> {
        self.seen().iter().map(|s| s.event).collect()
    }

    /// Waits for an event of a pod (by its name); returns the first one.
    ///
    /// # Panics
    /// If it does not come in time.
    pub async fn sees(&self, event: Event, pod: &str) -> Seen {
        self.sees_where(&format!("{event:?} of {pod}"), |s| {
            s.event == event && s.pod.name == pod
        })
        .await
    }

    /// Waits for an event that satisfies a condition.
    ///
    /// # Panics
    /// If it does not come in time, with what came.
    pub async fn sees_where(&self, what: &str, is: impl Fn(&Seen) -> bool) -> Seen {
        let mut seen = self.shared.seen.subscribe();
        let wait = seen.wait_for(|all| all.iter().any(&is));
        let Ok(all) = tokio::time::timeout(PATIENCE, wait).await else {
            panic!("waited in vain for {what}; came: {:?}", self.list());
        };
        let all = all.expect("we hold the sender");
        all.iter().find(|s| is(s)).cloned().expect("one was there")
    }

    /// Whether the daemon has closed the connection.
    pub async fn is_dismissed(&self, within: Duration) -> bool {
        tokio::time::timeout(within, self.stub.wait()).await.is_ok()
    }

    /// For requests of updates.
    pub fn runtime(&self) -> nri::stub::Runtime {
        self.stub.runtime()
    }
}

/// The format of the Go plugin: "Event pod" or "Event pod container".
fn line(seen: &Seen) -> String {
    let event = nri::mask::event_name(seen.event);
    match &seen.container {
        Some(container) => format!("{event} {} {}", seen.pod.name, container.name),
        None => format!("{event} {}", seen.pod.name),
    }
}

impl Shared {
    /// Records an event and reacts to it.
    async fn pass(
        self: Arc<Self>,
        event: Event,
        pod: PodSandbox,
        container: Option<Container>,
    ) -> nri::Result<()> {
        let deed = self.deeds.lock().get(&(event as i32)).cloned();
        self.seen.send_modify(|all| {
            all.push(Seen {
                event,
                pod,
                container,
                left_out: nri::left_out(),
            })
        });
        let Some(deed) = deed else { return Ok(()) };
        let mut raw = &self.raw;
        match deed {
            Deed::Error(text) => return Err(text.into()),
            Deed::Wait(gate) => {
                let _passed = gate.acquire().await;
                return Ok(());
            }
            // Without a report: a backtrace takes longer than a plugin's timeout.
            Deed::Panic => std::panic::resume_unwind(Box::new("a handler that panics, on purpose")),
            Deed::RegisterAgain => {
                let _ = raw.write_all(&frame(2, &registration("77", "other")));
                return Ok(());
            }
            Deed::Exit => drop(self.raw.shutdown(Shutdown::Both)),
            Deed::Garbage => {
                let junk = [0xff_u8; 64];
                let _ = raw.write_all(&junk);
            }
            Deed::HalfFrame => {
                let _ = raw.write_all(&frame(1, &[7; 200])[..60]);
            }
            Deed::Flood => {
                let nonsense = frame(77, &[1; 1000]);
                // Ends when the daemon has closed the connection.
                tokio::task::spawn_blocking(
                    move || while (&self.raw).write_all(&nonsense).is_ok() {},
                );
            }
            Deed::Hang => {}
        }
        std::future::pending().await
    }
}

/// A ttrpc call of RegisterPlugin: length, stream, kind and flags, then the request. Connection 2
/// is the runtime's service.
fn registration(index: &str, name: &str) -> Vec<u8> {
    /// A bytes field, shorter than 128.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u8::try_from(bytes.len()).expect("a short field");
        [&[number << 3 | 2, length], bytes].concat()
    }
    let who = [field(1, name.as_bytes()), field(2, index.as_bytes())].concat();
    let request = [
        field(1, b"nri.pkg.api.v1alpha1.Runtime"),
        field(2, b"RegisterPlugin"),
        field(3, &who),
    ]
    .concat();
    let length = u32::try_from(request.len()).expect("a short request");
    let (stream, kind) = (10_001_u32, [1, 0]);
    [
        &length.to_be_bytes()[..],
        &stream.to_be_bytes(),
        &kind,
        &request,
    ]
    .concat()
}

/// A frame of the multiplexer: connection, length, payload.
fn frame(connection: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame");
    [&connection.to_be_bytes(), &length.to_be_bytes(), payload].concat()
}

fn handlers(shared: &Arc<Shared>, events: &[Event]) -> Handlers {
    let own = shared.clone();
    let mut handlers = Handlers::new().synchronize(move |pods, containers| {
        own.synchronised.send_replace(Some((pods, containers)));
        async { Ok(Vec::new()) }
    });
    macro_rules! pod_event {
        ($event:ident, $method:ident) => {
            if events.contains(&Event::$event) {
                let own = shared.clone();
                handlers = handlers.$method(move |pod| own.clone().pass(Event::$event, pod, None));
            }
        };
    }
    macro_rules! container_event {
        ($event:ident, $method:ident) => {
            if events.contains(&Event::$event) {
                let own = shared.clone();
                handlers =
                    handlers.$method(move |pod, c| own.clone().pass(Event::$event, pod, Some(c)));
            }
        };
    }
    pod_event!(PostUpdatePodSandbox, post_update_pod_sandbox);
    pod_event!(StopPodSandbox, stop_pod_sandbox);
    pod_event!(RemovePodSandbox, remove_pod_sandbox);
    container_event!(PostCreateContainer, post_create_container);
    container_event!(StartContainer, start_container);
    container_event!(PostStartContainer, post_start_container);
    container_event!(PostUpdateContainer, post_update_container);
    container_event!(RemoveContainer, remove_container);
    if events.contains(&Event::UpdatePodSandbox) {
        let own = shared.clone();
        handlers = handlers.update_pod_sandbox(move |pod, _, _| {
            own.clone().pass(Event::UpdatePodSandbox, pod, None)
        });
    }
    with_answers(handlers, shared, events)
}

/// The events whose answers have contents.
fn with_answers(mut handlers: Handlers, shared: &Arc<Shared>, events: &[Event]) -> Handlers {
    if events.contains(&Event::RunPodSandbox) {
        let own = shared.clone();
        handlers = handlers.on(move |request: RunPodSandboxRequest| {
            let own = own.clone();
            async move {
                let pod = request.pod.unwrap_or_default();
                own.clone().pass(Event::RunPodSandbox, pod, None).await?;
                let ips = own.addresses.lock().clone();
                let network = Some(PodSandboxNetwork { ips });
                Ok(RunPodSandboxResponse {
                    adjust: Some(PodSandboxAdjustment { network }),
                })
            }
        });
    }
    if events.contains(&Event::CreateContainer) {
        let own = shared.clone();
        handlers = handlers.on(move |request: CreateContainerRequest| {
            let own = own.clone();
            async move {
                let pod = request.pod.unwrap_or_default();
                let container = request.container.unwrap_or_default();
                let answering = own.answering.lock().clone();
                let answer = answering.map(|a| a(&pod, &container));
                own.pass(Event::CreateContainer, pod, Some(container))
                    .await?;
                Ok(answer.unwrap_or_default())
            }
        });
    }
    if events.contains(&Event::UpdateContainer) {
        let own = shared.clone();
        handlers = handlers.update_container(move |pod, container, _| {
            let passed = own
                .clone()
                .pass(Event::UpdateContainer, pod, Some(container));
            async move { passed.await.map(|()| Vec::new()) }
        });
    }
    if events.contains(&Event::StopContainer) {
        let own = shared.clone();
        handlers = handlers.stop_container(move |pod, container| {
            let passed = own.clone().pass(Event::StopContainer, pod, Some(container));
            async move { passed.await.map(|()| Vec::new()) }
        });
    }
    if events.contains(&Event::ValidateContainerAdjustment) {
        let own = shared.clone();
        handlers = handlers.validate_container_adjustment(
            move |request: ValidateContainerAdjustmentRequest| {
                let (pod, container) = (request.pod.unwrap_or_default(), request.container);
                own.clone()
                    .pass(Event::ValidateContainerAdjustment, pod, container)
            },
        );
    }
    handlers
}

/// Records a passed cell of the hostile table, for the count of `hack/test nri`.
///
/// # Panics
/// If it cannot be recorded.
pub fn held(cell: &str) {
    if let Some(path) = std::env::var_os("CAIRN_TEST_CELLS") {
        let mut open = std::fs::OpenOptions::new();
        let noted = open.append(true).create(true).open(path);
        let noted = noted.and_then(|mut file| file.write_all(format!("{cell}\n").as_bytes()));
        noted.expect("the cell can be noted");
    }
}

//! Plugins of the suite. Each notes what it is told of its own point's pods, and does there what the point says; of
//! pods that are not the point's it agrees to everything and notes nothing.

use std::{
    collections::BTreeMap,
    io::Write,
    net::Shutdown,
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use nri::{
    EventMask, Handlers,
    mask::{EVENTS, event_name},
    proto::*,
    stub::{Protocol, Stub},
};
use tokio::sync::{Semaphore, watch};

use crate::verdict::{Checked, miss};

/// How long a point waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// One event as a plugin got it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Counts all events of a point's plugins.
    pub number: usize,
    pub at: Instant,
    pub plugin: String,
    pub event: Event,
    pub pod: PodSandbox,
    /// Of container events.
    pub container: Option<Container>,
    /// Of C-08 and C-12: the resources asked for.
    pub resources: Option<LinuxResources>,
    /// When its handler returned.
    pub answered: Option<Instant>,
}

impl Seen {
    /// "Event pod" or "Event pod/container", names without the point's prefix.
    pub fn line(&self, prefix: &str) -> String {
        let pod = self.pod.name.strip_prefix(prefix).unwrap_or(&self.pod.name);
        match &self.container {
            Some(container) => format!("{} {pod}/{}", event_name(self.event), container.name),
            None => format!("{} {pod}", event_name(self.event)),
        }
    }
    pub fn container_id(&self) -> &str {
        self.container.as_ref().map_or("", |c| &c.id)
    }
}

/// What the plugins of one point were told, in its order.
pub struct Journal {
    pub begun: Instant,
    /// Names of the point's pods begin so.
    pub prefix: String,
    seen: watch::Sender<Vec<Seen>>,
}

impl Journal {
    pub fn new(prefix: String) -> Self {
        Self {
            begun: Instant::now(),
            prefix,
            seen: watch::channel(Vec::new()).0,
        }
    }
    pub fn all(&self) -> Vec<Seen> {
        self.seen.borrow().clone()
    }
    fn note(&self, mut seen: Seen) -> usize {
        let mut number = 0;
        self.seen.send_modify(|all| {
            number = all.len();
            seen.number = number;
            all.push(seen);
        });
        number
    }
    fn answered(&self, number: usize) {
        self.seen
            .send_modify(|all| all[number].answered = Some(Instant::now()));
    }
    /// The events as a person reads them.
    pub fn lines(&self) -> Vec<String> {
        let line = |seen: &Seen| {
            let ms = seen.at.duration_since(self.begun).as_millis();
            format!("{ms:>6} ms  {}  {}", seen.plugin, seen.line(&self.prefix))
        };
        self.seen.borrow().iter().map(line).collect()
    }
}

/// What a plugin does at an event instead of agreeing.
#[derive(Clone, Debug)]
pub enum Deed {
    /// Answers with an error.
    Error(String),
    /// Never answers.
    Hang,
    /// Closes the connection in both directions, as a process that ends does.
    Die,
    /// Writes bytes that are no frame of the protocol, and never answers.
    Garbage,
    /// Waits until the gate is opened, then agrees.
    Wait(Arc<Semaphore>),
}

type Answers<I, O> = Mutex<Option<Arc<dyn Fn(&I) -> O + Send + Sync>>>;

/// What the point and the handlers share.
struct Shared {
    id: String,
    journal: Arc<Journal>,
    deeds: Mutex<BTreeMap<i32, Deed>>,
    addresses: Mutex<Vec<String>>,
    creates: Answers<CreateContainerRequest, CreateContainerResponse>,
    updates: Answers<UpdateContainerRequest, Vec<ContainerUpdate>>,
    stops: Answers<StopContainerRequest, Vec<ContainerUpdate>>,
    judges: Answers<ValidateContainerAdjustmentRequest, Result<(), String>>,
    judged: Mutex<Vec<ValidateContainerAdjustmentRequest>>,
    synchronises: Mutex<Option<Deed>>,
    told: watch::Sender<Option<(Vec<PodSandbox>, Vec<Container>)>>,
    shutdown: watch::Sender<Option<String>>,
    /// Events in a handler now, and the most there ever were: of all pods, whosever they are.
    active: AtomicUsize,
    most: AtomicUsize,
    /// A second handle to the connection, to misbehave below the protocol.
    raw: UnixStream,
}

/// What is wanted of a plugin.
pub struct Wanted {
    index: String,
    name: String,
    socket: std::path::PathBuf,
    journal: Arc<Journal>,
    events: EventMask,
    policy: Option<FailurePolicy>,
    protocol: Protocol,
    state_change_only: bool,
    synchronises: Option<Deed>,
    deeds: BTreeMap<i32, Deed>,
}

/// A connected plugin; dropping it disconnects it.
pub struct Plugin {
    shared: Arc<Shared>,
    stub: Stub,
}

impl Wanted {
    pub fn new(socket: &Path, index: &str, name: &str, journal: Arc<Journal>) -> Self {
        let all = EVENTS.iter().map(|(event, _)| *event);
        let all = all.filter(|event| *event != Event::ValidateContainerAdjustment);
        Self {
            index: index.to_owned(),
            name: name.to_owned(),
            socket: socket.to_owned(),
            journal,
            events: all.fold(EventMask::NONE, EventMask::with),
            policy: None,
            protocol: Protocol::V1Alpha1,
            state_change_only: false,
            synchronises: None,
            deeds: BTreeMap::new(),
        }
    }
    /// Index and name, as the runtime knows it.
    pub fn id(&self) -> String {
        format!("{}-{}", self.index, self.name)
    }
    /// Only these events; all but the validation if nothing is said.
    #[must_use]
    pub fn events(mut self, events: &[Event]) -> Self {
        self.events = events
            .iter()
            .copied()
            .fold(EventMask::NONE, EventMask::with);
        self
    }
    #[must_use]
    pub fn policy(mut self, fail_request: bool, keep_connected: bool) -> Self {
        self.policy = Some(FailurePolicy {
            fail_request,
            keep_connected,
        });
        self
    }
    #[must_use]
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }
    #[must_use]
    pub fn state_change_only(mut self) -> Self {
        self.state_change_only = true;
        self
    }
    /// As [`Plugin::does`], from before it connects.
    #[must_use]
    pub fn does_from_the_start(mut self, event: Event, deed: Deed) -> Self {
        self.deeds.insert(event as i32, deed);
        self
    }
    /// What it does at Synchronize instead of agreeing.
    #[must_use]
    pub fn at_synchronize(mut self, deed: Deed) -> Self {
        self.synchronises = Some(deed);
        self
    }

    /// Connects and registers, and waits until it is configured.
    ///
    /// # Errors
    /// The runtime's reason, one line.
    pub async fn try_start(self) -> Result<Plugin, String> {
        let raw = UnixStream::connect(&self.socket)
            .map_err(|e| format!("{}: {e}", self.socket.display()))?;
        let connection = raw.try_clone().map_err(|e| e.to_string())?;
        let shared = Arc::new(Shared {
            id: self.id(),
            journal: self.journal.clone(),
            deeds: Mutex::new(self.deeds.clone()),
            addresses: Mutex::default(),
            creates: Mutex::default(),
            updates: Mutex::default(),
            stops: Mutex::default(),
            judges: Mutex::default(),
            judged: Mutex::default(),
            synchronises: Mutex::new(self.synchronises.clone()),
            told: watch::channel(None).0,
            shutdown: watch::channel(None).0,
            active: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            raw,
        });
        let mut handlers = handlers(&shared, self.events);
        if let Some(policy) = self.policy {
            handlers = handlers.failure_policy(policy);
        }
        let mut builder = Stub::builder(handlers)
            .name(&self.name)
            .index(&self.index)
            .connection(connection)
            .protocol(self.protocol);
        if self.state_change_only {
            builder = builder.state_change_only();
        }
        let stub = builder.register().await.map_err(|e| e.to_string())?;
        Ok(Plugin { shared, stub })
    }

    /// As [`Wanted::try_start`], until it is synchronised.
    pub async fn join(self) -> Checked<Plugin> {
        let id = self.id();
        match self.try_start().await {
            Ok(plugin) => {
                plugin.synchronised().await?;
                Ok(plugin)
            }
            Err(why) => miss(format!("plugin {id} is registered and configured"), why),
        }
    }
}

impl Plugin {
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// What it was told by Synchronize.
    pub async fn synchronised(&self) -> Checked<(Vec<PodSandbox>, Vec<Container>)> {
        let mut told = self.shared.told.subscribe();
        let wait = told.wait_for(Option::is_some);
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(Ok(told)) => Ok(told.clone().unwrap_or_default()),
            _ => miss(
                format!("plugin {} gets Synchronize", self.id()),
                format!("nothing for {PATIENCE:?}"),
            ),
        }
    }

    /// Makes it misbehave at an event of its point's pods.
    pub fn does(&self, event: Event, deed: Deed) {
        lock(&self.shared.deeds).insert(event as i32, deed);
    }
    pub fn behaves(&self) {
        lock(&self.shared.deeds).clear();
    }
    /// Answers every RunPodSandbox with these addresses of the pod.
    pub fn gives(&self, ips: &[&str]) {
        *lock(&self.shared.addresses) = ips.iter().map(ToString::to_string).collect();
    }
    pub fn creates<F>(&self, answer: F)
    where
        F: Fn(&CreateContainerRequest) -> CreateContainerResponse + Send + Sync + 'static,
    {
        *lock(&self.shared.creates) = Some(Arc::new(answer));
    }
    /// Answers every CreateContainer with this adjustment.
    pub fn adjusts(&self, change: impl Fn(&mut ContainerAdjustment) + Send + Sync + 'static) {
        self.creates(move |_| {
            let mut adjust = ContainerAdjustment::default();
            change(&mut adjust);
            CreateContainerResponse {
                adjust: Some(adjust),
                ..Default::default()
            }
        });
    }
    pub fn updates<F>(&self, answer: F)
    where
        F: Fn(&UpdateContainerRequest) -> Vec<ContainerUpdate> + Send + Sync + 'static,
    {
        *lock(&self.shared.updates) = Some(Arc::new(answer));
    }
    pub fn stops<F>(&self, answer: F)
    where
        F: Fn(&StopContainerRequest) -> Vec<ContainerUpdate> + Send + Sync + 'static,
    {
        *lock(&self.shared.stops) = Some(Arc::new(answer));
    }
    /// Judges as a validator.
    pub fn judges<F>(&self, verdict: F)
    where
        F: Fn(&ValidateContainerAdjustmentRequest) -> Result<(), String> + Send + Sync + 'static,
    {
        *lock(&self.shared.judges) = Some(Arc::new(verdict));
    }
    /// What it was asked as a validator.
    pub fn judged(&self) -> Vec<ValidateContainerAdjustmentRequest> {
        lock(&self.shared.judged).clone()
    }

    /// Its events so far.
    pub fn seen(&self) -> Vec<Seen> {
        let mut all = self.shared.journal.all();
        all.retain(|seen| seen.plugin == self.shared.id);
        all
    }
    /// Its events so far, one line each.
    pub fn lines(&self) -> Vec<String> {
        let seen = self.seen();
        let lines = seen.iter().map(|s| s.line(&self.shared.journal.prefix));
        lines.collect()
    }
    /// How often it got an event of a pod or a container, by the end of its line.
    pub fn count(&self, event: Event, of: &str) -> usize {
        let line = format!("{} {of}", event_name(event));
        self.lines().iter().filter(|l| **l == line).count()
    }
    /// Waits for an event of `pod` or `pod/container`; answers the first such.
    pub async fn sees(&self, event: Event, of: &str) -> Checked<Seen> {
        let line = format!("{} {of}", event_name(event));
        let what = format!("{} gets {line}", self.id());
        self.sees_where(&what, |prefix, seen| seen.line(prefix) == line)
            .await
    }
    /// Waits for an event that satisfies a condition.
    pub async fn sees_where(&self, what: &str, is: impl Fn(&str, &Seen) -> bool) -> Checked<Seen> {
        let journal = &self.shared.journal;
        let own = |seen: &Seen| seen.plugin == self.shared.id && is(&journal.prefix, seen);
        let mut all = journal.seen.subscribe();
        let wait = all.wait_for(|all| all.iter().any(own));
        if let Ok(Ok(all)) = tokio::time::timeout(PATIENCE, wait).await
            && let Some(seen) = all.iter().find(|seen| own(seen))
        {
            return Ok(seen.clone());
        }
        miss(
            what,
            format!("not within {PATIENCE:?}; it got: {}", listed(&self.lines())),
        )
    }

    /// Whether the runtime closes its connection within this time.
    pub async fn is_closed(&self, within: Duration) -> bool {
        tokio::time::timeout(within, self.stub.wait()).await.is_ok()
    }
    /// The reason with which the runtime has said goodbye, if it has; empty where the protocol has no place for one.
    pub fn was_shut_down(&self) -> Option<String> {
        self.shared.shutdown.borrow().clone()
    }
    /// The most events it ever had to answer at once.
    pub fn most_at_once(&self) -> usize {
        self.shared.most.load(Ordering::SeqCst)
    }
    /// Identity of the runtime.
    pub fn info(&self) -> &nri::stub::RuntimeInfo {
        self.stub.runtime_info()
    }
    /// To ask the runtime for updates and evictions.
    pub fn runtime(&self) -> nri::stub::Runtime {
        self.stub.runtime()
    }
}

/// Lines in one line.
pub fn listed(lines: &[String]) -> String {
    match lines {
        [] => "nothing".to_owned(),
        lines => lines.join(", "),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a handler in, until it is dropped.
struct Active<'a>(&'a Shared);

impl<'a> Active<'a> {
    fn new(shared: &'a Shared) -> Self {
        let now = shared.active.fetch_add(1, Ordering::SeqCst) + 1;
        shared.most.fetch_max(now, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    /// Notes an event of the point and does what was told for it.
    async fn pass(
        &self,
        event: Event,
        pod: &PodSandbox,
        container: Option<&Container>,
        resources: Option<LinuxResources>,
    ) -> nri::Result<()> {
        let _active = Active::new(self);
        if !pod.name.starts_with(&self.journal.prefix) {
            return Ok(());
        }
        let number = self.journal.note(Seen {
            number: 0,
            at: Instant::now(),
            plugin: self.id.clone(),
            event,
            pod: pod.clone(),
            container: container.cloned(),
            resources,
            answered: None,
        });
        let deed = lock(&self.deeds).get(&(event as i32)).cloned();
        self.act(deed).await?;
        self.journal.answered(number);
        Ok(())
    }

    async fn act(&self, deed: Option<Deed>) -> nri::Result<()> {
        let mut raw = &self.raw;
        match deed {
            None => return Ok(()),
            Some(Deed::Error(text)) => return Err(text.into()),
            Some(Deed::Wait(gate)) => {
                let _passed = gate.acquire().await;
                return Ok(());
            }
            Some(Deed::Die) => drop(self.raw.shutdown(Shutdown::Both)),
            Some(Deed::Garbage) => drop(raw.write_all(&[0xff; 64])),
            Some(Deed::Hang) => {}
        }
        std::future::pending().await
    }

    /// Whether a request is of a pod of this point.
    fn owns(&self, pod: &PodSandbox) -> bool {
        pod.name.starts_with(&self.journal.prefix)
    }
}

fn handlers(shared: &Arc<Shared>, events: EventMask) -> Handlers {
    let own = shared.clone();
    let mut handlers = Handlers::new().synchronize(move |pods, containers| {
        let own = own.clone();
        async move {
            own.told.send_replace(Some((pods, containers)));
            let deed = lock(&own.synchronises).clone();
            own.act(deed).await.map(|()| Vec::new())
        }
    });
    let own = shared.clone();
    handlers = handlers.shutdown(move |reason| {
        own.shutdown.send_replace(Some(reason));
        async {}
    });
    macro_rules! pod_event {
        ($event:ident, $method:ident) => {
            if events.has(Event::$event) {
                let own = shared.clone();
                handlers = handlers.$method(move |pod| {
                    let own = own.clone();
                    async move { own.pass(Event::$event, &pod, None, None).await }
                });
            }
        };
    }
    macro_rules! container_event {
        ($event:ident, $method:ident) => {
            if events.has(Event::$event) {
                let own = shared.clone();
                handlers = handlers.$method(move |pod, container| {
                    let own = own.clone();
                    async move { own.pass(Event::$event, &pod, Some(&container), None).await }
                });
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
    if events.has(Event::UpdatePodSandbox) {
        let own = shared.clone();
        handlers = handlers.update_pod_sandbox(move |pod, _, resources| {
            let own = own.clone();
            async move {
                own.pass(Event::UpdatePodSandbox, &pod, None, Some(resources))
                    .await
            }
        });
    }
    with_answers(handlers, shared, events)
}

/// The events whose answers carry something.
fn with_answers(mut handlers: Handlers, shared: &Arc<Shared>, events: EventMask) -> Handlers {
    if events.has(Event::RunPodSandbox) {
        let own = shared.clone();
        handlers = handlers.on(move |request: RunPodSandboxRequest| {
            let own = own.clone();
            async move {
                let pod = request.pod.unwrap_or_default();
                own.pass(Event::RunPodSandbox, &pod, None, None).await?;
                let ips = match own.owns(&pod) {
                    true => lock(&own.addresses).clone(),
                    false => Vec::new(),
                };
                let network = Some(PodSandboxNetwork { ips });
                Ok(RunPodSandboxResponse {
                    adjust: Some(PodSandboxAdjustment { network }),
                })
            }
        });
    }
    if events.has(Event::CreateContainer) {
        let own = shared.clone();
        handlers = handlers.on(move |request: CreateContainerRequest| {
            let own = own.clone();
            async move {
                let pod = request.pod.clone().unwrap_or_default();
                own.pass(
                    Event::CreateContainer,
                    &pod,
                    request.container.as_ref(),
                    None,
                )
                .await?;
                let answer = lock(&own.creates).clone().filter(|_| own.owns(&pod));
                Ok(answer.map_or_else(Default::default, |answer| answer(&request)))
            }
        });
    }
    if events.has(Event::UpdateContainer) {
        let own = shared.clone();
        handlers = handlers.on(move |request: UpdateContainerRequest| {
            let own = own.clone();
            async move {
                let pod = request.pod.clone().unwrap_or_default();
                let resources = request.linux_resources.clone();
                own.pass(
                    Event::UpdateContainer,
                    &pod,
                    request.container.as_ref(),
                    resources,
                )
                .await?;
                let answer = lock(&own.updates).clone().filter(|_| own.owns(&pod));
                Ok(UpdateContainerResponse {
                    update: answer.map_or_else(Vec::new, |answer| answer(&request)),
                    evict: Vec::new(),
                })
            }
        });
    }
    if events.has(Event::StopContainer) {
        let own = shared.clone();
        handlers = handlers.on(move |request: StopContainerRequest| {
            let own = own.clone();
            async move {
                let pod = request.pod.clone().unwrap_or_default();
                own.pass(Event::StopContainer, &pod, request.container.as_ref(), None)
                    .await?;
                let answer = lock(&own.stops).clone().filter(|_| own.owns(&pod));
                Ok(StopContainerResponse {
                    update: answer.map_or_else(Vec::new, |answer| answer(&request)),
                })
            }
        });
    }
    if events.has(Event::ValidateContainerAdjustment) {
        let own = shared.clone();
        handlers = handlers.validate_container_adjustment(move |request| {
            let own = own.clone();
            async move {
                let pod = request.pod.clone().unwrap_or_default();
                if own.owns(&pod) {
                    lock(&own.judged).push(request.clone());
                }
                own.pass(
                    Event::ValidateContainerAdjustment,
                    &pod,
                    request.container.as_ref(),
                    None,
                )
                .await?;
                let verdict = lock(&own.judges).clone().filter(|_| own.owns(&pod));
                verdict.map_or(Ok(()), |verdict| verdict(&request).map_err(Into::into))
            }
        });
    }
    handlers
}

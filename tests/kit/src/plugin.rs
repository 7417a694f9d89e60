//! A scripted plugin. It records the events of its own pods, and blocks, fails or misbehaves at
//! them as scripted. It accepts the events of other pods. It connects to the runtime's socket.

use std::{
    collections::BTreeMap,
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use nri::{
    EventMask,
    mask::{EVENTS, event_name},
    proto::*,
    stub::Stub,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    handlers::{Shared, handlers},
    journal::{Journal, Seen, listed},
    verdict::{Checked, miss, that},
};

pub use crate::handlers::Behavior;

/// The settings of a plugin.
pub struct Wanted {
    index: String,
    name: String,
    socket: std::path::PathBuf,
    journal: Arc<Journal>,
    events: EventMask,
    policy: Option<FailurePolicy>,
    state_change_only: bool,
    synchronises: Option<Behavior>,
    behaviors: BTreeMap<i32, Behavior>,
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
            state_change_only: false,
            synchronises: None,
            behaviors: BTreeMap::new(),
        }
    }
    /// Index and name, as the runtime knows it.
    pub fn id(&self) -> String {
        format!("{}-{}", self.index, self.name)
    }
    /// Subscribes to these events only; the default is all but the validation.
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
    pub fn state_change_only(mut self) -> Self {
        self.state_change_only = true;
        self
    }
    /// As [`Plugin::does`], from before it connects.
    #[must_use]
    pub fn does_from_the_start(mut self, event: Event, behavior: Behavior) -> Self {
        self.behaviors.insert(event as i32, behavior);
        self
    }
    /// Sets its behavior at Synchronize.
    #[must_use]
    pub fn at_synchronize(mut self, behavior: Behavior) -> Self {
        self.synchronises = Some(behavior);
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
            behaviors: Mutex::new(self.behaviors.clone()),
            addresses: Mutex::default(),
            creates: Mutex::default(),
            updates: Mutex::default(),
            stops: Mutex::default(),
            validates: Mutex::default(),
            checked: Mutex::default(),
            synchronises: Mutex::new(self.synchronises.clone()),
            reported: watch::channel(None).0,
            was_shut_down: AtomicBool::new(false),
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
            .connection(connection);
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

    /// The pods and containers in its Synchronize.
    pub async fn synchronised(&self) -> Checked<(Vec<PodSandbox>, Vec<Container>)> {
        let mut reported = self.shared.reported.subscribe();
        let wait = reported.wait_for(Option::is_some);
        let patience = self.shared.journal.patience;
        match tokio::time::timeout(patience, wait).await {
            Ok(Ok(reported)) => Ok(reported.clone().unwrap_or_default()),
            _ => miss(
                format!("plugin {} gets Synchronize", self.id()),
                format!("nothing for {patience:?}"),
            ),
        }
    }

    /// Makes it misbehave at an event of its own pods.
    pub fn does(&self, event: Event, behavior: Behavior) {
        self.shared.behaviors.lock().insert(event as i32, behavior);
    }
    pub fn behaves(&self) {
        self.shared.behaviors.lock().clear();
    }
    /// Answers every RunPodSandbox with these addresses of the pod.
    pub fn gives(&self, ips: &[&str]) {
        *self.shared.addresses.lock() = ips.iter().map(ToString::to_string).collect();
    }
    pub fn creates<F>(&self, answer: F)
    where
        F: Fn(&CreateContainerRequest) -> CreateContainerResponse + Send + Sync + 'static,
    {
        *self.shared.creates.lock() = Some(Arc::new(answer));
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
        *self.shared.updates.lock() = Some(Arc::new(answer));
    }
    pub fn stops<F>(&self, answer: F)
    where
        F: Fn(&StopContainerRequest) -> Vec<ContainerUpdate> + Send + Sync + 'static,
    {
        *self.shared.stops.lock() = Some(Arc::new(answer));
    }
    /// Answers as a validator with this verdict.
    pub fn validates<F>(&self, verdict: F)
    where
        F: Fn(&ValidateContainerAdjustmentRequest) -> Result<(), String> + Send + Sync + 'static,
    {
        *self.shared.validates.lock() = Some(Arc::new(verdict));
    }
    /// The requests that it got as a validator.
    pub fn checked(&self) -> Vec<ValidateContainerAdjustmentRequest> {
        self.shared.checked.lock().clone()
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
    /// Checks that its events so far are exactly these.
    pub fn was_notified(&self, expected: &[&str]) -> Checked {
        let lines = self.lines();
        that(lines == expected, expected.join(", "), listed(&lines))
    }
    /// Counts the events with this line.
    pub fn count(&self, event: Event, of: &str) -> usize {
        let line = format!("{} {of}", event_name(event));
        self.lines().iter().filter(|l| **l == line).count()
    }
    /// Waits for an event of `pod` or `pod/container`, and returns the first.
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
        if let Ok(Ok(all)) = tokio::time::timeout(journal.patience, wait).await
            && let Some(seen) = all.iter().find(|seen| own(seen))
        {
            return Ok(seen.clone());
        }
        miss(
            what,
            format!(
                "not within {:?}; it got: {}",
                journal.patience,
                listed(&self.lines())
            ),
        )
    }

    /// Whether the runtime closes its connection within this time.
    pub async fn is_closed(&self, within: Duration) -> bool {
        tokio::time::timeout(within, self.stub.wait()).await.is_ok()
    }
    /// Whether the runtime has sent Shutdown.
    pub fn was_shut_down(&self) -> bool {
        self.shared.was_shut_down.load(Ordering::SeqCst)
    }
    /// The largest number of events that waited for its answer at one time.
    pub fn most_at_once(&self) -> usize {
        self.shared.most.load(Ordering::SeqCst)
    }
    /// Identity of the runtime.
    pub fn info(&self) -> &nri::stub::RuntimeInfo {
        self.stub.runtime_info()
    }
    /// The handle for requests of updates and evictions.
    pub fn runtime(&self) -> nri::stub::Runtime {
        self.stub.runtime()
    }
}

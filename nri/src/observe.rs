//! What an observer is told, and what a list of plugins has: outcomes, connects and disconnects.
//!
//! Everything here is a name, an id, a number or an error text; no environment value, annotation or
//! message body ever reaches it.

use std::time::Duration;

use proto_nri::Event;

use crate::{
    mask::EventMask,
    owners::PluginId,
    policy::{OnTimeout, Outcome},
    shorten::LeftOut,
    wire::version::Version,
};

/// One event at one plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    pub event: Event,
    pub plugin: PluginId,
    /// Id of the pod.
    pub pod: String,
    /// Id of the container; empty for events of pods.
    pub container: String,
    pub outcome: Outcome,
    /// From the moment it was the plugin's turn until its answer was there.
    pub took: Duration,
    /// The answer carried an adjustment.
    pub adjusted: bool,
    /// Paths of what it set in a container that is being created, such as `env["DEMO"]`; never a value.
    pub changed: Vec<String>,
    /// Updates of containers in the answer.
    pub updates: usize,
    /// Evictions in the answer.
    pub evictions: usize,
    /// What the request lacked, because it would have been too long.
    pub left_out: Vec<LeftOut>,
}

impl Delivery {
    /// A part of Synchronize, which is no event, for the counts.
    pub(crate) fn of_sync(plugin: &PluginId) -> Self {
        Self {
            event: Event::Unknown,
            plugin: plugin.clone(),
            pod: String::new(),
            container: String::new(),
            outcome: Outcome::Answered,
            took: Duration::ZERO,
            adjusted: false,
            changed: Vec::new(),
            updates: 0,
            evictions: 0,
            left_out: Vec::new(),
        }
    }
}

/// A step in the life of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PluginEvent {
    /// Started from the plugin directory.
    Launched,
    /// It said who it is.
    Registered {
        version: Version,
        nri_version: String,
    },
    /// It said what it wants.
    Configured { events: EventMask },
    /// It knows what there is, and gets events from now on.
    Synchronized {
        pods: usize,
        containers: usize,
        took: Duration,
    },
    /// The list that it was sent lacked fields of a pod or container, which would have been too long.
    Shortened { left_out: LeftOut },
    /// It takes this event as a `StateChange` only (NRI-334); once per plugin and event.
    Deprecated { event: Event },
    /// It sent updates of its own accord.
    Unsolicited {
        updates: usize,
        failed: usize,
        evictions: usize,
    },
    /// An update or an eviction among those could not be had.
    WishFailed { container: String, why: String },
    /// It was refused, or failed before its events began.
    Rejected { reason: String },
    /// A newer instance of its index and name gets its events from now on.
    Shadowed,
    /// It gets no more events.
    Closed { reason: String },
    /// It will be started again (`restart = "on-failure"`).
    Restarting { after: Duration },
    /// An event it missed was given up: too old, or too many.
    Dropped { event: Event },
}

/// Receiver of events. Called on the dispatching task: return quickly, never block.
pub trait Observer: Send + Sync {
    /// A plugin was called, in whatever way it went: each event by the name of its call, and each part of
    /// `Synchronize`, whose event is `Unknown` and which has no pod. A second attempt as `StateChange` is the same
    /// call. For counts of one's own; [`Adaptation::metrics`](crate::Adaptation::metrics) has ours.
    fn called(&self, operation: &str, call: &Delivery) {
        let _ = (operation, call);
    }

    /// So many plugins get events now.
    fn active(&self, plugins: usize) {
        let _ = plugins;
    }

    /// An event was delivered to a plugin, or was not.
    fn delivered(&self, delivery: &Delivery) {
        let _ = delivery;
    }

    /// Something happened to a plugin. `plugin` is `??-plugin` while it is not known (NRI-214).
    fn plugin(&self, plugin: &PluginName<'_>, event: &PluginEvent) {
        let _ = (plugin, event);
    }
}

/// Identity of a plugin, as far as it is known.
#[derive(Debug, Clone, Copy)]
pub struct PluginName<'a> {
    pub id: Option<&'a PluginId>,
    pub kind: Kind,
    pub pid: Option<u32>,
}

impl PluginName<'_> {
    /// Of a plugin that has not said its name.
    pub(crate) fn unknown(kind: Kind) -> Self {
        let (id, pid) = (None, None);
        Self { id, kind, pid }
    }
}

impl std::fmt::Display for PluginName<'_> {
    /// `external:10-foo[1234]` (NRI-214).
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.kind.as_str())?;
        match self.id {
            Some(id) => write!(f, "{id}")?,
            None => f.write_str("??-plugin")?,
        }
        match self.pid {
            Some(pid) => write!(f, "[{pid}]"),
            None => Ok(()),
        }
    }
}

/// Origin of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// An object of the runtime's own process.
    InProcess,
    /// Started by the runtime from the plugin directory.
    Launched,
    /// Connected to the socket by itself.
    External,
}

impl Kind {
    /// As logs have it (NRI-214).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProcess => "builtin",
            Self::Launched => "pre-connected",
            Self::External => "external",
        }
    }
}

/// State of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PluginState {
    /// It is being told what there is.
    Joining,
    /// It gets events.
    Active,
    /// A newer instance of its index and name is called instead, until either goes.
    Shadowed,
    /// An answer is overdue; it gets no event until that came (`on_timeout = "skip"`).
    Overdue,
    /// Required or must-run, and not there.
    Absent,
    /// It was there, and was closed for the reason in `last_error`; one of the last few.
    Gone,
}

/// One plugin as [`Adaptation::plugins`](crate::Adaptation::plugins) reports it.
#[derive(Debug, Clone)]
pub struct PluginInfo {
    pub id: PluginId,
    pub state: PluginState,
    /// How long it has been so; for one that was never there, since the start.
    pub since: Duration,
    /// `None` while it is absent, like the next two; of one that has gone, what it was.
    pub kind: Option<Kind>,
    pub pid: Option<u32>,
    pub version: Option<Version>,
    /// It takes plain events as `StateChange`.
    pub old_style: bool,
    pub events: EventMask,
    pub required: bool,
    pub must_run: bool,
    /// What is in force: the runtime's setting, or else the plugin's own wish.
    pub on_timeout: OnTimeout,
    /// Its failure to answer fails the operation.
    pub fail_request: bool,
    /// Events it was called for since it connected.
    pub calls: u64,
    /// Calls that failed, in whatever way, and updates and evictions that it asked for and that could not be had.
    pub errors: u64,
    /// Over its last 256 calls.
    pub p50: Duration,
    pub p99: Duration,
    /// Stop and Remove events kept for it.
    pub backlog: usize,
    pub last_error: Option<String>,
    /// How long ago that was; zero where there was none.
    pub last_error_age: Duration,
}

//! The input of observers, and the entries of the list of plugins: outcomes, connections and
//! disconnections.
//!
//! None contains an environment value.

use std::time::Duration;

use proto_nri::{ContainerAdjustment, Event};
use serde::{Deserialize, Serialize};

use crate::{
    json::{event, nanoseconds},
    mask::EventMask,
    plugin_id::PluginId,
    policy::{OnTimeout, Outcome},
    shorten::LeftOut,
    source::{FailedUpdate, Requester},
};

/// One event at one plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    pub event: Event,
    pub plugin: PluginId,
    /// Id of the pod.
    pub pod: String,
    /// Id of the container; empty for events of pods.
    pub container: String,
    pub outcome: Outcome,
    /// From the plugin's turn until its answer.
    pub took: Duration,
    /// The answer carried an adjustment.
    pub adjusted: bool,
    /// Paths it set in a container being created, such as `env["DEMO"]`; never a value.
    pub changed: Vec<String>,
    /// The values at these paths, in the adjustment of all plugins so far. It contains no
    /// environment, also none of hooks. `None` without an observer.
    pub adjustment: Option<Box<ContainerAdjustment>>,
    /// Updates of containers in the answer.
    pub updates: usize,
    /// Evictions in the answer.
    pub evictions: usize,
    /// Fields missing from the request because it would have been too long.
    pub left_out: Vec<LeftOut>,
}

impl Delivery {
    /// A part of Synchronize, which is not an event, for the counts.
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
            adjustment: None,
            updates: 0,
            evictions: 0,
            left_out: Vec::new(),
        }
    }
}

/// A step in the life of a plugin. Event logs of runtimes have its JSON form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "life", rename_all = "snake_case")]
pub enum PluginEvent {
    /// Started from the plugin directory.
    Launched,
    /// It registered its identity.
    Registered {
        #[serde(default)]
        nri_version: String,
    },
    /// It answered its subscription.
    Configured { events: EventMask },
    /// It has received the existing objects, and gets events from now on.
    Synchronized {
        pods: usize,
        containers: usize,
        #[serde(rename = "took_ns", with = "nanoseconds")]
        took: Duration,
    },
    /// Its list lacked fields of a pod or container that would have been too long.
    Shortened { left_out: LeftOut },
    /// It takes this event as a `StateChange` only (NRI-334); once per plugin and event.
    Deprecated {
        #[serde(rename = "hook", with = "event")]
        event: Event,
    },
    /// It sent updates on its own initiative.
    Unsolicited {
        updates: usize,
        failed: usize,
        evictions: usize,
    },
    /// An eviction that it requested by itself failed. For updates see
    /// [`Observer::update_rejected`].
    RequestFailed {
        #[serde(rename = "target")]
        container: String,
        why: String,
    },
    /// It was refused, or failed before its events began.
    Rejected { reason: String },
    /// A newer instance of its index and name gets its events from now on.
    Shadowed,
    /// It gets no further events.
    Closed { reason: String },
    /// It will be started again (`restart = "on-failure"`).
    Restarting {
        #[serde(rename = "after_ns", with = "nanoseconds")]
        after: Duration,
    },
    /// An event it missed was given up: too old, or too many.
    Dropped {
        #[serde(rename = "hook", with = "event")]
        event: Event,
    },
}

/// Receiver of events. Called on the dispatching task: return quickly, never block.
pub trait Observer: Send + Sync {
    /// A plugin was called, with any outcome: each event by the name of its call, and each part of
    /// `Synchronize`, with the event `Unknown` and no pod. A second attempt as `StateChange` is the
    /// same call. For custom counts; [`Adaptation::metrics`](crate::Adaptation::metrics) has ours.
    fn called(&self, operation: &str, call: &Delivery) {
        let _ = (operation, call);
    }

    /// This number of plugins gets events now.
    fn active(&self, plugins: usize) {
        let _ = plugins;
    }

    /// An event was delivered to a plugin, or was not.
    fn delivered(&self, delivery: &Delivery) {
        let _ = delivery;
    }

    /// An update outside of the answers to events was not passed to
    /// [`Source::update`](crate::Source::update): the plugin may not make it, the container is
    /// being created, or earlier updates used up the time of Synchronize.
    fn update_rejected(&self, by: &Requester, failed: &FailedUpdate) {
        let _ = (by, failed);
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
    /// The name of a plugin that has not registered.
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
    /// As in logs (NRI-214).
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
    /// It is being synchronised.
    Joining,
    /// It gets events.
    Active,
    /// A newer instance of its index and name is called instead, until either ends.
    Shadowed,
    /// An answer is overdue; it gets no event until that arrives (`on_timeout = "skip"`).
    Overdue,
    /// Required or must-run, and absent.
    Absent,
    /// One of the last closed plugins; `last_error` has the reason.
    Ended,
}

/// One plugin as [`Adaptation::plugins`](crate::Adaptation::plugins) reports it.
#[derive(Debug, Clone)]
pub struct PluginInfo {
    pub id: PluginId,
    pub state: PluginState,
    /// Time in this state; for one that never connected, since the start.
    pub since: Duration,
    /// `None` while it is absent, like the next two; a closed plugin keeps its values.
    pub kind: Option<Kind>,
    pub pid: Option<u32>,
    /// It takes plain events as `StateChange`.
    pub old_style: bool,
    pub events: EventMask,
    pub required: bool,
    pub must_run: bool,
    /// The setting in force: the runtime's, or else the plugin's own.
    pub on_timeout: OnTimeout,
    /// Its failure to answer fails the operation.
    pub fail_request: bool,
    /// Events for which it was called since it connected.
    pub calls: u64,
    /// Failed calls of any kind, and updates and evictions that it requested and that failed.
    pub errors: u64,
    /// Over its last 256 calls.
    pub p50: Duration,
    pub p99: Duration,
    /// Stop and Remove events kept for it.
    pub backlog: usize,
    pub last_error: Option<String>,
    /// Time since that error; zero if there was none.
    pub last_error_age: Duration,
}

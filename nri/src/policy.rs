//! Failure policy: effects of one plugin's outcome on the operation and on the plugin
//! (NRI-410…415).
//!
//! ```text
//!  outcome ×          setup          teardown       notification    validation
//!  Answered           proceed        proceed        proceed         proceed
//!  NotSubscribed      proceed        proceed        proceed         proceed
//!  Refused, Conflict, ABORT          proceed, log   proceed, log    ABORT
//!    Invalid, Denied
//!  Unsent             ABORT          proceed (2)    proceed, log    ABORT
//!  TimedOut           proceed (1,3)  proceed (2,3)  proceed (3)     ABORT        + close or count
//!  Lost, Garbled      proceed (1,3)  proceed (2,3)  proceed (3)     ABORT        + close
//!  Skipped            proceed (1,3)  proceed (2,3)  proceed (3)     ABORT        + count
//!  Absent, Joining    proceed (1)    proceed (2)    proceed         proceed (1)
//!  Cancelled          ABORT          proceed        proceed         ABORT        never its fault
//!
//!  (1) a required plugin: ABORT, for RunPodSandbox, CreateContainer and validation (NRI-412)
//!  (2) a must-run plugin: the event is kept (`backlog.rs`)
//!  (3) a plugin with `fail_request`: ABORT at setup; elsewhere every plugin is notified,
//!      nothing stops, and the failure is the call's final result
//! ```
//!
//! A plugin requests `fail_request` and its treatment when late (`failure_policy` of its
//! ConfigureResponse); the runtime's settings override them.
//!
//! Pure: no I/O, no clock. The dispatcher counts consecutive misses and applies the verdict. One
//! file, because the rules belong to the table.

use std::time::Duration;

use proto_nri::{Event, FailurePolicy};
use serde::{Deserialize, Serialize};

pub use crate::closing::CloseReason;

use crate::{
    mask::{EventMask, FieldMask, event_name},
    plugin_id::PluginId,
    wire::rpc::Status,
};

/// Class of an event (CONTRACT.md, first table).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// A plugin may veto it.
    Setup,
    /// Every plugin is notified, none can stop it.
    Teardown,
    /// Post events: notifications only.
    Notification,
    /// ValidateContainerAdjustment.
    Validation,
}

impl Class {
    /// The class of an event. `Unknown` and `Last` are never sent and count as notifications.
    pub fn of(event: Event) -> Self {
        match event {
            Event::RunPodSandbox
            | Event::UpdatePodSandbox
            | Event::CreateContainer
            | Event::StartContainer
            | Event::UpdateContainer => Self::Setup,
            Event::StopPodSandbox
            | Event::RemovePodSandbox
            | Event::StopContainer
            | Event::RemoveContainer => Self::Teardown,
            Event::ValidateContainerAdjustment => Self::Validation,
            Event::PostCreateContainer
            | Event::PostStartContainer
            | Event::PostUpdateContainer
            | Event::PostUpdatePodSandbox
            | Event::Unknown
            | Event::Last => Self::Notification,
        }
    }
}

/// Outcome of one plugin at one event. Event logs of runtimes have its JSON form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", content = "reason", rename_all = "snake_case")]
pub enum Outcome {
    /// It answered OK.
    Answered,
    /// It answered with this error status.
    Refused(Status),
    /// The request could not be sent, for this reason: it is too long.
    Unsent(String),
    /// A local deadline, or a status DEADLINE_EXCEEDED from the plugin (NRI-137).
    TimedOut,
    /// The connection was lost, or ttrpc was violated.
    Lost(String),
    /// The reply does not parse.
    Garbled(String),
    /// The answer sets a field that another answer, or itself, has set already.
    Conflict(String),
    /// The answer breaks another rule of merging: an entry without a key, an update of the
    /// container being created.
    Invalid(String),
    /// The answer sets a field without permission.
    Denied(String),
    /// It was not called: the answer to an earlier event is overdue (`on_timeout = "skip"`).
    Skipped,
    /// It is not subscribed to this event.
    NotSubscribed,
    /// Still not synchronised at the end of the wait for it.
    Joining,
    /// Not connected. Only for plugins that the configuration names.
    Absent,
    /// The caller's own cancellation or deadline ended the call (NRI-137).
    Cancelled,
}

/// Treatment of a plugin that does not answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnTimeout {
    /// It is closed at once, as Go does (NRI-411).
    #[default]
    Close,
    /// It gets no event until its late answer arrives; `breaker` misses in a row close it.
    Skip,
    /// It still gets the next event, and delays each by its complete limit if it hangs
    /// (`keep_connected` of a plugin's failure policy).
    Keep,
}

impl OnTimeout {
    /// As in configurations.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Close => "close",
            Self::Skip => "skip",
            Self::Keep => "keep",
        }
    }
}

/// Policy for one plugin. The default is Go's behaviour and the plugin's own requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginPolicy {
    /// Pods and containers are not created without its answer.
    pub required: bool,
    /// Stop and Remove events it has not acknowledged are kept and sent again.
    pub must_run: bool,
    /// `None`: the plugin's own request, else `Close`.
    pub on_timeout: Option<OnTimeout>,
    /// Misses in a row that close it; 0 disables this. `None`: 3 with `Skip`, 0 with `Keep`.
    pub breaker: Option<u32>,
    /// A time-out, a lost connection or garbage fails the operation, like its own error. `None`:
    /// the plugin's own request, else false.
    pub fail_request: Option<bool>,
    /// `None`: that of the runtime (2 s).
    pub request_timeout: Option<Duration>,
    /// For one chunk of Synchronize. `None`: that of the runtime (10 s).
    pub sync_timeout: Option<Duration>,
    /// Events it can get, of those it subscribes to.
    pub events: EventMask,
    /// Fields it may adjust or update. The operation fails at another, and names it.
    pub fields: FieldMask,
}

impl Default for PluginPolicy {
    fn default() -> Self {
        Self {
            required: false,
            must_run: false,
            on_timeout: None,
            breaker: None,
            fail_request: None,
            request_timeout: None,
            sync_timeout: None,
            events: EventMask::ALL,
            fields: FieldMask::ALL,
        }
    }
}

impl PluginPolicy {
    /// Adds the plugin's own failure policy, where the runtime's settings are empty.
    pub(crate) fn declared(self, requested: Option<&FailurePolicy>) -> Self {
        let Some(requested) = requested else {
            return self;
        };
        let keep = requested.keep_connected.then_some(OnTimeout::Keep);
        Self {
            on_timeout: self.on_timeout.or(keep),
            fail_request: self.fail_request.or(Some(requested.fail_request)),
            ..self
        }
    }

    /// Returns the events if they suffice: a required plugin must get at least one of those that
    /// need it, or it would let everything through.
    ///
    /// # Errors
    /// The events that need it.
    pub fn check_events(&self, events: EventMask) -> Result<EventMask, String> {
        if !self.required || events.iter().any(needs_required) {
            return Ok(events);
        }
        let needed = EventMask::ALL.iter().filter(|event| needs_required(*event));
        let needed: Vec<_> = needed.map(event_name).collect();
        Err(format!(
            "a required plugin must get one of {}",
            needed.join(", ")
        ))
    }

    /// Its treatment when it is late.
    pub fn on_timeout(&self) -> OnTimeout {
        self.on_timeout.unwrap_or_default()
    }

    /// Whether its failure to answer fails the operation.
    pub fn fails_request(&self) -> bool {
        self.fail_request.unwrap_or(false)
    }

    /// Misses in a row that close it; 0 for never.
    fn breaker(&self) -> u32 {
        match self.on_timeout() {
            OnTimeout::Close => 1,
            OnTimeout::Skip => self.breaker.unwrap_or(3),
            OnTimeout::Keep => self.breaker.unwrap_or(0),
        }
    }
}

/// Whether the operation continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flow {
    Proceed,
    /// It fails with this text, which names the plugin and the event (NRI-415).
    Abort(String),
}

/// Consequences of one outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub flow: Flow,
    /// The operation continues and finally returns this error.
    pub failed: Option<String>,
    /// The plugin is closed and gets no further events.
    pub close: Option<CloseReason>,
    /// The event is kept for this plugin until it is acknowledged.
    pub journal: bool,
    /// Misses in a row after this event; the dispatcher passes it to the next.
    pub misses: u32,
    /// One line for the log, also if the operation continues.
    pub log: Option<String>,
}

/// One plugin at one event.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    pub plugin: &'a PluginId,
    pub event: Event,
    pub policy: &'a PluginPolicy,
    /// Misses in a row before this event.
    pub misses: u32,
    /// The pod has the annotation that exempts it from required plugins.
    pub exempt: bool,
}

/// Decides by the table in the module header.
pub fn decide(case: Case<'_>, outcome: &Outcome) -> Verdict {
    let log = trouble(case.plugin, case.event, outcome);
    let misses = match outcome {
        Outcome::TimedOut | Outcome::Skipped => case.misses.saturating_add(1),
        Outcome::NotSubscribed
        | Outcome::Cancelled
        | Outcome::Joining
        | Outcome::Absent
        | Outcome::Unsent(_) => case.misses,
        _ => 0,
    };
    let (flow, failed) = match &log {
        Some(reason) if aborts(case, outcome) => (Flow::Abort(reason.clone()), None),
        Some(reason) if case.policy.fails_request() && is_failure(outcome) => {
            (Flow::Proceed, Some(reason.clone()))
        }
        _ => (Flow::Proceed, None),
    };
    Verdict {
        flow,
        failed,
        close: close(case.policy, outcome, misses),
        journal: case.policy.must_run
            && Class::of(case.event) == Class::Teardown
            && unacknowledged(outcome),
        misses,
        log,
    }
}

/// Treatment of an answer after its deadline, from a plugin that was not closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Late {
    /// Drop it; the plugin gets events again.
    Drop,
    /// Drop it, and send this plugin StopContainer and RemoveContainer: it knows a container whose
    /// adjustments were never applied.
    Undo,
}

/// Decides on a late answer to `event`; `ok` if it carries no error status.
pub fn late(event: Event, ok: bool) -> Late {
    match event {
        Event::CreateContainer if ok => Late::Undo,
        _ => Late::Drop,
    }
}

/// Whether the operation needs a required plugin's answer to this event.
pub fn needs_required(event: Event) -> bool {
    matches!(
        event,
        Event::RunPodSandbox | Event::CreateContainer | Event::ValidateContainerAdjustment
    )
}

/// Whether this is the first event of a pod or container. It is rejected if later events could not
/// be sent.
pub fn makes_object(event: Event) -> bool {
    matches!(event, Event::RunPodSandbox | Event::CreateContainer)
}

/// Whether a message of this event is shortened if it is too long: plugins cannot reject the event,
/// and all must be notified.
pub fn is_shortened(event: Event) -> bool {
    matches!(Class::of(event), Class::Teardown | Class::Notification)
}

fn trouble(plugin: &PluginId, event: Event, outcome: &Outcome) -> Option<String> {
    let event = event_name(event);
    Some(match outcome {
        Outcome::Answered | Outcome::NotSubscribed => return None,
        Outcome::Refused(why) => format!("plugin {plugin} refused {event}: {why}"),
        Outcome::Unsent(why) => format!("{event} could not be sent to plugin {plugin}: {why}"),
        // The words of Go's adaptation.
        Outcome::TimedOut => format!("plugin {plugin} failed to handle {event} request: timed out"),
        Outcome::Lost(why) => {
            format!("plugin {plugin} failed to handle {event} request: connection lost: {why}")
        }
        Outcome::Garbled(why) => {
            format!("plugin {plugin} failed to handle {event} request: malformed reply: {why}")
        }
        Outcome::Conflict(why) | Outcome::Invalid(why) | Outcome::Denied(why) => {
            format!("invalid answer of plugin {plugin} to {event}: {why}")
        }
        Outcome::Skipped => {
            format!("plugin {plugin} did not get {event}: its previous answer is still outstanding")
        }
        Outcome::Joining => format!("plugin {plugin} was not yet synchronised at {event}"),
        Outcome::Absent => format!("plugin {plugin} was not connected at {event}"),
        Outcome::Cancelled => format!("{event} was cancelled while plugin {plugin} handled it"),
    })
}

fn aborts(case: Case<'_>, outcome: &Outcome) -> bool {
    let class = Class::of(case.event);
    let missed = || case.policy.required && !case.exempt && needs_required(case.event);
    match outcome {
        Outcome::Answered | Outcome::NotSubscribed => false,
        Outcome::Refused(_)
        | Outcome::Unsent(_)
        | Outcome::Conflict(_)
        | Outcome::Invalid(_)
        | Outcome::Denied(_)
        | Outcome::Cancelled => {
            matches!(class, Class::Setup | Class::Validation)
        }
        Outcome::Joining | Outcome::Absent => missed(),
        Outcome::TimedOut | Outcome::Lost(_) | Outcome::Garbled(_) | Outcome::Skipped => {
            class == Class::Validation
                || missed()
                || (class == Class::Setup && case.policy.fails_request())
        }
    }
}

/// It was called, and gave no answer of its own.
fn is_failure(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::TimedOut | Outcome::Lost(_) | Outcome::Garbled(_) | Outcome::Skipped
    )
}

fn close(policy: &PluginPolicy, outcome: &Outcome, misses: u32) -> Option<CloseReason> {
    match outcome {
        Outcome::Lost(_) => Some(CloseReason::ConnectionLost),
        Outcome::Garbled(_) => Some(CloseReason::ProtocolError),
        Outcome::TimedOut | Outcome::Skipped => {
            let breaker = policy.breaker();
            let due = breaker != 0 && misses >= breaker;
            due.then_some(CloseReason::RequestTimeout)
        }
        _ => None,
    }
}

/// A rejection is an acknowledgement too: the plugin received the event.
fn unacknowledged(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::TimedOut
        | Outcome::Lost(_)
        | Outcome::Garbled(_)
        | Outcome::Unsent(_)
        | Outcome::Skipped
        | Outcome::Joining
        | Outcome::Absent
        | Outcome::Cancelled => true,
        Outcome::Answered
        | Outcome::Refused(_)
        | Outcome::Conflict(_)
        | Outcome::Invalid(_)
        | Outcome::Denied(_)
        | Outcome::NotSubscribed => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_plugin_declares_counts_where_the_settings_say_nothing() {
        let requested = |keep_connected, fail_request| FailurePolicy {
            keep_connected,
            fail_request,
        };
        let notified = |policy: PluginPolicy, requested: Option<&FailurePolicy>| {
            let policy = policy.declared(requested);
            (policy.on_timeout(), policy.fails_request())
        };
        let silent = PluginPolicy::default;
        assert_eq!(notified(silent(), None), (OnTimeout::Close, false));
        assert_eq!(
            notified(silent(), Some(&requested(false, false))),
            (OnTimeout::Close, false)
        );
        assert_eq!(
            notified(silent(), Some(&requested(true, false))),
            (OnTimeout::Keep, false)
        );
        assert_eq!(
            notified(silent(), Some(&requested(false, true))),
            (OnTimeout::Close, true)
        );
        let set = PluginPolicy {
            on_timeout: Some(OnTimeout::Skip),
            fail_request: Some(false),
            ..silent()
        };
        assert_eq!(
            notified(set, Some(&requested(true, true))),
            (OnTimeout::Skip, false)
        );
        let names = [OnTimeout::Close, OnTimeout::Skip, OnTimeout::Keep].map(OnTimeout::as_str);
        assert_eq!(names, ["close", "skip", "keep"]);
    }
}

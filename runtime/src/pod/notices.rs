//! Reports about pods and containers to NRI plugins, to subscribers of container events, and to the
//! event log. Steps call [`Notices::became`] once the record has the change.

use std::sync::Arc;

use nri::{Handlers, PluginId};

use super::{
    event_log,
    events::{EventKind, Events},
    hooks::Hooks,
    node::Node,
    state::{Container, Pod},
};
use crate::trace::{Action, EventLog};

pub struct Notices {
    pub hooks: Hooks,
    pub events: Events,
    pub log: EventLog,
}

/// A change of a pod, or of one of its containers.
pub struct Change {
    action: Option<Action>,
    events: &'static [EventKind],
}

impl Change {
    /// The sandbox is no longer READY; the event log has the cause.
    pub const NOT_READY: Self = Self {
        action: None,
        events: &[EventKind::Stopped],
    };
    /// The creation failed and was not undone completely: the sandbox is listed, NOTREADY.
    pub const LEFT: Self = Self {
        action: None,
        events: &[EventKind::Created, EventKind::Stopped],
    };
}

impl From<Action> for Change {
    fn from(action: Action) -> Self {
        let events: &[EventKind] = match &action {
            Action::Ready => &[EventKind::Created, EventKind::Started],
            Action::ContainerMade => &[EventKind::Created],
            Action::Started => &[EventKind::Started],
            Action::Exited { .. } | Action::StartFailed { .. } => &[EventKind::Stopped],
            Action::Removed | Action::SandboxRemoved => &[EventKind::Deleted],
            _ => &[],
        };
        let action = Some(action);
        Self { action, events }
    }
}

impl Notices {
    pub fn new(node: &Arc<Node>, log: EventLog, in_process: Vec<(PluginId, Handlers)>) -> Self {
        Self {
            hooks: Hooks::new(Arc::clone(node), log.clone(), in_process),
            events: Events::default(),
            log,
        }
    }

    /// Records a change in the event log, and notifies the subscribers of container events.
    pub fn became(&self, pod: &Pod, container: Option<&Container>, change: impl Into<Change>) {
        let change = change.into();
        if let Some(action) = change.action {
            event_log::record(&self.log, pod, container, action);
        }
        for event in change.events {
            self.events.notify(pod, container, *event);
        }
    }
}

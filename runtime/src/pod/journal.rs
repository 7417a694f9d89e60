//! What the runtime did, for the event log: the steps of a pod's life between the contract
//! points, and the CRI calls around them.

use super::{Container, Pod};
use crate::trace::{EventLog, Subject, What};

pub use crate::trace::Step;

/// Where everything is written down.
pub struct Journal {
    log: EventLog,
}

impl Journal {
    pub fn new(log: EventLog) -> Self {
        Self { log }
    }

    pub fn log(&self) -> &EventLog {
        &self.log
    }

    /// Whom an event concerns.
    pub fn subject(pod: &Pod, container: Option<&Container>) -> Subject {
        let metadata = pod.cell.get().metadata();
        let subject = Subject::pod(&pod.id, &metadata.namespace, &metadata.name);
        match container {
            Some(container) => subject.container(&container.id, container.cell.get().name()),
            None => subject,
        }
    }

    pub fn step(&self, pod: &Pod, container: Option<&Container>, step: Step) {
        tracing::debug!(pod = %pod.id, container = container.map(|c| c.id.as_str()), ?step);
        self.record(Self::subject(pod, container), step);
    }

    pub fn record(&self, subject: Subject, what: impl Into<What>) {
        self.log.record(subject, what);
    }
}

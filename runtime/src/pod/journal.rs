//! What the runtime did, for the event log: the steps of a pod's life between the contract
//! points, and the CRI calls around them.

use std::time::Instant;

use super::{Container, Pod, error::Result};
use crate::trace::{EventLog, Subject, What};

pub use crate::trace::Step;

tokio::task_local! {
    /// The CRI call in whose course the task works.
    static CALL: &'static str;
}

/// Runs the work of a CRI call: its begin, its end, and everything in between bear its name.
pub async fn during<T>(
    call: &'static str,
    journal: &Journal,
    subject: Subject,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let begun = Instant::now();
    let subject = subject.during(call);
    journal.record(subject.clone(), What::CallBegun);
    let result = CALL.scope(call, work).await;
    journal.record(
        subject,
        What::CallEnded {
            took_ns: u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX),
            error: result.as_ref().err().map(|error| error.text.clone()),
        },
    );
    result
}

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
        let mut subject = Subject::pod(&pod.id, &metadata.namespace, &metadata.name);
        if let Ok(call) = CALL.try_with(|call| *call) {
            subject = subject.during(call);
        }
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

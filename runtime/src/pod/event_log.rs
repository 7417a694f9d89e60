//! The runtime's entries in the event log: CRI calls and the actions between contract points.

use std::time::Instant;

use super::{
    error::Result,
    state::{Container, Pod},
};
use crate::{
    clock::nanoseconds,
    trace::{Action, EventLog, Subject, What},
};

tokio::task_local! {
    /// The CRI call that the task serves.
    static CALL: &'static str;
}

/// Runs the work of a CRI call. Its begin, its end, and all events in between carry its name.
pub async fn during<T>(
    call: &'static str,
    log: &EventLog,
    subject: Subject,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let begun = Instant::now();
    let subject = subject.during(call);
    log.record(subject.clone(), What::CallBegun);
    let result = CALL.scope(call, work).await;
    log.record(
        subject,
        What::CallEnded {
            took_ns: nanoseconds(begun.elapsed()),
            error: result.as_ref().err().map(|error| error.text.clone()),
        },
    );
    result
}

/// The subject of an event.
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

/// Records an action on a pod or on one of its containers.
pub fn record(log: &EventLog, pod: &Pod, container: Option<&Container>, action: Action) {
    tracing::debug!(pod = %pod.id, container = container.map(|c| c.id.as_str()), ?action);
    log.record(subject(pod, container), action);
}

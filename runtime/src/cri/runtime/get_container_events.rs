//! GetContainerEvents (CRI-160): an endless stream. A subscriber that lags is cut off with
//! RESOURCE_EXHAUSTED and must list again.

use futures_util::{Stream, stream};
use proto_cri::v1 as cri;
use tokio::sync::broadcast::error::RecvError;

use crate::{
    cri::view,
    pod::{
        error::{Error, Kind, Result},
        events::{ContainerEvent, EventKind, Events},
    },
};

pub fn get_container_events(
    events: &Events,
) -> Result<impl Stream<Item = Result<cri::ContainerEventResponse>> + use<>> {
    let subscription = events.subscribe()?;
    Ok(stream::unfold(Some(subscription), |open| async move {
        let mut open = open?;
        match open.recv().await {
            Ok(event) => Some((Ok(translate(&event)), Some(open))),
            Err(RecvError::Lagged(missed)) => {
                let text = format!("container events: {missed} were not read in time");
                Some((Err(Error::new(Kind::Exhausted, text)), None))
            }
            Err(RecvError::Closed) => {
                let text = "container events: the daemon is ending";
                Some((Err(Error::new(Kind::Unavailable, text)), None))
            }
        }
    }))
}

fn translate(event: &ContainerEvent) -> cri::ContainerEventResponse {
    let kind = match event.kind {
        EventKind::Created => cri::ContainerEventType::ContainerCreatedEvent,
        EventKind::Started => cri::ContainerEventType::ContainerStartedEvent,
        EventKind::Stopped => cri::ContainerEventType::ContainerStoppedEvent,
        EventKind::Deleted => cri::ContainerEventType::ContainerDeletedEvent,
    };
    cri::ContainerEventResponse {
        container_id: event.id.clone(),
        container_event_type: kind.into(),
        created_at: event.at,
        pod_sandbox_status: Some(view::pod_status(&event.pod)),
        containers_statuses: event
            .containers
            .iter()
            .map(|record| view::container_status(record))
            .collect(),
    }
}

//! Changes of pods and containers, sent to subscribers (CRI-160). `notices.rs` calls
//! [`Events::notify`] right after the record changed; it never waits.
//!
//! ```text
//!  step ─► record changed ─► notify: snapshot, number, send ─► ring of QUEUE events ─► subscribers
//!                            (one at a time)                    └ one that falls behind by more
//!                                                                 than QUEUE is cut off
//! ```
//! | event | pod | container |
//! |---|---|---|
//! | Created, Started | READY | CREATED; RUNNING |
//! | Stopped | no longer READY | EXITED, also when its start failed |
//! | Deleted | removed | removed |
//!
//! An object leaves a phase once, so each event is sent at most once. Subscriptions begin after
//! recovery; List shows its results.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::broadcast;

use super::{
    error::{Error, Kind, Result},
    record::{ContainerRecord, PodRecord},
    state::{Container, Pod},
};
use crate::clock;

/// Events that a subscriber may be behind.
const QUEUE: usize = 1024;
/// Concurrent subscribers; a kubelet is one.
const MAX_SUBSCRIBERS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Created,
    Started,
    Stopped,
    Deleted,
}

/// One change, with the pod at that time. Shared between the subscribers.
#[derive(Debug)]
pub struct ContainerEvent {
    pub kind: EventKind,
    /// The container's id, or the pod's id for an event of the pod.
    pub id: String,
    /// Nanoseconds since the epoch; later than in all earlier events.
    pub at: i64,
    pub pod: Arc<PodRecord>,
    /// All of the pod's, oldest first; without the deleted one.
    pub containers: Vec<Arc<ContainerRecord>>,
}

/// Ends when it lags (its owner must call List), and when the daemon shuts down.
pub type Subscription = broadcast::Receiver<Arc<ContainerEvent>>;

/// The one sender; `None` when the daemon shuts down. The lock covers taking and sending a
/// snapshot, so that a later event never shows an older state. Both use memory only.
#[derive(Clone)]
pub struct Events(Arc<Mutex<Option<broadcast::Sender<Arc<ContainerEvent>>>>>);

impl Default for Events {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Some(broadcast::Sender::new(QUEUE)))))
    }
}

impl Events {
    /// Subscribes to all events from now on.
    ///
    /// # Errors
    /// Exhausted when there are too many subscribers, Unavailable when the daemon is shutting down.
    pub fn subscribe(&self) -> Result<Subscription> {
        let sender = self.0.lock();
        let Some(sender) = sender.as_ref() else {
            let text = "container events: the daemon is ending";
            return Err(Error::new(Kind::Unavailable, text));
        };
        if sender.receiver_count() >= MAX_SUBSCRIBERS {
            let text = format!("container events: {MAX_SUBSCRIBERS} subscribe already");
            return Err(Error::new(Kind::Exhausted, text));
        }
        Ok(sender.subscribe())
    }

    /// Notifies of a change to a container, or, without one, to the pod.
    pub fn notify(&self, pod: &Pod, container: Option<&Container>, kind: EventKind) {
        self.send(|| ContainerEvent {
            kind,
            id: container.map_or(&pod.id, |container| &container.id).clone(),
            at: clock::now_ns(),
            pod: pod.cell.get(),
            containers: pod.visible_containers(),
        });
    }

    /// Makes and sends an event if there is a subscriber.
    fn send(&self, event: impl FnOnce() -> ContainerEvent) {
        let sender = self.0.lock();
        if let Some(sender) = sender.as_ref().filter(|sender| sender.receiver_count() > 0) {
            // The last subscriber may have left just now.
            let _ = sender.send(Arc::new(event()));
        }
    }

    /// Ends every subscription after its owner has read the queued events.
    pub fn close(&self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use broadcast::error::RecvError;

    fn event(number: usize) -> ContainerEvent {
        ContainerEvent {
            kind: EventKind::Started,
            id: number.to_string(),
            at: 1,
            pod: Arc::default(),
            containers: Vec::new(),
        }
    }

    async fn id(subscription: &mut Subscription) -> String {
        subscription.recv().await.expect("an event").id.clone()
    }

    #[tokio::test]
    async fn every_subscriber_gets_what_happens_after_it_came() {
        let events = Events::default();
        events.send(|| panic!("made though nobody listens"));
        let mut one = events.subscribe().unwrap();
        events.send(|| event(1));
        let mut two = events.subscribe().unwrap();
        events.send(|| event(2));
        assert_eq!(
            (id(&mut one).await, id(&mut one).await),
            ("1".into(), "2".into())
        );
        assert_eq!(id(&mut two).await, "2");
    }

    #[tokio::test]
    async fn a_slow_subscriber_is_told_what_it_missed_and_holds_up_no_other() {
        let events = Events::default();
        let (mut slow, mut quick) = (events.subscribe().unwrap(), events.subscribe().unwrap());
        for number in 0..QUEUE + 3 {
            events.send(|| event(number));
            assert_eq!(id(&mut quick).await, number.to_string());
        }
        assert!(matches!(slow.recv().await, Err(RecvError::Lagged(3))));
    }

    #[tokio::test]
    async fn the_end_comes_after_what_is_queued_and_nobody_subscribes_any_more() {
        let events = Events::default();
        let mut subscription = events.subscribe().unwrap();
        events.send(|| event(1));
        events.close();
        assert_eq!(id(&mut subscription).await, "1");
        assert!(matches!(subscription.recv().await, Err(RecvError::Closed)));
        assert!(
            events
                .subscribe()
                .is_err_and(|error| error.kind == Kind::Unavailable)
        );
    }

    #[test]
    fn there_are_so_many_subscribers_and_no_more() {
        let events = Events::default();
        let mut subscriptions: Vec<_> = (0..MAX_SUBSCRIBERS)
            .map(|_| events.subscribe().unwrap())
            .collect();
        assert!(
            events
                .subscribe()
                .is_err_and(|error| error.kind == Kind::Exhausted)
        );
        subscriptions.pop();
        assert!(events.subscribe().is_ok());
    }
}

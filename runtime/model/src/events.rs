//! A subscriber of container events: one of each kind per object, in order, at ascending times.

use std::{collections::BTreeMap, sync::Arc};

use cairn::pod::{
    events::{ContainerEvent, EventKind, Subscription},
    pods::Pods,
};
use tokio::sync::broadcast::error::TryRecvError;

use crate::{memory::Memory, rule::Rule};

pub(crate) struct Subscriber {
    memory: Memory,
    events: Subscription,
}

impl Subscriber {
    pub(crate) fn of(memory: Memory, pods: &Pods) -> Self {
        Self {
            memory,
            events: pods.notices.events.subscribe().expect("a subscription"),
        }
    }

    /// At the end, when all objects are removed.
    pub(crate) fn check_all(&mut self) {
        let mut seen: BTreeMap<String, Vec<EventKind>> = BTreeMap::new();
        let mut last = 0;
        loop {
            match self.events.try_recv() {
                Ok(event) => {
                    self.check(&event, &mut last, seen.entry(event.id.clone()).or_default());
                }
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                Err(TryRecvError::Lagged(missed)) => {
                    return self.memory.log(format!("{missed} events were missed"));
                }
            }
        }
        for (id, kinds) in seen {
            if !kinds.contains(&EventKind::Deleted) {
                self.fault(format!("{id}: not deleted after {kinds:?}"));
            }
        }
    }

    fn check(&self, event: &Arc<ContainerEvent>, last: &mut i64, seen: &mut Vec<EventKind>) {
        let ContainerEvent { kind, id, at, .. } = &**event;
        if *at <= *last {
            self.fault(format!("{id}: {kind:?} is not later than the event before"));
        }
        *last = *at;
        let rank = |kind: &EventKind| match kind {
            EventKind::Created => 0,
            EventKind::Started => 1,
            EventKind::Stopped => 2,
            EventKind::Deleted => 3,
        };
        if seen.iter().any(|before| rank(before) >= rank(kind)) {
            self.fault(format!("{id}: {kind:?} after {seen:?}"));
        }
        seen.push(*kind);
    }

    fn fault(&self, text: String) {
        self.memory.fault(Rule::Events, text);
    }
}

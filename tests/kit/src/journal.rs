//! The events that scripted plugins received, in their order.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nri::{mask::event_name, proto::*};
use tokio::sync::watch;

/// One event as a plugin got it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The position among all events of the journal.
    pub number: usize,
    pub at: Instant,
    pub plugin: String,
    pub event: Event,
    pub pod: PodSandbox,
    /// Set in container events.
    pub container: Option<Container>,
    /// The requested resources in C-08 and C-12.
    pub resources: Option<LinuxResources>,
    /// When its handler returned.
    pub answered: Option<Instant>,
    /// The missing fields of the message.
    pub left_out: Arc<[String]>,
}

impl Seen {
    /// "Event pod" or "Event pod/container", names without the prefix.
    pub fn line(&self, prefix: &str) -> String {
        let pod = self.pod.name.strip_prefix(prefix).unwrap_or(&self.pod.name);
        match &self.container {
            Some(container) => format!("{} {pod}/{}", event_name(self.event), container.name),
            None => format!("{} {pod}", event_name(self.event)),
        }
    }
    pub fn container_id(&self) -> &str {
        self.container.as_ref().map_or("", |c| &c.id)
    }
}

/// The events of the plugins that share it, in their order.
pub struct Journal {
    pub begun: Instant,
    /// The prefix of the names of the journal's pods.
    pub prefix: String,
    /// The time to wait for an event.
    pub patience: Duration,
    pub seen: watch::Sender<Vec<Seen>>,
}

impl Journal {
    pub fn new(prefix: String, patience: Duration) -> Self {
        Self {
            begun: Instant::now(),
            prefix,
            patience,
            seen: watch::channel(Vec::new()).0,
        }
    }
    pub fn all(&self) -> Vec<Seen> {
        self.seen.borrow().clone()
    }
    pub fn note(&self, mut seen: Seen) -> usize {
        let mut number = 0;
        self.seen.send_modify(|all| {
            number = all.len();
            seen.number = number;
            all.push(seen);
        });
        number
    }
    pub fn answered(&self, number: usize) {
        self.seen
            .send_modify(|all| all[number].answered = Some(Instant::now()));
    }
    /// The events in a readable form.
    pub fn lines(&self) -> Vec<String> {
        let line = |seen: &Seen| {
            let ms = seen.at.duration_since(self.begun).as_millis();
            format!("{ms:>6} ms  {}  {}", seen.plugin, seen.line(&self.prefix))
        };
        self.seen.borrow().iter().map(line).collect()
    }
}

/// Joins the lines to one line.
pub fn listed(lines: &[String]) -> String {
    match lines {
        [] => "nothing".to_owned(),
        lines => lines.join(", "),
    }
}

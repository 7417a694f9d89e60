//! What the plugins of a point were told, in its order.

use std::time::Instant;

use nri::{mask::event_name, proto::*};
use tokio::sync::watch;

/// One event as a plugin got it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Counts all events of a point's plugins.
    pub number: usize,
    pub at: Instant,
    pub plugin: String,
    pub event: Event,
    pub pod: PodSandbox,
    /// Of container events.
    pub container: Option<Container>,
    /// Of C-08 and C-12: the resources asked for.
    pub resources: Option<LinuxResources>,
    /// When its handler returned.
    pub answered: Option<Instant>,
}

impl Seen {
    /// "Event pod" or "Event pod/container", names without the point's prefix.
    pub(crate) fn line(&self, prefix: &str) -> String {
        let pod = self.pod.name.strip_prefix(prefix).unwrap_or(&self.pod.name);
        match &self.container {
            Some(container) => format!("{} {pod}/{}", event_name(self.event), container.name),
            None => format!("{} {pod}", event_name(self.event)),
        }
    }
    pub(crate) fn container_id(&self) -> &str {
        self.container.as_ref().map_or("", |c| &c.id)
    }
}

/// What the plugins of one point were told, in its order.
pub(crate) struct Journal {
    pub begun: Instant,
    /// Names of the point's pods begin so.
    pub prefix: String,
    pub seen: watch::Sender<Vec<Seen>>,
}

impl Journal {
    pub(crate) fn new(prefix: String) -> Self {
        Self {
            begun: Instant::now(),
            prefix,
            seen: watch::channel(Vec::new()).0,
        }
    }
    pub(crate) fn all(&self) -> Vec<Seen> {
        self.seen.borrow().clone()
    }
    pub(crate) fn note(&self, mut seen: Seen) -> usize {
        let mut number = 0;
        self.seen.send_modify(|all| {
            number = all.len();
            seen.number = number;
            all.push(seen);
        });
        number
    }
    pub(crate) fn answered(&self, number: usize) {
        self.seen
            .send_modify(|all| all[number].answered = Some(Instant::now()));
    }
    /// The events as a person reads them.
    pub(crate) fn lines(&self) -> Vec<String> {
        let line = |seen: &Seen| {
            let ms = seen.at.duration_since(self.begun).as_millis();
            format!("{ms:>6} ms  {}  {}", seen.plugin, seen.line(&self.prefix))
        };
        self.seen.borrow().iter().map(line).collect()
    }
}

/// Lines in one line.
pub(crate) fn listed(lines: &[String]) -> String {
    match lines {
        [] => "nothing".to_owned(),
        lines => lines.join(", "),
    }
}

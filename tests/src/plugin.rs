//! The scripted plugin of `testkit`, whose misses fail the test. It records the events of all pods.

use std::{ops::Deref, path::Path, sync::Arc};

use nri::proto::{Container, ContainerAdjustment, CreateContainerResponse, Event, PodSandbox};
use testkit::{
    journal::Journal,
    plugin::{self, Wanted},
    until::PATIENCE,
    verdict::Checked,
};
use tokio::sync::Semaphore;

pub use testkit::{journal::Seen, plugin::Behavior};

/// A connected plugin; dropping it disconnects it.
pub struct Plugin(plugin::Plugin);

impl Deref for Plugin {
    type Target = plugin::Plugin;

    fn deref(&self) -> &plugin::Plugin {
        &self.0
    }
}

/// A blocking hook: it waits until this is opened.
pub struct Gate(Arc<Semaphore>);

impl Gate {
    /// Opens the gate for good.
    pub fn open(&self) {
        self.0.add_permits(1_000);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

fn wanted(socket: &Path, index: &str, name: &str) -> Wanted {
    let journal = Journal::new(String::new(), PATIENCE);
    Wanted::new(socket, index, name, Arc::new(journal))
}

async fn joined(wanted: Wanted) -> Plugin {
    Plugin(there(wanted.join().await))
}

fn there<T>(checked: Checked<T>) -> T {
    checked.unwrap_or_else(|miss| panic!("{miss:?}"))
}

impl Plugin {
    /// Connects, registers with all thirteen events, and waits until it is synchronized.
    ///
    /// # Panics
    /// If the daemon rejects it.
    pub async fn join(socket: &Path, index: &str, name: &str) -> Self {
        joined(wanted(socket, index, name)).await
    }

    /// As [`Plugin::join`], with these events only.
    ///
    /// # Panics
    /// If the daemon rejects it.
    pub async fn subscribed(socket: &Path, index: &str, name: &str, events: &[Event]) -> Self {
        joined(wanted(socket, index, name).events(events)).await
    }

    /// As [`Plugin::subscribed`].
    ///
    /// # Errors
    /// The reason of the daemon's rejection.
    pub async fn try_join(
        socket: &Path,
        index: &str,
        name: &str,
        events: &[Event],
    ) -> Result<Self, String> {
        let plugin = Self(
            wanted(socket, index, name)
                .events(events)
                .try_start()
                .await?,
        );
        plugin.synchronised().await;
        Ok(plugin)
    }

    /// Pods and containers of its Synchronize.
    ///
    /// # Panics
    /// If it does not come in time.
    pub async fn synchronised(&self) -> (Vec<PodSandbox>, Vec<Container>) {
        there(self.0.synchronised().await)
    }

    /// Makes an event's hook block until the gate is opened.
    pub fn blocks(&self, event: Event) -> Gate {
        let gate = Arc::new(Semaphore::new(0));
        self.does(event, Behavior::Wait(gate.clone()));
        Gate(gate)
    }
    /// Answers CreateContainer with an adjustment.
    pub fn adjusts<F>(&self, adjust: F)
    where
        F: Fn(&PodSandbox, &Container) -> Option<ContainerAdjustment> + Send + Sync + 'static,
    {
        self.answers(move |pod, container| CreateContainerResponse {
            adjust: adjust(pod, container),
            ..Default::default()
        });
    }
    /// Answers CreateContainer with a complete answer.
    pub fn answers<F>(&self, answer: F)
    where
        F: Fn(&PodSandbox, &Container) -> CreateContainerResponse + Send + Sync + 'static,
    {
        self.creates(move |asked| {
            let (pod, container) = (asked.pod.clone(), asked.container.clone());
            answer(&pod.unwrap_or_default(), &container.unwrap_or_default())
        });
    }

    /// All events so far, one line each, in the format of the Go plugin: "Event pod" or "Event pod
    /// container".
    pub fn list(&self) -> Vec<String> {
        let lines = self.lines().into_iter();
        lines.map(|line| line.replace('/', " ")).collect()
    }
    /// The names of the events so far.
    pub fn events(&self) -> Vec<Event> {
        self.seen().iter().map(|s| s.event).collect()
    }

    /// Waits for an event of a pod (by its name); returns the first one.
    ///
    /// # Panics
    /// If it does not come in time.
    pub async fn sees(&self, event: Event, pod: &str) -> Seen {
        let is = |s: &Seen| s.event == event && s.pod.name == pod;
        self.sees_where(&format!("{event:?} of {pod}"), is).await
    }

    /// Waits for an event that satisfies a condition.
    ///
    /// # Panics
    /// If it does not come in time, with what came.
    pub async fn sees_where(&self, what: &str, is: impl Fn(&Seen) -> bool) -> Seen {
        there(self.0.sees_where(what, |_, seen| is(seen)).await)
    }
}

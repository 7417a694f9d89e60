//! The behavior of a scripted plugin at each event.

use std::{
    collections::BTreeMap,
    io::Write,
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Instant,
};

use nri::{EventMask, Handlers, proto::*};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use crate::journal::{Journal, Seen};

/// The behavior of a plugin at an event, other than an empty answer.
#[derive(Clone, Debug)]
pub enum Behavior {
    /// Answers with an error.
    Error(String),
    /// Never answers.
    Hang,
    /// Closes the connection in both directions, as a process that ends does.
    Die,
    /// Writes bytes that are not a frame of the protocol, and never answers.
    Garbage,
    /// Waits until the gate is opened, then answers.
    Wait(Arc<Semaphore>),
}

pub(crate) type Answers<I, O> = Mutex<Option<Arc<dyn Fn(&I) -> O + Send + Sync>>>;

/// The state that the test and the handlers share.
pub(crate) struct Shared {
    pub id: String,
    pub journal: Arc<Journal>,
    pub behaviors: Mutex<BTreeMap<i32, Behavior>>,
    pub addresses: Mutex<Vec<String>>,
    pub creates: Answers<CreateContainerRequest, CreateContainerResponse>,
    pub updates: Answers<UpdateContainerRequest, Vec<ContainerUpdate>>,
    pub stops: Answers<StopContainerRequest, Vec<ContainerUpdate>>,
    pub validates: Answers<ValidateContainerAdjustmentRequest, Result<(), String>>,
    pub checked: Mutex<Vec<ValidateContainerAdjustmentRequest>>,
    pub synchronises: Mutex<Option<Behavior>>,
    pub reported: watch::Sender<Option<(Vec<PodSandbox>, Vec<Container>)>>,
    pub was_shut_down: AtomicBool,
    /// The current and the highest number of events in a handler, of pods of all tests.
    pub active: AtomicUsize,
    pub most: AtomicUsize,
    /// A second handle to the connection, to misbehave below the protocol.
    pub raw: UnixStream,
}

/// Counts a running handler until it is dropped.
struct Active<'a>(&'a Shared);

impl<'a> Active<'a> {
    fn new(shared: &'a Shared) -> Self {
        let now = shared.active.fetch_add(1, Ordering::SeqCst) + 1;
        shared.most.fetch_max(now, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    /// Records an event of the test's own pods, and behaves as scripted.
    async fn pass(
        &self,
        event: Event,
        pod: &PodSandbox,
        container: Option<&Container>,
        resources: Option<LinuxResources>,
    ) -> nri::Result<()> {
        let _active = Active::new(self);
        if !self.owns(pod) {
            return Ok(());
        }
        let number = self.journal.note(Seen {
            number: 0,
            at: Instant::now(),
            plugin: self.id.clone(),
            event,
            pod: pod.clone(),
            container: container.cloned(),
            resources,
            answered: None,
            left_out: nri::left_out(),
        });
        let behavior = self.behaviors.lock().get(&(event as i32)).cloned();
        self.act(behavior).await?;
        self.journal.answered(number);
        Ok(())
    }

    async fn act(&self, behavior: Option<Behavior>) -> nri::Result<()> {
        let mut raw = &self.raw;
        match behavior {
            None => return Ok(()),
            Some(Behavior::Error(text)) => return Err(text.into()),
            Some(Behavior::Wait(gate)) => {
                let _passed = gate.acquire().await;
                return Ok(());
            }
            Some(Behavior::Die) => drop(self.raw.shutdown(Shutdown::Both)),
            Some(Behavior::Garbage) => drop(raw.write_all(&[0xff; 64])),
            Some(Behavior::Hang) => {}
        }
        std::future::pending().await
    }

    /// Whether a pod is one of the journal's.
    fn owns(&self, pod: &PodSandbox) -> bool {
        pod.name.starts_with(&self.journal.prefix)
    }
}

pub(crate) fn handlers(shared: &Arc<Shared>, events: EventMask) -> Handlers {
    let own = shared.clone();
    let mut handlers = Handlers::new().synchronize(move |pods, containers| {
        let own = own.clone();
        async move {
            own.reported.send_replace(Some((pods, containers)));
            let behavior = own.synchronises.lock().clone();
            own.act(behavior).await.map(|()| Vec::new())
        }
    });
    let own = shared.clone();
    handlers = handlers.shutdown(move || {
        own.was_shut_down.store(true, Ordering::SeqCst);
        async {}
    });
    macro_rules! pod_event {
        ($event:ident, $method:ident) => {
            if events.has(Event::$event) {
                let own = shared.clone();
                handlers = handlers.$method(move |pod| {
                    let own = own.clone();
                    async move { own.pass(Event::$event, &pod, None, None).await }
                });
            }
        };
    }
    macro_rules! container_event {
        ($event:ident, $method:ident) => {
            if events.has(Event::$event) {
                let own = shared.clone();
                handlers = handlers.$method(move |pod, container| {
                    let own = own.clone();
                    async move { own.pass(Event::$event, &pod, Some(&container), None).await }
                });
            }
        };
    }
    pod_event!(PostUpdatePodSandbox, post_update_pod_sandbox);
    pod_event!(StopPodSandbox, stop_pod_sandbox);
    pod_event!(RemovePodSandbox, remove_pod_sandbox);
    container_event!(PostCreateContainer, post_create_container);
    container_event!(StartContainer, start_container);
    container_event!(PostStartContainer, post_start_container);
    container_event!(PostUpdateContainer, post_update_container);
    container_event!(RemoveContainer, remove_container);
    if events.has(Event::UpdatePodSandbox) {
        let own = shared.clone();
        handlers = handlers.update_pod_sandbox(move |pod, _, resources| {
            let own = own.clone();
            async move {
                own.pass(Event::UpdatePodSandbox, &pod, None, Some(resources))
                    .await
            }
        });
    }
    with_answers(handlers, shared, events)
}

/// Adds the events whose answers have content.
fn with_answers(mut handlers: Handlers, shared: &Arc<Shared>, events: EventMask) -> Handlers {
    if events.has(Event::RunPodSandbox) {
        let own = shared.clone();
        handlers = handlers.on(move |request: RunPodSandboxRequest| {
            let own = own.clone();
            async move {
                let pod = request.pod.unwrap_or_default();
                own.pass(Event::RunPodSandbox, &pod, None, None).await?;
                let ips = if own.owns(&pod) {
                    own.addresses.lock().clone()
                } else {
                    Vec::new()
                };
                let network = Some(PodSandboxNetwork { ips });
                Ok(RunPodSandboxResponse {
                    adjust: Some(PodSandboxAdjustment { network }),
                })
            }
        });
    }
    if events.has(Event::CreateContainer) {
        let own = shared.clone();
        handlers = handlers.on(move |request: CreateContainerRequest| {
            let own = own.clone();
            async move {
                let pod = request.pod.clone().unwrap_or_default();
                own.pass(
                    Event::CreateContainer,
                    &pod,
                    request.container.as_ref(),
                    None,
                )
                .await?;
                let answer = own.creates.lock().clone().filter(|_| own.owns(&pod));
                Ok(answer.map_or_else(Default::default, |answer| answer(&request)))
            }
        });
    }
    if events.has(Event::UpdateContainer) {
        let own = shared.clone();
        handlers = handlers.on(move |request: UpdateContainerRequest| {
            let own = own.clone();
            async move {
                let pod = request.pod.clone().unwrap_or_default();
                let resources = request.linux_resources.clone();
                own.pass(
                    Event::UpdateContainer,
                    &pod,
                    request.container.as_ref(),
                    resources,
                )
                .await?;
                let answer = own.updates.lock().clone().filter(|_| own.owns(&pod));
                Ok(UpdateContainerResponse {
                    update: answer.map_or_else(Vec::new, |answer| answer(&request)),
                    evict: Vec::new(),
                })
            }
        });
    }
    if events.has(Event::StopContainer) {
        let own = shared.clone();
        handlers = handlers.on(move |request: StopContainerRequest| {
            let own = own.clone();
            async move {
                let pod = request.pod.clone().unwrap_or_default();
                own.pass(Event::StopContainer, &pod, request.container.as_ref(), None)
                    .await?;
                let answer = own.stops.lock().clone().filter(|_| own.owns(&pod));
                Ok(StopContainerResponse {
                    update: answer.map_or_else(Vec::new, |answer| answer(&request)),
                })
            }
        });
    }
    if events.has(Event::ValidateContainerAdjustment) {
        let own = shared.clone();
        handlers = handlers.validate_container_adjustment(move |request| {
            let own = own.clone();
            async move {
                let pod = request.pod.clone().unwrap_or_default();
                if own.owns(&pod) {
                    own.checked.lock().push(request.clone());
                }
                own.pass(
                    Event::ValidateContainerAdjustment,
                    &pod,
                    request.container.as_ref(),
                    None,
                )
                .await?;
                let verdict = own.validates.lock().clone().filter(|_| own.owns(&pod));
                verdict.map_or(Ok(()), |verdict| verdict(&request).map_err(Into::into))
            }
        });
    }
    handlers
}

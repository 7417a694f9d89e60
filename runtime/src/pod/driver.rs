//! One driver task per pod: a queue in, records and a watch out.
//!
//! The driver alone admits work on its pod (`admit.rs`) and never awaits a long step: a step
//! (plugin, network, monitor, mount, grace period) is a child task whose end comes back here.
//! Requests that must wait do so in order, and are admitted again whenever a step ends. One file: all of it changes the
//! same three lists.
//!
//! ```text
//!            queue                    admit::…                 JoinSet
//!  callers ────────► on_message ─────────────► Run ─► spawn ───────────► on_end ─┐
//!                        ▲                      Wait ─► waiting                  │
//!                        └──────────────────────────────────────◄── admit again ─┘
//! ```

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::mpsc,
    task::{self, JoinSet},
};

use super::{
    admit::{self, Decision, PodWork, Verb},
    error::{Error, Kind, Result},
    event_log,
    record::ContainerPhase,
    request::{ContainerWork, CreateContainerRequest, Message, Reply},
    state::{Container, Pod},
    steps::Steps,
};
use crate::trace::Subject;

/// Requests that may wait for a step to end; more are refused.
const MAX_WAITING: usize = 512;

/// Which step a child task is. A container has one step at a time, but for its exit: that may be recorded while another
/// step is under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    StopPod,
    RemovePod,
    UpdatePod,
    Container(String),
    Exit(String),
}

/// On the heap: these are large, and would be moved from stack to stack.
type StepFuture = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

struct Running {
    verb: Option<Verb>,
    waiters: Vec<Reply<()>>,
}

pub struct Driver {
    pod: Arc<Pod>,
    queue: mpsc::Receiver<Message>,
    steps: Arc<Steps>,
    tasks: JoinSet<Result<()>>,
    keys: HashMap<task::Id, Key>,
    running: HashMap<Key, Running>,
    waiting: VecDeque<Message>,
}

impl Driver {
    pub fn new(pod: Arc<Pod>, queue: mpsc::Receiver<Message>, steps: Arc<Steps>) -> Self {
        Self {
            pod,
            queue,
            steps,
            tasks: JoinSet::new(),
            keys: HashMap::new(),
            running: HashMap::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Serves until the pod is removed. Always a task of its own: one that made the pod first would keep the memory of all
    /// steps of a start for as long as the pod lives.
    pub fn start(self) {
        tokio::spawn(self.run());
    }

    async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                Some(end) = self.tasks.join_next_with_id() => {
                    let removed = self.on_end(end);
                    if removed {
                        self.farewell();
                        return;
                    }
                    for message in std::mem::take(&mut self.waiting) {
                        self.on_message(message);
                    }
                }
                message = self.queue.recv() => match message {
                    Some(message) => self.on_message(message),
                    None => return,
                },
            }
        }
    }

    /// The pod is gone: what still waits for it learns so.
    fn farewell(&mut self) {
        self.queue.close();
        while let Ok(message) = self.queue.try_recv() {
            self.waiting.push_back(message);
        }
        let id = &self.pod.id;
        for message in self.waiting.drain(..) {
            message.without_pod(id);
        }
    }

    fn work(&self) -> PodWork {
        PodWork {
            updating: self.running.contains_key(&Key::UpdatePod),
            stopping: self.running.contains_key(&Key::StopPod),
            removing: self.running.contains_key(&Key::RemovePod),
        }
    }

    fn on_message(&mut self, message: Message) {
        if self.waiting.len() >= MAX_WAITING {
            let text = format!(
                "sandbox {}: {MAX_WAITING} requests wait already",
                self.pod.id
            );
            return message.refuse(Error::new(Kind::Exhausted, text));
        }
        self.cut_short(&message);
        match message {
            Message::Create(request, reply) => self.create(request, reply),
            Message::Container { id, work, reply } => self.container(id, work, reply),
            Message::StopPod(reply) => {
                let decision = admit::stop_pod(self.pod.stopped(), self.work());
                if decision == Decision::Wait {
                    return self.waiting.push_back(Message::StopPod(reply));
                }
                let (pod, steps) = (Arc::clone(&self.pod), Arc::clone(&self.steps));
                let step = Box::pin(async move { steps.stop_pod_sandbox.run(&pod).await });
                self.pod_step(Key::StopPod, decision, reply, step);
            }
            Message::RemovePod(reply) => {
                let decision = admit::remove_pod(self.work());
                if decision == Decision::Wait {
                    return self.waiting.push_back(Message::RemovePod(reply));
                }
                let (pod, steps) = (Arc::clone(&self.pod), Arc::clone(&self.steps));
                let step = Box::pin(async move { steps.remove_pod_sandbox.run(&pod).await });
                self.pod_step(Key::RemovePod, decision, reply, step);
            }
            Message::UpdatePod(request, reply) => {
                let decision = admit::update_pod(self.pod.cell.get().phase, self.work());
                if decision == Decision::Wait {
                    return self.waiting.push_back(Message::UpdatePod(request, reply));
                }
                let (pod, steps) = (Arc::clone(&self.pod), Arc::clone(&self.steps));
                let step = Box::pin(async move {
                    let update = &steps.update_pod_sandbox_resources;
                    update.run(&pod, *request).await
                });
                self.pod_step(Key::UpdatePod, decision, reply, step);
            }
        }
    }

    /// A stop or removal waits for the creation and the start under way, but not for paths that they look up.
    fn cut_short(&self, message: &Message) {
        use ContainerWork::{Remove, Stop};
        match message {
            Message::StopPod(_) | Message::RemovePod(_) => {
                for container in self.pod.containers() {
                    container.ending.cancel();
                }
            }
            Message::Container {
                id,
                work: work @ (Stop { .. } | Remove),
                ..
            } => {
                // A container that is stopped before its start may be started later.
                let under_way = matches!(self.verb_of(id), Some(Verb::Create | Verb::Start));
                let ends = matches!(work, Remove) || under_way;
                if ends && let Some(container) = self.pod.container(id) {
                    container.ending.cancel();
                }
            }
            _ => {}
        }
    }

    fn pod_step(&mut self, key: Key, decision: Decision, reply: Reply<()>, step: StepFuture) {
        match decision {
            Decision::Run => self.spawn(key, None, reply, step),
            Decision::Join => self.join(&key, reply),
            Decision::Deny(reason) => {
                let text = format!("sandbox {}: {reason}", self.pod.id);
                reply.send(Err(Error::new(Kind::WrongState, text)));
            }
            _ => reply.send(Ok(())),
        }
    }

    fn create(&mut self, request: Box<CreateContainerRequest>, reply: Reply<String>) {
        let name = request.name_key();
        if let Some(existing) = self.pod.container_named(&name) {
            return self.create_again(&existing, &request, reply);
        }
        let decision = self.admits_creation();
        if let Decision::Deny(reason) = decision {
            let text = format!("sandbox {}: create container: {reason}", self.pod.id);
            return reply.send(Err(Error::new(Kind::WrongState, text)));
        }
        let container = Arc::new(self.steps.create_container.begin(&self.pod, &request));
        let id = container.id.clone();
        self.pod.insert(Arc::clone(&container));
        let (pod, steps) = (Arc::clone(&self.pod), Arc::clone(&self.steps));
        let step = Box::pin(async move {
            let create = &steps.create_container;
            let result = create.run(&pod, &container, *request).await;
            if result.is_err() {
                pod.forget(&container.id);
            }
            result
        });
        let key = Key::Container(id.clone());
        self.spawn(key, Some(Verb::Create), reply.with(id), step);
    }

    fn admits_creation(&self) -> Decision {
        admit::create(self.pod.cell.get().phase, self.work())
    }

    /// The same request again gets the same container, as long as no client has named that and nothing has happened to
    /// it: the answer may be lost. Any other request for the name is refused (CRI-113).
    fn create_again(
        &mut self,
        existing: &Arc<Container>,
        request: &CreateContainerRequest,
        reply: Reply<String>,
    ) {
        let id = existing.id.clone();
        let (record, step) = (existing.cell.get(), self.verb_of(&id));
        let as_made = record.phase == ContainerPhase::Created
            && step.is_none()
            && matches!(self.admits_creation(), Decision::Run);
        let (name, pod) = (request.name_key(), &self.pod.id);
        let refusal = |why: String| {
            let text = format!("container name {name:?} in sandbox {pod}: {why}");
            Err(Error::new(Kind::Exists, text))
        };
        if !request.made(&record.config) {
            reply.send(refusal(format!("taken by container {id}")));
        } else if step == Some(Verb::Create) {
            self.join(&Key::Container(id.clone()), reply.with(id));
        } else if as_made && !existing.is_known() {
            reply.send(Ok(id));
        } else {
            reply.send(refusal(format!("container {id} exists already")));
        }
    }

    /// The step that counts for admission: the main one, else the exit under way.
    fn verb_of(&self, id: &str) -> Option<Verb> {
        let of = |key: Key| self.running.get(&key).and_then(|running| running.verb);
        of(Key::Container(id.to_owned())).or_else(|| of(Key::Exit(id.to_owned())))
    }

    fn container(&mut self, id: String, work: ContainerWork, reply: Reply<()>) {
        let Some(container) = self.pod.container(&id) else {
            return reply.send(work.without_container(&id));
        };
        let decision = admit::container(
            self.pod.cell.get().phase,
            self.work(),
            container.cell.get().phase,
            self.verb_of(&id),
            work.verb(),
        );
        let key = match work {
            ContainerWork::Exited(_) => Key::Exit(id.clone()),
            _ => Key::Container(id.clone()),
        };
        match decision {
            Decision::Run => {
                let verb = work.verb();
                // Here, not in the step: a removal that comes next may already cut it short.
                if let ContainerWork::Stop { grace } = work {
                    container.grace.begin(grace);
                }
                let (pod, steps) = (Arc::clone(&self.pod), Arc::clone(&self.steps));
                let step = Box::pin(async move { steps.container(&pod, &container, work).await });
                self.spawn(key, Some(verb), reply, step);
            }
            Decision::Join => self.join(&key, reply),
            Decision::Shorten => {
                if let ContainerWork::Stop { grace } = work {
                    container.grace.shorten(grace);
                }
                self.join(&key, reply);
            }
            Decision::CutShort => {
                container.grace.shorten(Duration::ZERO);
                self.waiting
                    .push_back(Message::Container { id, work, reply });
            }
            Decision::Wait => self
                .waiting
                .push_back(Message::Container { id, work, reply }),
            Decision::Done => reply.send(Ok(())),
            Decision::Deny(reason) => {
                let text = format!("container {id}: {reason}");
                reply.send(Err(Error::new(Kind::WrongState, text)));
            }
        }
    }

    fn join(&mut self, key: &Key, waiter: Reply<()>) {
        match self.running.get_mut(key) {
            Some(running) => running.waiters.push(waiter),
            // Admission said that it runs; were it not so, the caller must not hang.
            None => waiter.send(Err(Error::failed("the step to join has ended; try again"))),
        }
    }

    fn spawn(&mut self, key: Key, verb: Option<Verb>, waiter: Reply<()>, step: StepFuture) {
        let subject = self.subject(&key);
        let (log, unsynced) = (self.steps.log.clone(), self.steps.unsynced.clone());
        // What the caller is told of is on disk (CRI-811).
        let step = async move {
            step.await?;
            Ok(unsynced.sync().await?)
        };
        // In whose course the step is done: his who came first.
        let asker = waiter.asker.clone();
        let task = match call(&key, verb) {
            Some(call) => self.tasks.spawn(
                asker.scope(async move { event_log::during(call, &log, subject, step).await }),
            ),
            None => self.tasks.spawn(asker.scope(step)),
        };
        let task = task.id();
        self.keys.insert(task, key.clone());
        let waiters = vec![waiter];
        self.running.insert(key, Running { verb, waiters });
    }

    fn subject(&self, key: &Key) -> Subject {
        let container = match key {
            Key::Container(id) | Key::Exit(id) => self.pod.container(id),
            Key::StopPod | Key::RemovePod | Key::UpdatePod => None,
        };
        event_log::subject(&self.pod, container.as_deref())
    }

    /// True when the pod has been removed.
    fn on_end(
        &mut self,
        end: std::result::Result<(task::Id, Result<()>), task::JoinError>,
    ) -> bool {
        let (task, result) = match end {
            Ok(end) => end,
            Err(error) => {
                tracing::error!(pod = %self.pod.id, %error, "a step of the pod's driver broke off");
                let text = format!("sandbox {}: internal error, see the log", self.pod.id);
                (error.id(), Err(Error::failed(text)))
            }
        };
        let Some(key) = self.keys.remove(&task) else {
            return false;
        };
        let Some(running) = self.running.remove(&key) else {
            return false;
        };
        for waiter in running.waiters {
            waiter.send(result.clone());
        }
        matches!(key, Key::RemovePod) && result.is_ok()
    }
}

/// The CRI call that a step answers; an exit answers none.
fn call(key: &Key, verb: Option<Verb>) -> Option<&'static str> {
    match (key, verb) {
        (Key::StopPod, _) => Some("StopPodSandbox"),
        (Key::RemovePod, _) => Some("RemovePodSandbox"),
        (Key::UpdatePod, _) => Some("UpdatePodSandboxResources"),
        (_, Some(Verb::Create)) => Some("CreateContainer"),
        (_, Some(Verb::Start)) => Some("StartContainer"),
        (_, Some(Verb::Stop)) => Some("StopContainer"),
        (_, Some(Verb::Update)) => Some("UpdateContainerResources"),
        (_, Some(Verb::Remove)) => Some("RemoveContainer"),
        (_, Some(Verb::Exit) | None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<F: Future>(_: impl FnOnce(Driver) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_pod_that_nothing_happens_to_costs_a_task_of_a_kilobyte() {
        assert!(size_of_future(Driver::run) <= 1024);
    }
}

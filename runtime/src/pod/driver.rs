//! One driver task per pod: requests come in by a queue; records and a watch show the state.
//!
//! Only the driver admits work on its pod (`admit.rs`), and it never awaits a long step. A step
//! (plugin, network, monitor, mount, grace period) is a child task that reports its end to the
//! driver. Waiting requests keep their order and are admitted again whenever a step ends. One file,
//! because all of it changes the same three lists.
//!
//! ```text
//!            queue                    admit::…                 JoinSet
//!  callers ────────► on_request ─────────────► Run ─► spawn ───────────► on_end ─┐
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
    admit::{self, Decision, PodWork},
    container_exit, create_container,
    error::{Error, Kind, Result},
    event_log,
    op::{Answer, Asker, CreateContainerRequest, Look, Op, Reply, Request},
    pods::Pods,
    record::ContainerPhase,
    recover_container, recover_pod, remove_container, remove_pod_sandbox, start_container,
    state::{Container, Pod},
    stop_container, stop_pod_sandbox, update_container_resources, update_pod_sandbox_resources,
};
use crate::seeded;

/// When this many requests wait for a step to end, a client's further request is rejected.
const MAX_WAITING: usize = 512;

/// On the heap, because these futures are large and would be moved from stack to stack.
type StepFuture = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A running step. A container has one, beside which only its exit may be recorded.
struct Running {
    op: Op,
    /// The container that the step is about, if any.
    container: Option<Arc<Container>>,
    reply: Reply,
}

pub struct Driver {
    pod: Arc<Pod>,
    queue: mpsc::Receiver<Request>,
    cx: Arc<Pods>,
    tasks: JoinSet<Result<()>>,
    running: HashMap<task::Id, Running>,
    waiting: VecDeque<Request>,
}

impl Driver {
    pub fn new(pod: Arc<Pod>, queue: mpsc::Receiver<Request>, cx: Arc<Pods>) -> Self {
        Self {
            pod,
            queue,
            cx,
            tasks: JoinSet::new(),
            running: HashMap::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Serves until the pod is removed. Must run in a task of its own: the task that made the pod
    /// would keep the memory of all start steps for the life of the pod.
    pub fn start(self) {
        tokio::spawn(self.run());
    }

    /// Begins the recovery of the pod and of its containers, before any request; then serves.
    /// Returns their answers.
    pub fn recover(mut self) -> Vec<Answer> {
        let containers = self.pod.containers();
        let containers = containers.into_iter().map(|one| Some(one.id.clone()));
        let mut answers = Vec::new();
        for container in std::iter::once(None).chain(containers) {
            let (reply, answer) = Reply::new();
            answers.push(answer);
            self.on_request(Request {
                op: match &container {
                    None => Op::RecoverPod,
                    Some(_) => Op::Recover(Look::First),
                },
                container,
                by: Asker::Runtime,
                reply,
            });
        }
        self.start();
        answers
    }

    async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                Some(end) = self.tasks.join_next_with_id() => {
                    if self.on_end(end) {
                        return self.end().await;
                    }
                    for request in std::mem::take(&mut self.waiting) {
                        self.on_request(request);
                    }
                }
                request = self.queue.recv() => match request {
                    Some(request) => self.on_arrival(request),
                    None => return,
                },
            }
        }
    }

    /// Answers the requests that still wait when the pod is removed.
    async fn end(mut self) {
        self.queue.close();
        while let Some(request) = self.queue.recv().await {
            self.waiting.push_back(request);
        }
        for Request {
            op,
            container,
            reply,
            ..
        } in self.waiting
        {
            let id = container.unwrap_or_else(|| self.pod.id.clone());
            reply.send(op.on_absent(&id).map(|()| id));
        }
    }

    fn on_arrival(&mut self, request: Request) {
        let most = seeded::limit("waiting requests", MAX_WAITING);
        if request.by == Asker::Client && self.waiting.len() >= most {
            let text = format!("sandbox {}: {most} requests wait already", self.pod.id);
            let error = Error::new(Kind::Exhausted, text);
            return request.reply.send(Err(error));
        }
        self.on_request(request);
    }

    fn on_request(&mut self, request: Request) {
        let id = request.container.as_ref();
        let container = id.and_then(|id| self.pod.container(id));
        self.cut_short(&request.op, container.as_deref());
        if let Op::Create(wanted) = &request.op
            && let Some(existing) = self.pod.container_named(&wanted.name_key())
        {
            let wanted = Arc::clone(wanted);
            return self.create_again(&existing, &wanted, request);
        }
        let decision = self.decide(&request.op, container.as_deref());
        match (decision, &request.op, &container) {
            (Decision::Shorten, Op::Stop { grace }, Some(container)) => {
                container.grace.shorten(*grace);
            }
            (Decision::CutShort, _, Some(container)) => container.grace.shorten(Duration::ZERO),
            _ => {}
        }
        let id = || request.container.as_ref().unwrap_or(&self.pod.id).clone();
        let answer = match decision {
            Decision::Run => return self.spawn(request, container),
            Decision::Join | Decision::Shorten => return self.join(request, container.as_deref()),
            Decision::Wait | Decision::CutShort => return self.wait(request),
            Decision::Done => return self.confirm(id(), request.reply),
            Decision::Absent => request.op.on_absent(&id()).map(|()| id()),
            Decision::Deny(denial) => {
                let what = match (&request.op, &request.container) {
                    (Op::Create(_), _) => format!("sandbox {}: create container", id()),
                    (_, Some(id)) => format!("container {id}"),
                    (_, None) => format!("sandbox {}", id()),
                };
                Err(Error::new(Kind::WrongState, format!("{what}: {denial}")))
            }
        };
        request.reply.send(answer);
    }

    /// Answers that the state is as requested, when it is on disk.
    fn confirm(&self, id: String, reply: Reply) {
        let unsynced = self.cx.node.unsynced.clone();
        tokio::spawn(async move {
            let synced = unsynced.sync().await;
            reply.send(synced.map(|()| id).map_err(Error::from));
        });
    }

    /// Joins a waiting request for the same, so that repeated stops and evictions wait as one.
    fn wait(&mut self, request: Request) {
        match self.waiting.iter_mut().find(|one| one.serves(&request)) {
            Some(waiting) => {
                if let (Op::Stop { grace }, Op::Stop { grace: wanted }) =
                    (&mut waiting.op, &request.op)
                {
                    *grace = (*grace).min(*wanted);
                }
                waiting.reply.join(request.reply);
            }
            None => self.waiting.push_back(request),
        }
    }

    fn decide(&self, op: &Op, container: Option<&Container>) -> Decision {
        let any = |is: fn(&Op) -> bool| self.running.values().any(|one| is(&one.op));
        let work = PodWork {
            recovering: any(|op| matches!(op, Op::RecoverPod)),
            updating: any(|op| matches!(op, Op::UpdatePod(_))),
            stopping: any(|op| matches!(op, Op::StopPod)),
            removing: any(|op| matches!(op, Op::RemovePod)),
        };
        let container = container.map(|one| (one.cell.get().phase, self.step_of(one)));
        let phase = self.pod.cell.get().phase;
        admit::decide(op, phase, self.pod.stopped(), work, container)
    }

    /// The step of a container that admission considers: the main one, else a running exit.
    fn step_of(&self, container: &Container) -> Option<&Op> {
        let is_its = |running: &&Running| {
            let of = running.container.as_ref();
            of.is_some_and(|of| of.id == container.id)
        };
        let steps = self.running.values().filter(is_its).map(|one| &one.op);
        steps.min_by_key(|op| matches!(op, Op::Exited(_)))
    }

    /// A stop or removal waits for a running creation or start, but not for its path look-ups.
    fn cut_short(&self, op: &Op, container: Option<&Container>) {
        match (op, container) {
            (Op::StopPod | Op::RemovePod, _) => {
                for container in self.pod.containers() {
                    container.ending.cancel();
                }
            }
            (Op::Remove, Some(container)) => container.ending.cancel(),
            (Op::Stop { .. }, Some(container)) => {
                // A container that is stopped before its start may still be started later.
                let ends = matches!(
                    (container.cell.get().phase, self.step_of(container)),
                    (ContainerPhase::Creating, Some(Op::Create(_)))
                        | (ContainerPhase::Exited, _)
                        | (_, Some(Op::Start))
                );
                if ends {
                    container.ending.cancel();
                }
            }
            _ => {}
        }
    }

    /// A repeated request gets the same container while no client has used its id and its state is
    /// unchanged: the answer may be lost. Other requests for the name are rejected (CRI-113).
    fn create_again(
        &mut self,
        existing: &Arc<Container>,
        wanted: &CreateContainerRequest,
        request: Request,
    ) {
        let (id, record, step) = (
            existing.id.clone(),
            existing.cell.get(),
            self.step_of(existing),
        );
        let as_made = record.phase == ContainerPhase::Created
            && step.is_none()
            && self.decide(&request.op, None) == Decision::Run;
        let why = if matches!(step, Some(Op::Recover(_))) {
            return self.wait(request);
        } else if !wanted.made(&record.config) {
            format!("taken by container {id}")
        } else if matches!(step, Some(Op::Create(_))) {
            return self.join(request, Some(existing));
        } else if as_made && !existing.is_known() {
            return request.reply.send(Ok(id));
        } else {
            format!("container {id} exists already")
        };
        let (name, pod) = (wanted.name_key(), &self.pod.id);
        let text = format!("container name {name:?} in sandbox {pod}: {why}");
        request.reply.send(Err(Error::new(Kind::Exists, text)));
    }

    /// Adds the caller to the waiters for the same step of the same object.
    fn join(&mut self, request: Request, container: Option<&Container>) {
        let container = container.map(|container| &container.id);
        let is_it = |running: &&mut Running| {
            let of = running.container.as_ref().map(|of| &of.id);
            running.op.is_same(&request.op) && of == container
        };
        match self.running.values_mut().find(is_it) {
            Some(running) => running.reply.join(request.reply),
            // Admission found the step running. Otherwise the caller must not wait forever.
            None => {
                let error = Error::failed("the step to join has ended; try again");
                request.reply.send(Err(error));
            }
        }
    }

    fn spawn(&mut self, request: Request, container: Option<Arc<Container>>) {
        let Request { op, reply, .. } = request;
        let container = match &op {
            Op::Create(wanted) => {
                let begun = create_container::begin(&self.cx.node, &self.pod, wanted);
                let begun = Arc::new(begun);
                self.pod.insert(Arc::clone(&begun));
                Some(begun)
            }
            _ => container,
        };
        // Here and not in the step, because a removal may arrive next and shorten it.
        if let (Op::Stop { grace }, Some(container)) = (&op, &container) {
            container.grace.begin(*grace);
        }
        let subject = event_log::subject(&self.pod, container.as_deref());
        let (log, unsynced) = (self.cx.notices.log.clone(), self.cx.node.unsynced.clone());
        let step = step(&self.cx, &self.pod, container.clone(), op.clone());
        // State that is reported to a caller is on disk first, also that of a failure (CRI-811).
        let step = async move {
            let done = step.await;
            let synced = unsynced.sync().await;
            done.and(synced.map_err(Error::from))
        };
        let span = reply.span.clone();
        let task = match op.rpc() {
            Some(call) => self.tasks.spawn(
                span.scope(async move { event_log::during(call, &log, subject, step).await }),
            ),
            None => self.tasks.spawn(span.scope(step)),
        };
        let running = Running {
            op,
            container,
            reply,
        };
        self.running.insert(task.id(), running);
    }

    /// Returns true when the pod has been removed.
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
        let Some(running) = self.running.remove(&task) else {
            return false;
        };
        let id = running.container.as_ref().map_or(&self.pod.id, |of| &of.id);
        running.reply.send(result.map(|()| id.clone()));
        // A plugin's error does not keep a pod that is removed, or undone by recovery.
        matches!(running.op, Op::RemovePod | Op::RecoverPod)
            && self.cx.registry.any(&self.pod.id).is_none()
    }
}

/// The step of an operation.
fn step(cx: &Arc<Pods>, pod: &Arc<Pod>, container: Option<Arc<Container>>, op: Op) -> StepFuture {
    let (cx, pod) = (Arc::clone(cx), Arc::clone(pod));
    match (op, container) {
        (Op::StopPod, _) => Box::pin(async move { stop_pod_sandbox::run(&cx, &pod).await }),
        (Op::RemovePod, _) => Box::pin(async move { remove_pod_sandbox::run(&cx, &pod).await }),
        (Op::UpdatePod(request), _) => {
            Box::pin(async move { update_pod_sandbox_resources::run(&cx, &pod, &request).await })
        }
        (Op::RecoverPod, _) => {
            let found = cx.recovering.token();
            Box::pin(async move { recover_pod::run(&cx, &pod, found).await })
        }
        (Op::Recover(look), Some(container)) => {
            let found = cx.recovering.token();
            Box::pin(
                async move { recover_container::run(&cx, &pod, &container, look, found).await },
            )
        }
        (Op::Create(wanted), Some(container)) => {
            Box::pin(async move { create_container::run(&cx, &pod, &container, &wanted).await })
        }
        (Op::Start, Some(container)) => {
            Box::pin(async move { start_container::run(&cx, &pod, &container).await })
        }
        (Op::Stop { grace }, Some(container)) => {
            Box::pin(async move { stop_container::run(&cx, &pod, &container, grace).await })
        }
        (Op::Update(wanted), Some(container)) => Box::pin(async move {
            update_container_resources::run(&cx, &pod, &container, &wanted).await
        }),
        (Op::Remove, Some(container)) => {
            Box::pin(async move { remove_container::run(&cx, &pod, &container).await })
        }
        (Op::Exited(ending), Some(container)) => {
            Box::pin(async move { container_exit::exited(&cx, &pod, &container, ending).await })
        }
        // Admission has answered these.
        (op, None) => Box::pin(async move { op.on_absent(&pod.id) }),
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

//! One plugin of the plan: frames and bytes over an in-memory socket, connection after connection.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use nri::{
    RUNTIME_API,
    mask::event_named,
    proto::{
        ConfigureResponse, Event, RegisterPluginRequest, StopContainerRequest, SynchronizeRequest,
        SynchronizeResponse, ValidateContainerAdjustmentResponse,
    },
    sim::{self, Memory, Rng},
    wire::frame::{self, Reader, Request, Response, Status, TO_RUNTIME},
};
use prost::Message;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};

use crate::{plan::PluginPlan, world::World};

const DEADLINE_EXCEEDED: i32 = 4;
const UNKNOWN: i32 = 2;

/// The answer to a call.
enum Answer {
    Reply(Vec<u8>),
    Refusal,
    /// The process ends.
    Crash,
}

struct Instance {
    no: usize,
    plan: PluginPlan,
    world: Arc<World>,
    socket: Memory,
    rng: Mutex<Rng>,
    crashed: Notify,
}

/// Connects as often as the plan requires.
pub(crate) async fn live(world: Arc<World>, plan: PluginPlan) {
    let rng = &mut Rng::new(plan.seed);
    let (again, back) = plan.again;
    for _ in 0..=again {
        let mut link = plan.link;
        link.seed = rng.draw();
        let socket = loop {
            if let Some(socket) = world.connect(link) {
                break socket;
            }
            sleep(Duration::from_millis(back)).await;
        };
        let instance = Arc::new(Instance {
            no: world.book.connects(&plan),
            plan: plan.clone(),
            world: world.clone(),
            socket,
            rng: Mutex::new(Rng::new(rng.draw())),
            crashed: Notify::new(),
        });
        let lives = Duration::from_millis(plan.lives);
        tokio::select! {
            biased;
            () = instance.crashed.notified() => {}
            () = instance.serve() => world.dismissed(instance.no),
            () = sleep(lives) => {}
            () = world.over.notified() => {}
        }
        instance.socket.shutdown();
        world.book.ended(instance.no);
        sleep(Duration::from_millis(back)).await;
    }
}

impl Instance {
    /// Reads to the end of the connection.
    async fn serve(self: &Arc<Self>) {
        let (index, name) = (&self.plan.id.index, &self.plan.id.name);
        let register = RegisterPluginRequest {
            plugin_name: name.clone(),
            plugin_idx: index.clone(),
            nri_version: String::new(),
        };
        let request = Request {
            service: RUNTIME_API.to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: register.encode_to_vec(),
            ..Request::default()
        };
        self.send(&frame::Message::call(TO_RUNTIME, 1, &request));
        let (mut reader, mut buffer) = (Reader::default(), vec![0; 4096]);
        loop {
            self.socket.readable().await;
            let read = match self.socket.try_read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => read,
                Err(_) => continue,
            };
            for message in reader.push(&buffer[..read]).unwrap() {
                if message.is_request() {
                    sim::spawn_in(0, self.clone().handle(message));
                }
            }
        }
    }

    fn send(&self, message: &frame::Message) {
        let bytes = message.frames();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match self.socket.try_write(rest) {
                Ok(written) => rest = &rest[written..],
                // The connection has ended.
                Err(_) => return,
            }
        }
    }

    async fn handle(self: Arc<Self>, call: frame::Message) {
        let request = call.request().unwrap();
        let limit = Duration::from_nanos(request.timeout_nano.unsigned_abs());
        let deadline = Instant::now() + limit;
        let work = self.work(&request.method, &request.payload);
        let answer = if self.plan.goes_on {
            Some(work.await)
        } else {
            timeout_at(deadline, work).await.ok()
        };
        let (status, payload) = match answer {
            Some(Answer::Reply(payload)) => (None, payload),
            Some(Answer::Refusal) => (Some((UNKNOWN, "no")), Vec::new()),
            Some(Answer::Crash) => return self.crashed.notify_one(),
            None => (Some((DEADLINE_EXCEEDED, "timeout")), Vec::new()),
        };
        let status = status.map(|(code, message)| Status {
            code,
            message: message.to_owned(),
        });
        self.send(&call.answer(&Response { status, payload }));
    }

    async fn work(self: &Arc<Self>, method: &str, payload: &[u8]) -> Answer {
        let book = &self.world.book;
        match (method, event_named(method)) {
            ("Configure", _) => {
                book.configured(self.no);
                let answer = ConfigureResponse {
                    events: self.plan.mask.to_wire(),
                    failure_policy: None,
                };
                Answer::Reply(answer.encode_to_vec())
            }
            ("Synchronize", _) => {
                let all = SynchronizeRequest::decode(payload).unwrap();
                let pods = all.pods.into_iter().map(|pod| pod.id);
                let containers = all.containers.into_iter().map(|container| container.id);
                book.listed(self.no, pods.chain(containers).collect::<BTreeSet<_>>());
                sleep(Duration::from_millis(self.plan.synchronize)).await;
                book.synchronized(self.no);
                Answer::Reply(SynchronizeResponse::default().encode_to_vec())
            }
            (_, Some(event)) => {
                // Every event has these first two fields.
                let about = StopContainerRequest::decode(payload).unwrap();
                let object = match about.container {
                    Some(container) => container.id,
                    None => about.pod.unwrap_or_default().id,
                };
                let nth = book.arrives(self.no, event, &object);
                let mut answered = Answered(self, nth, false);
                let answer = self.event(event).await;
                answered.2 = matches!(answer, Answer::Reply(_));
                answer
            }
            _ => Answer::Reply(Vec::new()),
        }
    }

    async fn event(&self, event: Event) -> Answer {
        let (work, crashes, refuses) = {
            let mut rng = self.rng.lock().unwrap();
            let work = rng.below(self.plan.work + 1);
            let crash = self
                .plan
                .crash
                .filter(|(at, _, times)| *at == event && rng.once_in(*times));
            let refuses = self.plan.refuses.is_some_and(|times| rng.once_in(times));
            (work, crash, refuses)
        };
        if let Some((_, after, _)) = crashes {
            sleep(Duration::from_millis(after)).await;
            return Answer::Crash;
        }
        let slow = self.plan.slow.filter(|(at, _)| *at == event);
        sleep(Duration::from_millis(slow.map_or(work, |(_, slow)| slow))).await;
        match event {
            Event::RunPodSandbox | Event::CreateContainer | Event::StartContainer if refuses => {
                Answer::Refusal
            }
            Event::ValidateContainerAdjustment => {
                let answer = ValidateContainerAdjustmentResponse {
                    reject: refuses,
                    ..Default::default()
                };
                Answer::Reply(answer.encode_to_vec())
            }
            _ => Answer::Reply(Vec::new()),
        }
    }
}

/// An event in progress. It counts as answered even if its task is dropped.
struct Answered<'a>(&'a Instance, usize, bool);

impl Drop for Answered<'_> {
    fn drop(&mut self) {
        self.0.world.book.answers(self.0.no, self.1, self.2);
    }
}

//! A whole connection: a fuzzed plugin's bytes against the code that serves plugins, over a socket, on
//! a clock that goes on only when nothing else can. Whatever the plugin does, every operation ends
//! in time, the plugin beside it misses nothing, and nothing is left in the end.

use std::{collections::BTreeMap, pin::Pin, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prost::Message;
use proto_nri::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

use super::{
    check,
    clock::block_on,
    eyes::Eyes,
    input::Input,
    samples,
    script::{FLOOD, Step, steps},
};
use crate::{
    Adaptation, Handlers, PluginSettings, PluginState,
    adjust::Adjust,
    establish::{self, Origin},
    join,
    policy::Class,
    settings::{Settings, Timeouts},
    wire::event::HookRequest,
    wire::mux::{PLUGIN_SERVICE, RUNTIME_SERVICE, header},
    wire::version::Version,
};

/// The fuzzed plugin if it registers as it should, and the one beside it, which does all it should.
pub(super) const FUZZED: &str = "20-fuzzed";
const HONEST: &str = "90-honest";
/// Of an event at one plugin.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// No operation takes longer: CreateContainer asks the plugin twice, as one and as a validator.
const OPERATION: Duration = Duration::from_secs(5);
/// No connection takes longer to be in or out, and no script to be played.
const CONNECTION: Duration = Duration::from_secs(600);
/// The longest first frame of a message (NRI-110).
const FIRST_FRAME: usize = 4096;
const TTRPC_HEADER: usize = 10;
const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;

/// Input: see `script.rs`.
pub(super) fn run(data: &[u8]) {
    let mut input = Input(data);
    let policy = samples::connection_policy(input.byte());
    let script = steps(&mut input);
    block_on(async {
        let whole = timeout(CONNECTION * 2, Box::pin(whole(policy, script))).await;
        whole.expect("a plugin comes to an end");
    });
}

async fn whole(policy: crate::policy::PluginPolicy, script: Vec<Step>) {
    let (eyes, honest) = (Arc::new(Eyes::default()), Arc::new(Honest::default()));
    let settings = PluginSettings {
        policy,
        ..PluginSettings::default()
    };
    let settings = Settings {
        socket: None,
        plugin_dir: None,
        timeouts: Timeouts {
            request: REQUEST_TIMEOUT,
            ..Timeouts::default()
        },
        plugins: [(samples::plugin(FUZZED), settings)].into(),
        ..Settings::default()
    };
    let nri = Adaptation::builder("fuzzed", "1")
        .settings(settings)
        .source(eyes.clone())
        .observer(eyes.clone())
        .in_process(samples::plugin(HONEST), honest.handlers())
        .start()
        .await
        .expect("nothing can fail without a socket");
    let (ours, theirs) = UnixStream::pair().expect("sockets can be made");
    let plugin = tokio::spawn(Peer::new(theirs).play(script));
    let shared = (*nri.shared).clone();
    let session = tokio::spawn(async move {
        let origin = Origin::External { pid: None };
        if let Some(connected) = establish::establish(&shared, ours, origin).await {
            join::join_and_watch(shared, connected).await;
        }
    });
    let settled = timeout(CONNECTION, eyes.settled()).await;
    settled.expect("a plugin is in or out in time");
    Box::pin(life(&nri, &honest)).await;
    nri.shutdown("the end").await;
    session.await.expect("no panic in the session");
    plugin.await.expect("no panic in the plugin");
    let left = nri.plugins();
    let left = left.iter().find(|plugin| {
        let there = matches!(plugin.state, PluginState::Active | PluginState::Joining);
        there && plugin.id.to_string() != HONEST
    });
    assert!(left.is_none(), "left: {left:?}");
}

/// A pod's whole life. What cannot be vetoed must reach the honest plugin, each event once, in order.
async fn life(nri: &Adaptation, honest: &Honest) {
    let pod = || samples::pod(samples::POD);
    let container = || samples::small_container(samples::CONTAINER);
    let resources = LinuxResources::default;
    let mut sent = Vec::new();
    if within(Box::pin(nri.run_pod_sandbox(pod()))).await.is_ok() {
        if Box::pin(with_container(nri, &mut sent)).await {
            let update = nri.update_pod_sandbox(pod(), resources(), resources());
            if within(Box::pin(update)).await.is_ok() {
                within(Box::pin(nri.post_update_pod_sandbox(pod()))).await;
                sent.push(Event::PostUpdatePodSandbox);
            }
        }
        let turn = within(Box::pin(nri.turn())).await;
        let stopped = within(Box::pin(nri.stop_container(&turn, pod(), container()))).await;
        check::updates(&stopped.merged.update, &stopped.merged.owners);
        drop(turn);
        within(Box::pin(nri.remove_container(pod(), container()))).await;
        sent.extend([Event::StopContainer, Event::RemoveContainer]);
    }
    within(Box::pin(nri.stop_pod_sandbox(pod()))).await;
    within(Box::pin(nri.remove_pod_sandbox(pod()))).await;
    sent.extend([Event::StopPodSandbox, Event::RemovePodSandbox]);
    assert_eq!(honest.heard(), sent);
}

/// From creation to the last update; false at the first veto.
async fn with_container(nri: &Adaptation, sent: &mut Vec<Event>) -> bool {
    let pod = || samples::pod(samples::POD);
    let container = || samples::small_container(samples::CONTAINER);
    let turn = within(Box::pin(nri.turn())).await;
    let created = within(Box::pin(nri.create_container(&turn, pod(), container()))).await;
    drop(turn);
    let Ok(created) = created else {
        return false;
    };
    check::updates(&created.merged.update, &created.merged.owners);
    within(Box::pin(nri.post_create_container(pod(), container()))).await;
    sent.push(Event::PostCreateContainer);
    if within(Box::pin(nri.start_container(pod(), container())))
        .await
        .is_err()
    {
        return false;
    }
    within(Box::pin(nri.post_start_container(pod(), container()))).await;
    sent.push(Event::PostStartContainer);
    let turn = within(Box::pin(nri.turn())).await;
    let updated = nri.update_container(&turn, pod(), container(), LinuxResources::default());
    let updated = within(Box::pin(updated)).await;
    drop(turn);
    let Ok(updated) = updated else {
        return false;
    };
    check::updates(&updated.merged.others, &updated.merged.owners);
    within(Box::pin(nri.post_update_container(pod(), container()))).await;
    sent.push(Event::PostUpdateContainer);
    true
}

/// In a box: an operation holds whole messages, and a test's thread has a small stack.
async fn within<T>(operation: Pin<Box<impl Future<Output = T>>>) -> T {
    let done = timeout(OPERATION, operation).await;
    done.expect("an operation ends in time")
}

/// The plugin beside the fuzzed one.
#[derive(Default)]
struct Honest(Mutex<Vec<Event>>);

impl Honest {
    fn handlers(self: &Arc<Self>) -> Handlers {
        let mut handlers = Handlers::new();
        macro_rules! hear {
            ($($request:ident),*) => {
                $(let this = self.clone();
                handlers = handlers.on(move |_: $request| {
                    this.hear($request::EVENT);
                    async { Ok(Default::default()) }
                });)*
            };
        }
        hear!(
            RunPodSandboxRequest,
            UpdatePodSandboxRequest,
            PostUpdatePodSandboxRequest,
            StopPodSandboxRequest,
            RemovePodSandboxRequest,
            PostCreateContainerRequest,
            StartContainerRequest,
            PostStartContainerRequest,
            UpdateContainerRequest,
            PostUpdateContainerRequest,
            StopContainerRequest,
            RemoveContainerRequest
        );
        handlers.create_container(|_, _| async {
            let mut adjust = ContainerAdjustment::default();
            adjust.add_annotation("honest", "yes");
            Ok((Some(adjust), Vec::new()))
        })
    }

    fn hear(&self, event: Event) {
        let mut heard = self.0.lock();
        heard.push(event);
    }

    /// The events that nobody may veto, in order.
    fn heard(&self) -> Vec<Event> {
        let heard = self.0.lock();
        let sure = |e: &&Event| matches!(Class::of(**e), Class::Teardown | Class::Notification);
        heard.iter().filter(sure).copied().collect()
    }
}

/// The envelope of a request, with numbers of the specification (1.4).
#[derive(Clone, PartialEq, Message)]
pub(super) struct Request {
    #[prost(string, tag = "1")]
    pub(super) service: String,
    #[prost(string, tag = "2")]
    pub(super) method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) payload: Vec<u8>,
    #[prost(int64, tag = "4")]
    pub(super) timeout_nano: i64,
}

/// The envelope of an answer.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Response {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<Refusal>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) payload: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Refusal {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

/// A ttrpc message with a sound header.
pub(super) fn message(stream: u32, kind: u8, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("a short message");
    let mut message = len.to_be_bytes().to_vec();
    message.extend(stream.to_be_bytes());
    message.extend([kind, 0]);
    message.extend(payload);
    message
}

/// The call that the first byte of a call step means: a version and a method, some not there.
fn called(what: u8) -> (String, &'static str) {
    let service = match what & 3 {
        0 | 1 => Version::V1Alpha1.runtime_service(),
        2 => Version::V1Beta1.runtime_service(),
        _ => "nri.pkg.api.v1.Runtime",
    };
    let methods = ["RegisterPlugin", "UpdateContainers", "Invented", ""];
    (service.to_owned(), methods[usize::from(what >> 2 & 3)])
}

/// Length with its header, stream and type of the message that begins here, once its header is there.
fn head(bytes: &[u8]) -> Option<(usize, u32, u8)> {
    let (head, _) = bytes.split_first_chunk::<TTRPC_HEADER>()?;
    let word = |n: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| head[n + i]));
    Some((word(0) as usize + TTRPC_HEADER, word(4), head[8]))
}

/// The plugin's end of the connection.
struct Peer {
    stream: UnixStream,
    /// The last request of the runtime.
    asked: u32,
    /// Ours to it.
    next: u32,
    /// What came on each logical connection and is no whole message yet, or not asked for.
    came: BTreeMap<u32, Vec<u8>>,
}

impl Peer {
    fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            asked: 0,
            next: 1,
            came: BTreeMap::new(),
        }
    }

    /// Plays the script and hangs up. Errors of writing are the runtime's way to say that it has
    /// heard enough.
    async fn play(mut self, script: Vec<Step>) {
        for step in script {
            match step {
                Step::Trunk(bytes) => drop(self.stream.write_all(&bytes).await),
                Step::ToClient(bytes) => self.frame(PLUGIN_SERVICE, &bytes).await,
                Step::ToServer(bytes) => self.frame(RUNTIME_SERVICE, &bytes).await,
                Step::Await => self.next_request().await,
                Step::Reply(payload) => self.reply(None, payload).await,
                Step::Envelope(envelope) => self.envelope(&envelope).await,
                Step::Error(code, message) => {
                    let code = code.into();
                    self.reply(Some(Refusal { code, message }), Vec::new())
                        .await;
                }
                Step::Call(what, payload) => self.call(what, payload).await,
                Step::Pause(time) => tokio::time::sleep(time).await,
                Step::Flood(bytes) => {
                    for _ in 0..FLOOD {
                        self.frame(RUNTIME_SERVICE, &bytes).await;
                    }
                }
                Step::Stay => while self.read().await.is_some() {},
            }
        }
    }

    async fn reply(&mut self, status: Option<Refusal>, payload: Vec<u8>) {
        let response = Response { status, payload };
        self.envelope(&response.encode_to_vec()).await;
    }

    async fn envelope(&mut self, envelope: &[u8]) {
        let reply = message(self.asked, RESPONSE, envelope);
        self.frame(PLUGIN_SERVICE, &reply).await;
    }

    async fn frame(&mut self, conn: u32, bytes: &[u8]) {
        let frame = [header(conn, bytes.len()).as_slice(), bytes].concat();
        let _ = self.stream.write_all(&frame).await;
    }

    async fn call(&mut self, what: u8, payload: Vec<u8>) {
        let (service, method) = called(what);
        let request = Request {
            service,
            method: method.to_owned(),
            payload,
            timeout_nano: 0,
        };
        let request = message(self.next, REQUEST, &request.encode_to_vec());
        self.next = self.next.wrapping_add(2);
        self.frame(RUNTIME_SERVICE, &request).await;
    }

    /// Waits for a request, whose id must be odd and higher than any before (NRI-132, NRI-140).
    async fn next_request(&mut self) {
        while let Some((conn, stream, kind)) = self.read().await {
            if (conn, kind) == (PLUGIN_SERVICE, REQUEST) {
                assert!(stream > self.asked && stream % 2 == 1);
                self.asked = stream;
                return;
            }
        }
    }

    /// The next message, as connection, stream and type.
    async fn read(&mut self) -> Option<(u32, u32, u8)> {
        loop {
            for (conn, came) in &mut self.came {
                let Some((len, stream, kind)) = head(came) else {
                    continue;
                };
                if came.len() >= len {
                    came.drain(..len);
                    return Some((*conn, stream, kind));
                }
            }
            let (conn, bytes) = self.read_frame().await?;
            let came = self.came.entry(conn).or_default();
            // A frame holds messages or parts of them, in any cut, but one that is longer than what a Go reader
            // takes at once is the very rest of a message that has begun (NRI-110).
            let rest = head(came).map(|(len, ..)| len - came.len());
            assert!(bytes.len() <= FIRST_FRAME || rest == Some(bytes.len()));
            came.extend(bytes);
        }
    }

    async fn read_frame(&mut self) -> Option<(u32, Vec<u8>)> {
        let conn = self.stream.read_u32().await.ok()?;
        let len = self.stream.read_u32().await.ok()?;
        let mut bytes = vec![0; len as usize];
        self.stream.read_exact(&mut bytes).await.ok()?;
        Some((conn, bytes))
    }
}

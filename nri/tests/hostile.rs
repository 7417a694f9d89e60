//! Plugins that break the rules, written with frames and bytes: each misbehaviour at each event. The
//! operation goes on as the policy says, in bounded time; the next plugin is told; nothing is left.

mod common;

use std::time::{Duration, Instant};

use common::{Place, Record, container, pod, until, until_active};
use nri::{Adaptation, Handlers, Outcome, PluginEvent, proto::*, stub::Stub};
use prost::Message;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    task::JoinHandle,
};

/// The envelope of ttrpc, as far as these tests need it.
#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(bytes = "vec", tag = "3")]
    payload: Vec<u8>,
    #[prost(int64, tag = "4")]
    timeout_nano: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(message, optional, tag = "1")]
    status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    payload: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

const RUNTIME: &str = "nri.pkg.api.v1alpha1.Runtime";
const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;
const DATA: u8 = 3;

/// A connection without any rules.
struct Raw {
    stream: UnixStream,
    next_id: u32,
}

/// A ttrpc message as it came.
struct Got {
    conn: u32,
    stream: u32,
    kind: u8,
    payload: Vec<u8>,
}

impl Raw {
    async fn connect(place: &Place) -> Self {
        Self {
            stream: UnixStream::connect(place.socket()).await.unwrap(),
            next_id: 1,
        }
    }

    async fn frame(&mut self, conn: u32, bytes: &[u8]) {
        let mut frame = conn.to_be_bytes().to_vec();
        frame.extend((bytes.len() as u32).to_be_bytes());
        frame.extend(bytes);
        // The other end may have had enough already.
        let _ = self.stream.write_all(&frame).await;
    }

    async fn message(&mut self, conn: u32, stream: u32, kind: u8, payload: &[u8]) {
        let mut message = (payload.len() as u32).to_be_bytes().to_vec();
        message.extend(stream.to_be_bytes());
        message.extend([kind, 0]);
        message.extend(payload);
        self.frame(conn, &message).await;
    }

    async fn request(&mut self, service: &str, method: &str, payload: Vec<u8>) {
        let request = Request {
            service: service.into(),
            method: method.into(),
            payload,
            timeout_nano: 0,
        };
        let id = self.next_id;
        self.next_id += 2;
        self.message(2, id, REQUEST, &request.encode_to_vec()).await;
    }

    async fn reply(&mut self, stream: u32, payload: Vec<u8>) {
        let status = None;
        let response = Response { status, payload }.encode_to_vec();
        self.message(1, stream, RESPONSE, &response).await;
    }

    /// The next message; our own runtime side sends it in one or two frames. `None` at the end.
    async fn read(&mut self) -> Option<Got> {
        let (conn, mut bytes) = self.read_frame().await?;
        let len = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
        while bytes.len() < len + 10 {
            let (_, more) = self.read_frame().await?;
            bytes.extend(more);
        }
        Some(Got {
            conn,
            stream: u32::from_be_bytes(bytes[4..8].try_into().unwrap()),
            kind: bytes[8],
            payload: bytes[10..].to_vec(),
        })
    }

    async fn read_frame(&mut self) -> Option<(u32, Vec<u8>)> {
        let conn = self.stream.read_u32().await.ok()?;
        let len = self.stream.read_u32().await.ok()?;
        let mut bytes = vec![0; len as usize];
        self.stream.read_exact(&mut bytes).await.ok()?;
        Some((conn, bytes))
    }

    async fn register(&mut self, index: &str, name: &str) {
        let request = RegisterPluginRequest {
            plugin_name: name.into(),
            plugin_idx: index.into(),
            nri_version: String::new(),
        };
        self.request(RUNTIME, "RegisterPlugin", request.encode_to_vec())
            .await;
    }

    /// Registers and asks for `events`; answers Synchronize. Then the first event is there.
    async fn first_event(&mut self, index: &str, name: &str, events: i32) -> Option<Got> {
        self.register(index, name).await;
        loop {
            let got = self.read().await?;
            if got.kind != REQUEST {
                continue;
            }
            let request = Request::decode(got.payload.as_slice()).unwrap();
            match request.method.as_str() {
                "Configure" => {
                    let answer = configured(events).encode_to_vec();
                    self.reply(got.stream, answer).await;
                }
                "Synchronize" => self.reply(got.stream, Vec::new()).await,
                _ => return Some(got),
            }
        }
    }

    /// The status of the next answer to one of our requests; 0 is OK.
    async fn status(&mut self) -> Option<i32> {
        loop {
            let got = self.read().await?;
            if got.conn == 2 && got.kind == RESPONSE {
                let response = Response::decode(got.payload.as_slice()).unwrap();
                return Some(response.status.map_or(0, |s| s.code));
            }
        }
    }

    async fn is_closed_by_peer(&mut self) -> bool {
        let drained = async { while self.read_frame().await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(3), drained)
            .await
            .is_ok()
    }
}

/// What a plugin does when its first event arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Misdeed {
    Error,
    Hang,
    Close,
    Garbage,
    DataFrame,
    HalfFrame,
    HugeFrame,
    HugeMessage,
    Flood,
    SecondRegistration,
    UnknownStreamThenAnswer,
    NeverReads,
}

impl Misdeed {
    async fn commit(self, mut raw: Raw, event: Got) {
        match self {
            Self::Error => {
                let status = Some(Status {
                    code: 2,
                    message: "it will not".into(),
                });
                let payload = Vec::new();
                let response = Response { status, payload }.encode_to_vec();
                raw.message(1, event.stream, RESPONSE, &response).await;
            }
            Self::Hang => while raw.read().await.is_some() {},
            Self::Close => return,
            Self::Garbage => raw.reply(event.stream, vec![0xff; 20]).await,
            // For nobody, which means nothing; then what would be a fine answer as a response.
            Self::DataFrame => {
                raw.message(1, event.stream + 1000, DATA, b"").await;
                let (status, payload) = (None, Vec::new());
                let response = Response { status, payload }.encode_to_vec();
                raw.message(1, event.stream, DATA, &response).await;
            }
            Self::HalfFrame => {
                let _ = raw
                    .stream
                    .write_all(&[0, 0, 0, 1, 0, 0, 0, 100, 1, 2, 3])
                    .await;
            }
            Self::HugeFrame => {
                let _ = raw
                    .stream
                    .write_all(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff])
                    .await;
            }
            Self::HugeMessage => {
                // A ttrpc header that promises 2 GiB, in a frame of its own.
                raw.frame(1, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 1, RESPONSE, 0])
                    .await;
            }
            Self::Flood => {
                // Requests without end, and no answer is read.
                let flood = async {
                    loop {
                        raw.request(RUNTIME, "UpdateContainers", vec![0; 2000])
                            .await;
                    }
                };
                let _ = tokio::time::timeout(Duration::from_secs(2), flood).await;
                return;
            }
            Self::SecondRegistration => {
                raw.register("77", "other").await;
                assert_eq!(raw.status().await, Some(9));
                raw.reply(event.stream, Vec::new()).await;
            }
            Self::UnknownStreamThenAnswer => {
                raw.reply(event.stream + 1000, vec![1, 2, 3]).await;
                raw.frame(9, b"for nobody").await;
                raw.frame(1, b"").await;
                raw.reply(event.stream, Vec::new()).await;
            }
            Self::NeverReads => {}
        }
        // Stay connected for as long as the runtime lets us; read nothing more.
        let mut end = [0; 1];
        if matches!(self, Self::Hang) {
            return;
        }
        if self == Self::NeverReads {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            return;
        }
        while raw.stream.read(&mut end).await.is_ok_and(|n| n > 0) {}
    }

    /// The plugin is still there afterwards.
    fn is_survived(self) -> bool {
        matches!(
            self,
            Self::Error | Self::SecondRegistration | Self::UnknownStreamThenAnswer
        )
    }

    fn expects(self, outcome: &Outcome) -> bool {
        match self {
            Self::Error => matches!(outcome, Outcome::Refused(_)),
            Self::Hang | Self::HalfFrame | Self::NeverReads => *outcome == Outcome::TimedOut,
            Self::Close | Self::HugeFrame => matches!(outcome, Outcome::Lost(_)),
            Self::Garbage | Self::DataFrame => matches!(outcome, Outcome::Garbled(_)),
            // Which of both is noticed first does not matter.
            Self::HugeMessage | Self::Flood => {
                matches!(outcome, Outcome::Lost(_) | Outcome::TimedOut)
            }
            Self::SecondRegistration | Self::UnknownStreamThenAnswer => {
                *outcome == Outcome::Answered
            }
        }
    }
}

async fn misbehaves(place: &Place, misdeed: Misdeed) -> JoinHandle<()> {
    let mut raw = Raw::connect(place).await;
    tokio::spawn(async move {
        if let Some(event) = raw.first_event("10", "bad", 0x1fff).await {
            misdeed.commit(raw, event).await;
        }
    })
}

/// Sends one event; gives what plugins said, and whether it went through.
async fn send(nri: &Adaptation, event: Event) -> (Vec<nri::Delivery>, bool) {
    let (p, c) = (pod("p"), container("c", "p"));
    let none = LinuxResources::default;
    let told = |r: Result<nri::Told, nri::Refused>| match r {
        Ok(told) => (told.deliveries, true),
        Err(refused) => (refused.deliveries, false),
    };
    match event {
        Event::RunPodSandbox => match nri.run_pod_sandbox(p).await {
            Ok(ran) => (ran.deliveries, true),
            Err(refused) => (refused.deliveries, false),
        },
        Event::UpdatePodSandbox => told(nri.update_pod_sandbox(p, none(), none()).await),
        Event::PostUpdatePodSandbox => told(Ok(nri.post_update_pod_sandbox(p).await)),
        Event::StopPodSandbox => told(Ok(nri.stop_pod_sandbox(p).await)),
        Event::RemovePodSandbox => told(Ok(nri.remove_pod_sandbox(p).await)),
        Event::CreateContainer => {
            let turn = nri.turn().await;
            match nri.create_container(&turn, p, c).await {
                Ok(created) => (created.deliveries, true),
                Err(refused) => (refused.deliveries, false),
            }
        }
        Event::PostCreateContainer => told(Ok(nri.post_create_container(p, c).await)),
        Event::StartContainer => told(nri.start_container(p, c).await),
        Event::PostStartContainer => told(Ok(nri.post_start_container(p, c).await)),
        Event::UpdateContainer => {
            let turn = nri.turn().await;
            match nri.update_container(&turn, p, c, none()).await {
                Ok(updated) => (updated.deliveries, true),
                Err(refused) => (refused.deliveries, false),
            }
        }
        Event::PostUpdateContainer => told(Ok(nri.post_update_container(p, c).await)),
        Event::StopContainer => {
            let turn = nri.turn().await;
            (nri.stop_container(&turn, p, c).await.deliveries, true)
        }
        Event::RemoveContainer => told(Ok(nri.remove_container(p, c).await)),
        _ => unreachable!("no test sends it"),
    }
}

fn configured(events: i32) -> ConfigureResponse {
    ConfigureResponse {
        events,
        failure_policy: None,
    }
}

fn may_veto(event: Event) -> bool {
    nri::policy::Class::of(event) == nri::policy::Class::Setup
}

/// One misdeed at each of the thirteen events.
async fn at_every_event(misdeed: Misdeed) {
    for (event, name) in nri::mask::EVENTS.into_iter().take(13) {
        let place = Place::new();
        let nri = place
            .builder()
            .request_timeout(Duration::from_millis(200) * common::patience())
            .start()
            .await
            .unwrap();
        let record = Record::default();
        let good = Stub::builder(record.handlers())
            .index("20")
            .name("good")
            .socket(place.socket());
        let mut good = good;
        let _good = good.start().await.unwrap();
        let bad = misbehaves(&place, misdeed).await;
        until_active(&nri, "10-bad").await;
        until_active(&nri, "20-good").await;

        let begun = Instant::now();
        let (deliveries, passed) = send(&nri, event).await;
        let case = format!("{misdeed:?} at {name}");
        assert!(
            begun.elapsed() < Duration::from_secs(1) * common::patience(),
            "{case} took {:?}",
            begun.elapsed()
        );
        let outcome = &deliveries
            .iter()
            .find(|d| d.plugin.name == "bad")
            .unwrap()
            .outcome;
        assert!(misdeed.expects(outcome), "{case}: {outcome:?}");
        let vetoed = misdeed == Misdeed::Error && may_veto(event);
        assert_eq!(passed, !vetoed, "{case}");
        let told = record
            .lines()
            .iter()
            .filter(|line| line.starts_with(name))
            .count();
        assert_eq!(told, usize::from(!vetoed), "{case}: the next plugin");
        if misdeed.is_survived() {
            assert_eq!(common::there(&nri).len(), 2, "{case}");
        } else {
            until(&format!("{case}: it is closed"), || {
                common::there(&nri).len() == 1
            })
            .await;
            assert!(
                place
                    .seen
                    .saw("10-bad", |e| matches!(e, PluginEvent::Closed { .. }))
            );
        }
        // Another pod's life is not touched.
        nri.stop_pod_sandbox(pod("other")).await;
        assert_eq!(
            record.lines().last().unwrap(),
            "StopPodSandbox other",
            "{case}"
        );
        nri.shutdown("over").await;
        bad.abort();
        common::held(&case);
    }
}

macro_rules! misdeeds {
    ($($name:ident $misdeed:ident)*) => {
        $(#[tokio::test]
        async fn $name() {
            at_every_event(Misdeed::$misdeed).await;
        })*
    };
}

misdeeds! {
    a_plugin_that_fails_at_each_event Error
    a_plugin_that_hangs_at_each_event Hang
    a_plugin_that_closes_at_each_event Close
    a_plugin_that_answers_garbage_at_each_event Garbage
    a_plugin_that_answers_in_a_data_frame_at_each_event DataFrame
    a_plugin_that_sends_half_a_frame_at_each_event HalfFrame
    a_plugin_that_promises_a_huge_frame_at_each_event HugeFrame
    a_plugin_that_promises_a_huge_message_at_each_event HugeMessage
    a_plugin_that_floods_at_each_event Flood
    a_plugin_that_registers_again_at_each_event SecondRegistration
    a_plugin_that_answers_calls_nobody_made_at_each_event UnknownStreamThenAnswer
    a_plugin_that_never_reads_at_each_event NeverReads
}

const MISDEEDS: [Misdeed; 12] = [
    Misdeed::Error,
    Misdeed::Hang,
    Misdeed::Close,
    Misdeed::Garbage,
    Misdeed::DataFrame,
    Misdeed::HalfFrame,
    Misdeed::HugeFrame,
    Misdeed::HugeMessage,
    Misdeed::Flood,
    Misdeed::SecondRegistration,
    Misdeed::UnknownStreamThenAnswer,
    Misdeed::NeverReads,
];

/// None of them becomes active, and none holds the others up for longer than its timeouts.
async fn before_it_is_active(method: &'static str) {
    for misdeed in MISDEEDS {
        let place = Place::new();
        let nri = place
            .builder()
            .request_timeout(Duration::from_millis(200) * common::patience())
            .sync_timeout(Duration::from_millis(200) * common::patience())
            .start()
            .await
            .unwrap();
        let record = Record::default();
        let mut good = Stub::builder(record.handlers())
            .index("20")
            .name("good")
            .socket(place.socket());
        let _good = good.start().await.unwrap();
        until_active(&nri, "20-good").await;
        let mut raw = Raw::connect(&place).await;
        let (begin, begun) = tokio::sync::oneshot::channel();
        let bad = tokio::spawn(async move {
            raw.register("10", "bad").await;
            while let Some(got) = raw.read().await {
                if got.kind != REQUEST {
                    continue;
                }
                let request = Request::decode(got.payload.as_slice()).unwrap();
                if request.method == method {
                    begin.send(()).unwrap();
                    return misdeed.commit(raw, got).await;
                }
                raw.reply(got.stream, Vec::new()).await;
            }
        });
        let case = format!("{misdeed:?} at {method}");
        begun
            .await
            .unwrap_or_else(|_| panic!("{case}: it is never asked"));
        let begun = Instant::now();
        nri.run_pod_sandbox(pod("p")).await.unwrap();
        assert!(
            begun.elapsed() < Duration::from_secs(1) * common::patience(),
            "{case} took {:?}",
            begun.elapsed()
        );
        assert_eq!(record.lines().last().unwrap(), "RunPodSandbox p", "{case}");
        // Two of them do answer, whatever else they do.
        let answers = misdeed.is_survived() && misdeed != Misdeed::Error;
        until(&format!("{case}: it is rejected"), || {
            let seen = place.seen.plugins.lock().unwrap();
            let end = |e: &PluginEvent| {
                matches!(e, PluginEvent::Rejected { .. } | PluginEvent::Closed { .. })
            };
            seen.iter().any(|(_, e)| end(e)) || answers
        })
        .await;
        if !answers {
            assert_eq!(common::there(&nri).len(), 1, "{case}");
        }
        nri.shutdown("over").await;
        bad.abort();
        common::held(&case);
    }
}

#[tokio::test]
async fn a_plugin_that_misbehaves_at_configure_is_left_out() {
    before_it_is_active("Configure").await;
}

#[tokio::test]
async fn a_plugin_that_misbehaves_at_synchronize_is_left_out() {
    before_it_is_active("Synchronize").await;
}

#[tokio::test]
async fn a_bad_identity_is_refused_with_a_reason_and_the_connection_closes() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let bad = [
        ("1", "a"),
        ("1a", "a"),
        ("100", "a"),
        ("", "a"),
        ("10", "foo,bar"),
        ("10", ""),
    ];
    for (index, name) in bad {
        let mut raw = Raw::connect(&place).await;
        raw.register(index, name).await;
        assert_eq!(raw.status().await, Some(3), "{index}-{name}");
        assert!(raw.is_closed_by_peer().await, "{index}-{name}");
    }
    let mut good = Stub::builder(Record::default().handlers())
        .index("10")
        .name("abcd-0123+EFGH_4567.ijkl")
        .socket(place.socket());
    let _stub = good.start().await.unwrap();
    until_active(&nri, "10-abcd-0123+EFGH_4567.ijkl").await;
}

#[tokio::test]
async fn what_a_plugin_says_of_itself_is_told_in_one_short_line() {
    let place = Place::new();
    let _nri = place.builder().start().await.unwrap();
    let long = "\u{1}\n".repeat(500_000);
    let mut bad = Raw::connect(&place).await;
    bad.register("10", &long).await;
    assert_eq!(bad.status().await, Some(3));
    let mut good = Raw::connect(&place).await;
    let request = RegisterPluginRequest {
        plugin_name: "good".into(),
        plugin_idx: "10".into(),
        nri_version: long,
    };
    good.request(RUNTIME, "RegisterPlugin", request.encode_to_vec())
        .await;
    let short = |text: &str| text.len() < 10_000 && !text.contains(char::is_control);
    until("both are told", || {
        let refused = |e: &PluginEvent| matches!(e, PluginEvent::Rejected { reason } if short(reason));
        let known = |e: &PluginEvent| matches!(e, PluginEvent::Registered { nri_version, .. } if short(nri_version));
        place.seen.saw("??", refused) && place.seen.saw("10-good", known)
    })
    .await;
}

#[tokio::test]
async fn our_stub_learns_why_it_was_refused() {
    let place = Place::new();
    let _nri = place
        .builder()
        .in_process("10-mine".parse().unwrap(), Record::default().handlers())
        .start()
        .await
        .unwrap();
    let mut thief = Stub::builder(Record::default().handlers())
        .index("10")
        .name("mine")
        .socket(place.socket());
    let refused = thief.start().await.unwrap_err().to_string();
    assert!(
        refused.contains("10-mine is an in-process plugin of the runtime"),
        "{refused}"
    );
}

#[tokio::test]
async fn updates_before_the_plugin_is_active_are_refused() {
    let place = Place::new();
    let _nri = place.builder().start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    raw.request(RUNTIME, "UpdateContainers", Vec::new()).await;
    assert_eq!(raw.status().await, Some(9));
    raw.request(RUNTIME, "Invented", Vec::new()).await;
    assert_eq!(raw.status().await, Some(12));
}

#[tokio::test]
async fn updates_through_the_other_version_are_refused() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    let event = tokio::spawn(async move {
        let event = raw.first_event("10", "two-faced", 0).await;
        (raw, event)
    });
    until_active(&nri, "10-two-faced").await;
    let told = tokio::spawn(async move { nri.stop_pod_sandbox(pod("p")).await });
    let (mut raw, event) = event.await.unwrap();
    raw.request(
        "nri.pkg.api.v1beta1.Runtime",
        "UpdateContainers",
        Vec::new(),
    )
    .await;
    assert_eq!(raw.status().await, Some(9));
    raw.request(RUNTIME, "UpdateContainers", Vec::new()).await;
    assert_eq!(raw.status().await, Some(0));
    raw.reply(event.unwrap().stream, Vec::new()).await;
    assert_eq!(told.await.unwrap().deliveries[0].outcome, Outcome::Answered);
}

#[tokio::test]
async fn events_that_do_not_exist_are_refused() {
    for events in [1 << 14, 1 << 30, i32::MIN, -1] {
        let place = Place::new();
        let nri = place.builder().start().await.unwrap();
        let mut raw = Raw::connect(&place).await;
        // It hears of Shutdown as of an event, and then the end.
        raw.first_event("10", "odd", events).await;
        assert!(raw.is_closed_by_peer().await, "{events:#x}");
        assert!(common::there(&nri).is_empty());
    }
}

/// Data messages belong to no call of ours; ttrpc answers each with an error. The answers must not pile
/// up behind a peer that reads just enough not to be taken for dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_floods_with_data_and_hardly_reads_is_cut_off() {
    const DATA: u8 = 3;
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    raw.register("10", "flood").await;
    for answer in [configured(1).encode_to_vec(), Vec::new()] {
        let mut got = raw.read().await.unwrap();
        while got.kind != REQUEST {
            got = raw.read().await.unwrap();
        }
        raw.reply(got.stream, answer).await;
    }
    until_active(&nri, "10-flood").await;
    const PAYLOAD: u32 = 400;
    let mut message = [2, PAYLOAD + 10, PAYLOAD, 99]
        .map(u32::to_be_bytes)
        .concat();
    message.extend([DATA, 0]);
    message.resize(message.len() + PAYLOAD as usize, 0);
    // No more at a time than is taken in: only the answers are slow.
    let messages = message.repeat(1000);
    let (mut from, mut to) = raw.stream.into_split();
    let sipping = tokio::spawn(async move {
        let mut sip = [0; 16384];
        while from.read(&mut sip).await.is_ok_and(|n| n > 0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let flood = async {
        while to.write_all(&messages).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let cut_off = tokio::time::timeout(Duration::from_secs(10), flood).await;
    assert!(cut_off.is_ok(), "it may go on for ever");
    let overflow = |e: &PluginEvent| matches!(e, PluginEvent::Closed { reason } if reason.contains("unread bytes"));
    until("its end is told, with the reason", || {
        place.seen.saw("10-flood", overflow)
    })
    .await;
    sipping.abort();
}

#[tokio::test]
async fn a_silent_client_holds_nobody_up() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let _silent = Raw::connect(&place).await;
    let begun = Instant::now();
    let mut good = Stub::builder(Record::default().handlers())
        .index("10")
        .name("good")
        .socket(place.socket());
    let _stub = good.start().await.unwrap();
    until_active(&nri, "10-good").await;
    assert!(begun.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn a_flood_of_connections_is_bounded_and_over_with_the_registration_timeout() {
    let place = Place::new();
    let limit = Duration::from_millis(500);
    let nri = place
        .builder()
        .registration_timeout(limit)
        .start()
        .await
        .unwrap();
    let mut flood = Vec::new();
    for _ in 0..100 {
        flood.push(Raw::connect(&place).await);
    }
    until("those beyond the bound are turned away", || {
        let seen = place.seen.plugins.lock().unwrap();
        let away = |e: &PluginEvent| matches!(e, PluginEvent::Rejected { reason } if reason.contains("have not registered"));
        seen.iter().filter(|(_, e)| away(e)).count() == 36
    })
    .await;
    let good = Stub::builder(Record::default().handlers())
        .index("10")
        .name("good")
        .socket(place.socket())
        .reconnect(true);
    let running = tokio::spawn(good.run());
    until_active(&nri, "10-good").await;
    running.abort();
}

#[tokio::test]
async fn a_user_who_may_not_connect_is_turned_away() {
    let place = Place::new();
    let settings = nri::Settings {
        socket: Some(place.socket()),
        plugin_dir: None,
        allowed_uids: vec![4_000_000_000],
        ..Default::default()
    };
    let nri = place.builder().settings(settings).start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    assert!(raw.is_closed_by_peer().await);
    assert!(common::there(&nri).is_empty());
}

#[tokio::test]
async fn a_plugin_that_does_not_read_a_large_message_is_closed_and_blocks_nobody() {
    let place = Place::new();
    let nri = place
        .builder()
        .request_timeout(Duration::from_millis(300) * common::patience())
        .start()
        .await
        .unwrap();
    let record = Record::default();
    let mut good = Stub::builder(record.handlers())
        .index("20")
        .name("good")
        .socket(place.socket());
    let _good = good.start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    let deaf = tokio::spawn(async move {
        // Takes part until it is in, and then never reads again.
        raw.register("10", "deaf").await;
        for _ in 0..3 {
            let got = raw.read().await.unwrap();
            if got.kind == REQUEST {
                raw.reply(got.stream, Vec::new()).await;
            }
        }
        raw
    });
    until_active(&nri, "10-deaf").await;
    let _raw = deaf.await.unwrap();
    let mut big = container("c", "p");
    big.annotations.insert("pad".into(), "x".repeat(3 << 20));
    let begun = Instant::now();
    nri.start_container(pod("p"), big).await.unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(1) * common::patience(),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(record.lines().last().unwrap(), "StartContainer p c");
    until("it is closed", || common::there(&nri).len() == 1).await;
}

#[tokio::test]
async fn a_container_too_big_for_a_message_is_refused_with_its_size() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let mut stub =
        Stub::builder(Handlers::new().create_container(|_, _| async { Ok((None, Vec::new())) }))
            .index("10")
            .name("a")
            .socket(place.socket());
    let _stub = stub.start().await.unwrap();
    until_active(&nri, "10-a").await;
    let mut big = container("c", "p");
    big.env.push("x".repeat(5 << 20));
    let turn = nri.turn().await;
    let refused = nri
        .create_container(&turn, pod("p"), big)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("10-a") && refused.contains("bytes"),
        "{refused}"
    );
    assert!(refused.len() < 500, "it carries the container");
    // The plugin is not to blame.
    assert_eq!(common::there(&nri).len(), 1);
}

/// More than a message may have, in frames that may be.
async fn too_long(raw: &mut Raw, conn: u32, stream: u32, kind: u8) {
    let length: u32 = (4 << 20) + 1;
    let mut header = length.to_be_bytes().to_vec();
    header.extend(stream.to_be_bytes());
    header.extend([kind, 0]);
    raw.frame(conn, &header).await;
    raw.frame(conn, &vec![0; 1 << 20]).await;
    raw.frame(conn, &vec![0; length as usize - (1 << 20)]).await;
}

#[tokio::test]
async fn a_request_that_is_too_long_is_refused_as_go_does_and_the_connection_stays() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    too_long(&mut raw, 2, 1, REQUEST).await;
    assert_eq!(raw.status().await, Some(8), "RESOURCE_EXHAUSTED");
    raw.next_id = 3;
    let life = tokio::spawn(async move { raw.first_event("10", "verbose", 0).await });
    until_active(&nri, "10-verbose").await;
    nri.shutdown("over").await;
    life.await.unwrap();
}

#[tokio::test]
async fn an_answer_that_is_too_long_is_an_error_with_its_size_and_the_plugin_stays() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    let life = tokio::spawn(async move {
        let event = raw.first_event("10", "verbose", 0).await.unwrap();
        too_long(&mut raw, 1, event.stream, RESPONSE).await;
        let event = raw.read().await.unwrap();
        raw.reply(event.stream, Vec::new()).await;
        raw
    });
    until_active(&nri, "10-verbose").await;
    let refused = nri.start_container(pod("p"), container("c", "p")).await;
    let refused = refused.unwrap_err();
    let Outcome::Refused(status) = &refused.deliveries[0].outcome else {
        panic!("{refused:?}");
    };
    assert!(status.is(nri::Code::ResourceExhausted), "{status:?}");
    assert!(status.message.contains("4194305"), "{status}");
    nri.start_container(pod("p"), container("c", "p"))
        .await
        .expect("it is still there, and answers");
    let _raw = life.await.unwrap();
}

#[tokio::test]
async fn a_list_in_parts_that_the_plugin_does_not_take_closes_it() {
    let place = Place::new();
    let big = |n: usize| PodSandbox {
        annotations: [("pad".to_owned(), "x".repeat(2 << 20))].into(),
        ..pod(&format!("p{n}"))
    };
    place.runtime.all.lock().unwrap().pods = (0..4).map(big).collect();
    let nri = place.builder().start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    // Answers `more: false` to each part.
    raw.first_event("10", "old", 0).await;
    assert!(raw.is_closed_by_peer().await);
    assert!(common::there(&nri).is_empty());
    assert!(place.seen.saw("10-old", |e| matches!(
        e,
        PluginEvent::Rejected { reason } if reason.contains("in parts")
    )));
}

#[tokio::test]
async fn an_old_plugin_that_wants_everything_is_not_asked_for_what_it_does_not_know() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    let old = tokio::spawn(async move {
        let mut methods = Vec::new();
        let mut next = raw.first_event("10", "old", 0).await;
        while let Some(got) = next {
            let request = Request::decode(got.payload.as_slice()).unwrap();
            let known = ["StateChange", "CreateContainer"].contains(&request.method.as_str());
            let status = (!known).then(|| Status {
                code: 12,
                message: "no such method".into(),
            });
            methods.push(request.method);
            let payload = Vec::new();
            let response = Response { status, payload }.encode_to_vec();
            raw.message(1, got.stream, RESPONSE, &response).await;
            next = raw.read().await;
        }
        methods
    });
    until_active(&nri, "10-old").await;
    let none = LinuxResources::default;
    for _ in 0..2 {
        nri.update_pod_sandbox(pod("p"), none(), none())
            .await
            .unwrap();
        nri.run_pod_sandbox(pod("p")).await.unwrap();
        let turn = nri.turn().await;
        nri.create_container(&turn, pod("p"), container("c", "p"))
            .await
            .unwrap();
    }
    assert!(nri.plugins()[0].old_style);
    nri.shutdown("over").await;
    let methods = old.await.unwrap();
    let expected = [
        "UpdatePodSandbox",
        "RunPodSandbox",
        "StateChange",
        "CreateContainer",
        "ValidateContainerAdjustment",
        "StateChange",
        "CreateContainer",
        "Shutdown",
    ];
    assert_eq!(methods, expected);
    let deprecated = |e: &PluginEvent| matches!(e, PluginEvent::Deprecated { .. });
    let seen = place.seen.plugins.lock().unwrap();
    assert_eq!(seen.iter().filter(|(_, e)| deprecated(e)).count(), 1);
}

#[tokio::test]
async fn another_runtimes_socket_is_left_alone() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let second = place
        .builder()
        .start()
        .await
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(second.contains("in use by another runtime"), "{second}");
    nri.shutdown("over").await;
    until("the socket is gone", || !place.socket().exists()).await;
    // Something else in its place is not touched, a dead socket is.
    std::fs::write(place.socket(), "precious").unwrap();
    place.builder().start().await.map(|_| ()).unwrap_err();
    assert_eq!(std::fs::read(place.socket()).unwrap(), b"precious");
    std::fs::remove_file(place.socket()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(place.socket()).unwrap());
    place.builder().start().await.unwrap();
}

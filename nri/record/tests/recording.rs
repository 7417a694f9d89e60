//! Recordings: their secrets, and reading of damaged or malicious files.

use std::time::Duration;

use nri::{
    proto::*,
    wire::frame::{Message as Frame, Request, Response, TO_PLUGIN},
};
use nri_record::{
    About, RecordedConnection, Recorder, Recording, Side, What, is_recording, json, methods, read,
};
use proptest::prelude::*;
use prost::Message;

fn recording(calls: impl FnOnce(&RecordedConnection)) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("r.jsonl");
    let recorder =
        Recorder::create(&file, About::default(), |why| panic!("{why}")).expect("a file");
    let connection = recorder.connection();
    calls(&connection);
    drop(connection);
    assert!(!recorder.finish(Duration::from_secs(30)).incomplete);
    std::fs::read_to_string(file).expect("text")
}

fn call(id: u32, method: &str, payload: Vec<u8>) -> Frame {
    let request = Request {
        service: "nri.pkg.api.v1alpha1.Plugin".into(),
        method: method.into(),
        payload,
        ..Request::default()
    };
    Frame::call(TO_PLUGIN, id, &request)
}

fn answer(call: &Frame, payload: Vec<u8>) -> Frame {
    call.answer(&Response {
        status: None,
        payload,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_a_variable_has_as_its_value_is_not_in_the_file(
        name in "[A-Z_]{1,8}",
        // Marked, so that it differs from all other texts of the file.
        value in r#"#[\PC"\\=\n]{0,20}#"#,
    ) {
        let pair = || KeyValue { key: name.clone(), value: value.clone() };
        let hook = Hook { env: vec![format!("{name}={value}")], ..Default::default() };
        let adjust = ContainerAdjustment {
            env: vec![pair()],
            hooks: Some(Hooks { poststop: vec![hook], ..Default::default() }),
            ..Default::default()
        };
        let container = Container { env: vec![format!("{name}={value}"), value.clone()], ..Default::default() };
        let (create, validate) = (
            CreateContainerRequest { container: Some(container.clone()), ..Default::default() },
            ValidateContainerAdjustmentRequest {
                container: Some(container.clone()), adjust: Some(adjust.clone()), ..Default::default()
            },
        );
        let synchronize = SynchronizeRequest { containers: vec![container], ..Default::default() };
        let created = CreateContainerResponse { adjust: Some(adjust), ..Default::default() };
        // An invalid message: a text with a byte that is not UTF-8.
        let mut garbled = create.encode_to_vec();
        garbled.extend([0x0a, 0x03, 0x0a, 0x01, 0xff]);
        let text = recording(|connection| {
            for (id, (method, request)) in [
                ("CreateContainer", create.encode_to_vec()),
                ("ValidateContainerAdjustment", validate.encode_to_vec()),
                ("Synchronize", synchronize.encode_to_vec()),
                ("OfTomorrow", create.encode_to_vec()),
                ("CreateContainer", garbled),
            ].into_iter().enumerate() {
                let call = call(u32::try_from(id).expect("few"), method, request);
                connection.saw(Side::Runtime, &call.frames());
                connection.saw(Side::Plugin, &answer(&call, created.encode_to_vec()).frames());
            }
        });
        let escaped = serde_json::to_string(&value).expect("a text");
        prop_assert!(!text.contains(value.as_str()), "{text}");
        prop_assert!(!text.contains(escaped.trim_matches('"')), "{text}");
        prop_assert_eq!(text.lines().count(), 13);
    }

    #[test]
    fn what_is_read_is_a_recording_or_one_clear_line(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let file = [b"{\"nri-recording\":1,\"recorder\":\"r\",\"began\":\"\",\"env\":\"kept\"}\n".to_vec(), bytes].concat();
        if let Err(bad) = read(file.as_slice()) {
            prop_assert_eq!(bad.to_string().lines().count(), 1, "{}", bad);
        }
    }
}

/// Redaction and omission select fields by name: these names, in every message.
#[test]
fn the_fields_that_are_told_apart_by_name_are_those_of_the_protocol() {
    let proto = include_str!("../../../proto/nri/nri.proto");
    let field = |line: &str| -> Option<(String, String)> {
        let (declared, _) = line.trim().strip_suffix(';')?.split_once(" = ")?;
        let (kind, name) = declared.rsplit_once(' ')?;
        Some((kind.to_owned(), name.to_lowercase()))
    };
    let fields: Vec<_> = proto.lines().filter_map(field).collect();
    for (kind, name) in &fields {
        let (is_env, is_pair) = (name == "env", kind == "repeated KeyValue");
        assert!(!is_pair || is_env, "{kind} {name} may hold a variable");
        assert!(
            !is_env || is_pair || kind == "repeated string",
            "{kind} {name}"
        );
        if kind.starts_with("map<") {
            let mut message = serde_json::json!({ name: {"key": ""} });
            json::tidy(&mut message);
            assert_eq!(
                message,
                serde_json::json!({ name: {"key": ""} }),
                "a map {name}"
            );
        } else if kind != "OwningPlugins" {
            let mut message = serde_json::json!({ name: {"key": ""} });
            json::tidy(&mut message);
            assert_eq!(
                message,
                serde_json::json!({ name: {} }),
                "{kind} {name} is no map"
            );
        }
    }
    assert!(fields.len() > 200, "{} fields", fields.len());
    let calls = methods().len();
    assert_eq!(
        calls,
        14 + 6,
        "fourteen events; three controls, StateChange, and two of the runtime"
    );
}

/// A runtime of this library that records itself.
struct Nothing;

impl nri::Source for Nothing {
    fn snapshot(&self) -> nri::Snapshot {
        nri::Snapshot::default()
    }
    fn update(
        &self,
        _: &nri::Requester,
        updates: Vec<ContainerUpdate>,
    ) -> nri::BoxFuture<'_, Vec<nri::FailedUpdate>> {
        let failed = updates
            .into_iter()
            .map(|update| nri::FailedUpdate::new(update, "not supported"));
        Box::pin(std::future::ready(failed.collect()))
    }
    fn evict(
        &self,
        _: &nri::PluginId,
        _: String,
        _: String,
    ) -> nri::BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Err("not supported".into()) })
    }
}

#[tokio::test]
async fn a_runtime_that_records_itself_has_every_call_before_its_answer() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, socket) = (dir.path().join("r.jsonl"), dir.path().join("nri.sock"));
    let recorder =
        Recorder::create(&file, About::default(), |why| panic!("{why}")).expect("a file");
    let runtime = nri::Adaptation::builder("test", "1")
        .socket(&socket)
        .plugin_dir(dir.path().join("none"))
        .source(std::sync::Arc::new(Nothing))
        .watch({
            let recorder = recorder.clone();
            move || recorder.connection()
        })
        .start()
        .await
        .expect("a runtime");
    let handlers =
        nri::Handlers::new().run_pod_sandbox(|_| async { Err("not on my watch".into()) });
    let mut stub = nri::Stub::builder(handlers)
        .name("vetoes")
        .index("10")
        .socket(&socket);
    let stub = stub.register().await.expect("it joins");
    let calls = 100;
    for n in 0..calls {
        let pod = PodSandbox {
            id: format!("pod-{n}"),
            ..Default::default()
        };
        // The plugin gets events once it is active.
        while runtime.run_pod_sandbox(pod.clone()).await.is_ok() {
            tokio::task::yield_now().await;
        }
    }
    runtime.shutdown("over").await;
    drop(stub);
    let summary = recorder.finish(Duration::from_secs(30));
    assert!(!summary.incomplete && summary.dropped == 0, "{summary:?}");
    let text = std::fs::read_to_string(file).expect("text");
    let lines = read(text.as_bytes()).expect("a recording").lines;
    let mut open = std::collections::BTreeSet::new();
    let mut vetoes = 0;
    for line in &lines {
        match &line.what {
            What::Request { from, id, .. } => assert!(open.insert((*from, *id)), "{line:?}"),
            What::Answer {
                from, id, error, ..
            } => {
                let caller = if *from == Side::Plugin {
                    Side::Runtime
                } else {
                    Side::Plugin
                };
                assert!(open.remove(&(caller, *id)), "{line:?}");
                vetoes += usize::from(
                    error
                        .as_ref()
                        .is_some_and(|e| e.message.contains("not on my watch")),
                );
            }
            What::Unread { .. } | What::Dropped { .. } => panic!("{line:?}"),
            _ => {}
        }
    }
    assert_eq!(vetoes, calls);
    assert!(open.is_empty(), "{open:?}");
}

fn header() -> String {
    let mut text = recording(|_| ());
    text.truncate(text.find('\n').expect("a line") + 1);
    text
}

fn bad(text: &str) -> String {
    let why = read(text.as_bytes()).expect_err("refused").to_string();
    assert!(why.len() < 400 && why.lines().count() == 1, "{why}");
    why
}

#[test]
fn a_recording_whose_recorder_was_killed_is_read_up_to_the_line_that_is_cut_off() {
    let whole = recording(|connection| {
        let call = call(1, "RunPodSandbox", Vec::new());
        connection.saw(Side::Runtime, &call.frames());
    });
    let killed = &whole[..whole.len() - 5];
    let Recording { lines, notes, .. } = read(killed.as_bytes()).expect("a recording");
    assert_eq!(notes, ["line 4 is cut off: the recording is read up to it"]);
    let last = lines.last().map(|line| &line.what);
    assert!(matches!(last, Some(What::Request { method, .. }) if method == "RunPodSandbox"));
}

#[test]
fn what_is_no_recording_is_refused_with_its_line_and_why() {
    let header = header();
    assert!(is_recording(header.as_bytes()) && !is_recording(b"kind: Pod\n"));
    for (text, says) in [
        (String::new(), "line 1: not an NRI recording"),
        ("kind: Pod\n".into(), "line 1: not an NRI recording"),
        ("{}\n".into(), "line 1: not an NRI recording"),
        ("[[[[[[".repeat(100_000), "line 1: not an NRI recording"),
        (
            header.replace(":1,", ":2,"),
            "line 1: a recording of format 2: this version reads 1",
        ),
        (
            header.replace(":1,", ":\"x\","),
            "line 1: a recording of format \"x\"",
        ),
        (
            header.replace("\"redacted\"", "7"),
            "line 1: not the header of a recording",
        ),
        (
            format!("{header}7\n"),
            "line 2: not a line of a recording: invalid type",
        ),
        (
            format!("{header}{{\"at\":1,\"connection\":-1,\"is\":\"opened\"}}\n"),
            "line 2: not a line of a recording: invalid value",
        ),
        (
            format!("{header}{{\"at\":1,\"connection\":1,\"is\":\"danced\"}}\n"),
            "unknown variant `danced`",
        ),
        (
            format!("{header}{{\"at\":1,\"connection\":1,\"is\":\"request\"}}\n"),
            "missing field",
        ),
        (
            format!("{header}{{\"x\":{}\n", "[".repeat(1 << 20)),
            "recursion limit",
        ),
    ] {
        let why = bad(&text);
        assert!(why.contains(says), "{says:?} is not in {why:?}");
    }
}

#[test]
fn a_line_that_never_ends_is_not_read_to_its_end() {
    use std::io::Read as _;
    let endless = std::io::BufReader::new(std::io::repeat(b'x'));
    let why = read(header().as_bytes().chain(endless)).expect_err("refused");
    assert_eq!(why.line, 2);
    assert!(why.why.contains("longer than"), "{why}");
}

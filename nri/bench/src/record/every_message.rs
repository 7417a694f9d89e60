//! Every message of the protocol with every field, through a recording and back.

use nri::{
    PLUGIN_API, RUNTIME_API,
    proto::*,
    wire::frame::{Message as Frame, Request, Response, TO_PLUGIN, TO_RUNTIME},
};
use nri_record::{About, Part, REDACTED, Recorder, Side, Values, What, encode, methods, read};
use prost::Message;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::scenario::filled;

const SECRET: &str = "s3cret";

/// A message with every field, and a secret in each variable.
fn message<M: DeserializeOwned + Serialize>() -> M {
    let mut value = serde_json::to_value(filled::<M>()).expect("JSON");
    with_secrets(&mut value);
    serde_json::from_value(value).expect("the same message")
}

fn with_secrets(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::Array(list) if key == "env" => {
                        for variable in list {
                            match variable {
                                Value::String(text) => *text = format!("NAME=1={SECRET}\n"),
                                pair => pair["value"] = SECRET.into(),
                            }
                        }
                    }
                    value => with_secrets(value),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(with_secrets),
        _ => {}
    }
}

/// The owners of a validation have numeric keys, unlike all other messages.
fn validation() -> ValidateContainerAdjustmentRequest {
    let compound = CompoundFieldOwners {
        owners: [("A".into(), "10-a".into()), ("B".into(), String::new())].into(),
    };
    let owners = FieldOwners {
        simple: [(8, "10-a".into())].into(),
        compound: [(6, compound)].into(),
    };
    ValidateContainerAdjustmentRequest {
        pod: Some(message()),
        container: Some(message()),
        adjust: Some(message()),
        update: vec![message()],
        owners: Some(OwningPlugins {
            owners: [("c1".into(), owners), ("c2".into(), FieldOwners::default())].into(),
        }),
        plugins: vec![message()],
    }
}

/// One call: its method, its request and its answer on the wire.
struct Call(&'static str, Vec<u8>, Vec<u8>);

macro_rules! calls {
    ($($method:ident: $request:ident => $answer:ident;)*) => {
        vec![$(Call(stringify!($method), message::<$request>().encode_to_vec(), message::<$answer>().encode_to_vec())),*]
    };
}

fn calls() -> Vec<Call> {
    let mut all = calls! {
        RegisterPlugin: RegisterPluginRequest => Empty;
        UpdateContainers: UpdateContainersRequest => UpdateContainersResponse;
        Configure: ConfigureRequest => ConfigureResponse;
        Synchronize: SynchronizeRequest => SynchronizeResponse;
        Shutdown: Empty => Empty;
        RunPodSandbox: RunPodSandboxRequest => RunPodSandboxResponse;
        UpdatePodSandbox: UpdatePodSandboxRequest => UpdatePodSandboxResponse;
        PostUpdatePodSandbox: PostUpdatePodSandboxRequest => PostUpdatePodSandboxResponse;
        StopPodSandbox: StopPodSandboxRequest => StopPodSandboxResponse;
        RemovePodSandbox: RemovePodSandboxRequest => RemovePodSandboxResponse;
        CreateContainer: CreateContainerRequest => CreateContainerResponse;
        PostCreateContainer: PostCreateContainerRequest => PostCreateContainerResponse;
        StartContainer: StartContainerRequest => StartContainerResponse;
        PostStartContainer: PostStartContainerRequest => PostStartContainerResponse;
        UpdateContainer: UpdateContainerRequest => UpdateContainerResponse;
        PostUpdateContainer: PostUpdateContainerRequest => PostUpdateContainerResponse;
        StopContainer: StopContainerRequest => StopContainerResponse;
        RemoveContainer: RemoveContainerRequest => RemoveContainerResponse;
        StateChange: StateChangeEvent => Empty;
    };
    let answer = message::<ValidateContainerAdjustmentResponse>().encode_to_vec();
    all.push(Call(
        "ValidateContainerAdjustment",
        validation().encode_to_vec(),
        answer,
    ));
    all
}

/// The text of a recording of all calls.
fn recorded(env: Values, calls: &[Call]) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("r.jsonl");
    let about = About {
        env,
        ..About::default()
    };
    let recorder = Recorder::create(&file, about, |why| panic!("{why}")).expect("a file");
    let connection = recorder.connection();
    for (id, Call(method, request, answer)) in (1..).step_by(2).zip(calls) {
        let (from, to, channel, service) = match *method {
            "RegisterPlugin" | "UpdateContainers" => {
                (Side::Plugin, Side::Runtime, TO_RUNTIME, RUNTIME_API)
            }
            _ => (Side::Runtime, Side::Plugin, TO_PLUGIN, PLUGIN_API),
        };
        let request = Request {
            service: service.into(),
            method: (*method).into(),
            payload: request.clone(),
            ..Request::default()
        };
        let asked = Frame::call(channel, id, &request);
        let answered = asked.answer(&Response {
            status: None,
            payload: answer.clone(),
        });
        connection.saw(from, &asked.frames());
        connection.saw(to, &answered.frames());
    }
    drop(connection);
    let summary = recorder.finish(std::time::Duration::from_secs(30));
    assert!(!summary.incomplete && summary.dropped == 0, "{summary:?}");
    std::fs::read_to_string(file).expect("text")
}

#[test]
fn every_message_comes_back_from_a_recording_as_it_was() {
    let calls = calls();
    let mut named: Vec<_> = calls.iter().map(|call| call.0).collect();
    let mut all = methods().to_vec();
    named.sort_unstable();
    all.sort_unstable();
    assert_eq!(named, all, "each method once");
    let text = recorded(Values::Kept, &calls);
    let lines = read(text.as_bytes()).expect("a recording").lines;
    let mut back = Vec::new();
    for line in &lines {
        let (method, part, message, unread) = match &line.what {
            What::Request {
                method,
                message,
                unread,
                ..
            } => (method, Part::Request, message, unread),
            What::Answer {
                method,
                message,
                unread,
                ..
            } => (method, Part::Answer, message, unread),
            _ => continue,
        };
        assert_eq!(unread, &None, "{method} {part:?}");
        let message = message.as_ref().expect("it is known");
        back.push(encode(method, part, message).expect("the same message"));
    }
    let sent = calls
        .into_iter()
        .flat_map(|Call(_, request, answer)| [request, answer]);
    assert_eq!(back, sent.collect::<Vec<_>>());
}

#[test]
fn no_value_of_a_variable_is_anywhere_in_a_redacted_recording() {
    let calls = calls();
    let kept = recorded(Values::Kept, &calls).matches(SECRET).count();
    assert!(kept > 20, "the secrets are in {kept} places");
    let text = recorded(Values::Redacted, &calls);
    assert!(!text.contains(SECRET), "{text}");
    assert_eq!(text.matches(REDACTED).count(), kept);
}

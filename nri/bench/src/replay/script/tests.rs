use nri_record::{Header, read};

use super::*;

fn recording(lines: &[Value]) -> Recording {
    let header = Header {
        format: 1,
        recorder: "test".into(),
        began: String::new(),
        env: Values::Kept,
        runtime: None,
    };
    let mut text = serde_json::to_string(&header).expect("JSON") + "\n";
    for line in lines {
        text += &format!("{line}\n");
    }
    read(text.as_bytes()).expect("a recording")
}

fn call(connection: u64, plugin: &str, id: u32, method: &str, message: Value) -> Value {
    let (from, service) = match method {
        "RegisterPlugin" | "UpdateContainers" => ("plugin", "nri.pkg.api.v1alpha1.Runtime"),
        _ => ("runtime", "nri.pkg.api.v1alpha1.Plugin"),
    };
    json!({"at": 1.5, "connection": connection, "plugin": plugin, "is": "request", "from": from, "id": id,
        "service": service, "method": method, "message": message})
}

fn answer(connection: u64, from: &str, id: u32, method: &str, rest: (&str, Value)) -> Value {
    let mut line = json!({"at": 2, "connection": connection, "is": "answer", "from": from, "id": id,
        "service": "s", "method": method});
    line[rest.0] = rest.1;
    line
}

#[test]
fn calls_keep_their_order_and_get_their_own_answers() {
    let lines = [
        call(1, "10-a", 1, "RegisterPlugin", json!({})),
        call(1, "10-a", 1, "Configure", json!({})),
        // Both sides count their calls from 1.
        answer(
            1,
            "plugin",
            1,
            "Configure",
            ("message", json!({"events": 8})),
        ),
        call(1, "10-a", 3, "UpdateContainers", json!({"evict": []})),
        call(1, "10-a", 3, "CreateContainer", json!({})),
        answer(1, "runtime", 3, "UpdateContainers", ("message", json!({}))),
        answer(
            1,
            "plugin",
            3,
            "CreateContainer",
            ("error", json!({"code": 2, "message": "no"})),
        ),
        call(1, "10-a", 5, "StopContainer", json!({})),
    ];
    let scripts = scripts(&recording(&lines), None).expect("one plugin");
    let acts: Vec<_> = scripts[0]
        .calls
        .iter()
        .map(|call| (call.method.as_str(), call.answer.clone()))
        .collect();
    let no = Failure {
        code: 2,
        message: "no".into(),
    };
    assert_eq!(
        acts,
        [
            ("Configure", Answer::Message(json!({"events": 8}))),
            ("UpdateContainers", Answer::Message(json!({}))),
            ("CreateContainer", Answer::Error(no)),
            ("StopContainer", Answer::Missing),
        ]
    );
}

#[test]
fn a_state_change_becomes_the_event_that_it_tells() {
    let unimplemented = json!({"code": 12, "message": "no such method"});
    let mut lines = vec![
        call(1, "10-a", 1, "Configure", json!({})),
        call(
            1,
            "10-a",
            3,
            "StateChange",
            json!({"event": 6, "pod": {"id": "p"}}),
        ),
        answer(1, "plugin", 3, "StateChange", ("message", json!({}))),
    ];
    let script = &scripts(&recording(&lines), None).expect("one")[0];
    assert_eq!(
        (script.calls[1].method.as_str(), script.dedicated),
        ("StartContainer", false)
    );
    assert_eq!(script.calls[1].message, json!({"pod": {"id": "p"}}));
    lines.insert(
        1,
        call(1, "10-a", 2, "StartContainer", json!({"pod": {"id": "p"}})),
    );
    lines.insert(
        2,
        answer(1, "plugin", 2, "StartContainer", ("error", unimplemented)),
    );
    let script = &scripts(&recording(&lines), None).expect("one")[0];
    assert_eq!(
        (script.calls.len(), script.dedicated),
        (2, true),
        "one event, told in two ways"
    );
    assert_eq!(script.calls[1].answer, Answer::Message(json!({})));
}

#[test]
fn of_several_plugins_one_must_be_named() {
    let lines = [
        call(1, "10-a", 1, "Configure", json!({})),
        call(2, "20-b", 1, "Configure", json!({})),
        call(3, "30-never-configured", 1, "RegisterPlugin", json!({})),
        call(4, "10-a", 1, "Configure", json!({})),
    ];
    let recording = recording(&lines);
    let refused = scripts(&recording, None).expect_err("two");
    assert_eq!(
        refused,
        "this recording has 10-a, 20-b: name one with --plugin"
    );
    for name in ["a", "10-a"] {
        let found = scripts(&recording, Some(name)).expect("it is there");
        let found: Vec<_> = found.iter().map(|s| s.connection).collect();
        assert_eq!(found, [1, 4], "each connection is played");
    }
    let refused = scripts(&recording, Some("c")).expect_err("none");
    assert_eq!(refused, "no plugin c in this recording: it has 10-a, 20-b");
}

use super::*;

fn condition(kind: &str, wrong: Option<(&str, &str)>) -> RuntimeCondition {
    let (reason, message) = wrong.unwrap_or_default();
    RuntimeCondition {
        r#type: kind.into(),
        status: wrong.is_none(),
        reason: reason.into(),
        message: message.into(),
    }
}

fn room(key: &str, free: u64) -> Directory {
    Directory {
        key: key.into(),
        path: format!("/{key}"),
        size_bytes: 100 << 30,
        free_bytes: free,
        ..Directory::default()
    }
}

fn well() -> Answers {
    Answers {
        name: "cairn".into(),
        version: "1.2.3".into(),
        conditions: vec![
            condition("RuntimeReady", None),
            condition("NetworkReady", None),
        ],
        info: BTreeMap::new(),
        plugins: Ok(Vec::new()),
        held: Ok(Vec::new()),
        directories: Ok(vec![room("root", 50 << 30), room("state", 50 << 30)]),
    }
}

fn plugin(state: &str, required: bool) -> Plugin {
    Plugin {
        index: "10".into(),
        name: "guard".into(),
        state: state.into(),
        since_ns: 180_000_000_000,
        required,
        ..Plugin::default()
    }
}

fn reported(answers: Answers) -> (State, String) {
    let report = Report::new("unix:///x".into(), Ok(answers));
    (report.state(), report.table(200, false))
}

#[test]
fn a_daemon_that_is_well_is_told_by_a_line_for_each_thing() {
    let (state, text) = reported(well());
    assert_eq!(state, State::Ok);
    assert_eq!(
        text,
        "\
ok       runtime  cairn 1.2.3
ok       network  pods get one
ok       plugins  none connected, none required
ok       records  every one could be read
ok       root     /root: 53.7 GB of 107.4 GB free
ok       state    /state: 53.7 GB of 107.4 GB free
ok       pulls    none under way

ready
"
    );
}

#[test]
fn sandboxes_of_a_version_that_exposed_the_node_are_named_with_what_to_do() {
    let mut answers = well();
    let list = r#"[{"id":"0123456789abcdef","namespace":"default","name":"web"}]"#;
    answers.info.insert("exposedSandboxes".into(), list.into());
    let (state, text) = reported(answers);
    assert_eq!(state, State::Limited);
    assert!(
        text.contains("limited  pods     created by an older version"),
        "{text}"
    );
    assert!(text.contains("default/web (0123456789abc)"), "{text}");
    assert!(text.contains("crictl rmp --force"), "{text}");
}

#[test]
fn a_missing_plugin_fails_where_it_is_required_and_limits_where_it_must_run() {
    for (state, required, is, says) in [
        (
            "absent",
            true,
            State::Fails,
            "10-guard has been MISSING for 3m",
        ),
        (
            "absent",
            false,
            State::Limited,
            "10-guard has been missing for 3m",
        ),
        (
            "overdue",
            true,
            State::Fails,
            "10-guard has not answered for 3m",
        ),
        (
            "overdue",
            false,
            State::Limited,
            "10-guard has not answered for 3m",
        ),
        ("gone", false, State::Limited, "10-guard was closed 3m ago"),
        ("active", true, State::Ok, "connected: 10-guard"),
        ("joining", true, State::Ok, "none connected"),
    ] {
        let answers = Answers {
            plugins: Ok(vec![plugin(state, required)]),
            ..well()
        };
        let (found, text) = reported(answers);
        assert_eq!(found, is, "{text}");
        assert!(text.contains(says), "{text}");
    }
}

#[test]
fn a_network_that_is_not_ready_is_told_with_the_file_to_repair() {
    let why = (
        "InvalidCniConfiguration",
        "Network plugin returns error: 10.conf: no name",
    );
    let mut answers = well();
    answers.conditions[1] = condition("NetworkReady", Some(why));
    let config = r#"{"confDir":"/etc/cni/net.d"}"#;
    answers.info.insert("cniconfig".into(), config.into());
    let (state, text) = reported(answers);
    assert_eq!(state, State::Fails);
    assert!(
        text.contains("fails    network  10.conf: no name\n"),
        "{text}"
    );
    assert!(
        text.contains("repair or remove the file in /etc/cni/net.d"),
        "{text}"
    );
    assert!(
        text.ends_with("not ready: see the lines marked \"fails\"\n"),
        "{text}"
    );
}

#[test]
fn little_space_limits_and_none_fails() {
    for (free, is) in [
        (11 << 30, State::Ok),
        (9 << 30, State::Limited),
        (NOTHING - 1, State::Fails),
    ] {
        let answers = Answers {
            directories: Ok(vec![room("root", free)]),
            ..well()
        };
        assert_eq!(reported(answers).0, is, "{free}");
    }
    for (free, is) in [(6, State::Ok), (4, State::Limited), (0, State::Fails)] {
        let inodes = Directory {
            inodes: 100,
            free_inodes: free,
            ..room("root", 50 << 30)
        };
        let answers = Answers {
            directories: Ok(vec![inodes]),
            ..well()
        };
        assert_eq!(reported(answers).0, is, "{free} inodes");
    }
}

#[test]
fn pulls_are_told_with_what_is_announced() {
    let mut answers = well();
    let pulls = r#"[{"image":"r/x:1","bytes":1500000,"of":3000000,"seconds":4},{"image":"r/y","bytes":0,"of":0,"seconds":0}]"#;
    answers.info.insert("pulls".into(), pulls.into());
    let report = Report::new("unix:///x".into(), Ok(answers));
    let text = report.table(200, false);
    assert!(
        text.contains("r/x:1, 1.5 MB of 3.0 MB in 4 s; r/y, 0 B in 0 s"),
        "{text}"
    );
    let json = report.json();
    assert_eq!(json["pulls"][0]["of"], 3_000_000);
    assert_eq!(json["ready"], true);
}

#[test]
fn what_cannot_be_asked_is_told_and_nobody_at_all_is_not_ready() {
    let answers = Answers {
        plugins: Err("Plugins: this runtime does not support it".into()),
        ..well()
    };
    assert_eq!(reported(answers).0, State::Limited);
    let report = Report::new("unix:///x".into(), Err("no daemon answers".into()));
    assert_eq!(report.state(), State::Fails);
    let json = report.json();
    assert_eq!(
        (&json["ready"], &json["state"]),
        (&false.into(), &"fails".into())
    );
}

#[test]
fn unreadable_records_are_named_with_the_remedy() {
    let one = |n: u32| HeldObject {
        id: format!("{n}23456789012345"),
        kind: "sandbox".into(),
        name: format!("ns/pod-{n}"),
        record: format!("/r/{n}.json"),
        reason: "torn".into(),
        ..HeldObject::default()
    };
    let answers = Answers {
        held: Ok((1..8).map(one).collect()),
        ..well()
    };
    let (state, text) = reported(answers);
    assert_eq!(state, State::Limited);
    for part in [
        "sandbox ns/pod-1",
        "/r/5.json: torn",
        "and 2 more",
        "cairn rm ID",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

//! `cairn explain`: each plugin's changes to a container, the owners, and the reason of a
//! rejection.

use cairn_tests::{
    Daemon,
    output::{shown, stdout},
    plugin::{Behavior, Plugin},
    until,
};
use nri::{
    Handlers, Stub,
    adjust::{self, Adjust, SetResources},
    proto::*,
};
use serde_json::{Value, json};

async fn explained(daemon: &Daemon, container: &str) -> Value {
    let output = daemon
        .cairn(&["explain", container, "--output", "json"])
        .await;
    assert!(output.status.success(), "{}", shown(&output));
    serde_json::from_str(&stdout(&output)).expect("JSON")
}

fn mount(destination: &str, option: &str) -> Mount {
    Mount {
        destination: destination.to_owned(),
        source: "/usr".to_owned(),
        r#type: "bind".to_owned(),
        options: vec!["rbind".to_owned(), option.to_owned()],
    }
}

fn change<'a>(explained: &'a Value, plugin: &str, field: &str) -> &'a Value {
    let plugins = explained["plugins"].as_array().expect("a list");
    let printed = plugins.iter().find(|printed| printed["plugin"] == plugin);
    let changes = printed.and_then(|printed| printed["changes"].as_array());
    let changes = changes.unwrap_or_else(|| panic!("{plugin} is not in {explained}"));
    let found = changes.iter().find(|change| change["field"] == field);
    found.unwrap_or_else(|| panic!("{plugin} changed no {field}: {explained}"))
}

#[tokio::test]
async fn each_change_is_shown_with_its_owner_between_the_two_specs() {
    let daemon = Daemon::start().await;
    let socket = daemon.nri_socket();
    let first = Plugin::join(&socket, "10", "first").await;
    let second = Plugin::join(&socket, "20", "second").await;
    let _idle = Plugin::join(&socket, "30", "idle").await;
    first.adjusts(|_, _| {
        let mut adjust = ContainerAdjustment::default();
        adjust.add_env("SECRET", "hunter2");
        adjust.add_annotation("first", "was here");
        adjust.add_mount(mount("/data", "ro"));
        Some(adjust)
    });
    second.adjusts(|_, _| {
        let mut adjust = ContainerAdjustment::default();
        adjust.memory_limit(64 << 20);
        Some(adjust)
    });
    let pod = daemon.cri().pod("p").await;
    let container = pod.sleeper("web").await;
    let output = daemon.cairn(&["explain", "web"]).await;
    let text = stdout(&output);
    assert!(output.status.success(), "{}", shown(&output));
    for line in [
        "10-first   3 changes",
        "+ env[\"SECRET\"] (value not shown)",
        "+ annotations[\"first\"] = \"was here\"",
        "20-second  1 change",
        "+ linux.resources.memory.limit = 67108864",
        "30-idle    changed nothing",
        "+       \"SECRET=…\"",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    // Changes of order are not shown: sets of capabilities, sorted mounts.
    assert!(!text.contains("CAP_"), "{text}");
    let gone = |line: &&str| line.starts_with('-') && line.contains("destination");
    assert_eq!(text.lines().find(gone), None, "{text}");
    assert!(!text.contains('\x1b'), "no terminal, no colours");
    let full = stdout(&daemon.cairn(&["explain", "web", "--full"]).await);
    let (some, all) = (text.lines().count(), full.lines().count());
    assert!(
        some * 2 < all,
        "{some} of {all} lines: unchanged values are omitted\n{text}"
    );
    // By a prefix of its id, by its name, and by its pod's name.
    for name in [&container.id[..12], "web", "p/web"] {
        let explained = explained(&daemon, name).await;
        assert_eq!(explained["container"]["id"], container.id.as_str());
        assert_eq!(explained["container"]["state"], "running");
        assert_eq!(
            change(&explained, "20-second", "linux.resources.memory.limit")["value"],
            64 << 20
        );
        assert_eq!(
            change(&explained, "10-first", "annotations")["key"],
            "first"
        );
        let limit = "/linux/resources/memory/limit";
        assert_eq!(explained["base"].pointer(limit), None);
        assert_eq!(
            explained["spec"].pointer(limit),
            Some(&Value::from(64 << 20))
        );
        assert!(!explained.to_string().contains("hunter2"), "{explained}");
    }
    pod.end().await;
}

#[tokio::test]
async fn a_refused_container_is_explained_by_its_name_with_the_reason() {
    let daemon = Daemon::start().await;
    let socket = daemon.nri_socket();
    let _first = Plugin::join(&socket, "10", "first").await;
    let second = Plugin::join(&socket, "20", "second").await;
    second.does(Event::CreateContainer, Behavior::Error("not here".into()));
    let pod = daemon.cri().pod("p").await;
    let config = pod.cri.container_config("web", &["true"]);
    pod.try_create(config).await.expect_err("vetoed");
    let refused = explained(&daemon, "p/web").await;
    assert_eq!(refused["container"]["state"], "refused");
    let why = refused["refused"].as_str().expect("a reason");
    assert!(
        why.contains("20-second") && why.contains("not here"),
        "{why}"
    );
    let printed = refused["plugins"].as_array().expect("a list");
    let outcomes: Vec<_> = printed
        .iter()
        .map(|s| (&s["plugin"], &s["outcome"]))
        .collect();
    assert_eq!(outcomes[0].0, "10-first");
    assert_eq!(
        outcomes[1],
        (&Value::from("20-second"), &Value::from("refused"))
    );
    assert_eq!(refused["spec"], Value::Null);
    let text = stdout(&daemon.cairn(&["explain", "web"]).await);
    assert!(text.contains("20-second  refused: not here"), "{text}");
    assert!(
        text.contains("\nnot created: plugin 20-second refused"),
        "{text}"
    );
    pod.end().await;
}

#[tokio::test]
async fn a_container_whose_adjustment_cannot_be_made_is_explained_with_who_set_it() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "typo").await;
    plugin.adjusts(|_, _| {
        let mut adjust = ContainerAdjustment::default();
        adjust.add_mount(mount("/data", "r0"));
        Some(adjust)
    });
    let pod = daemon.cri().pod("p").await;
    let config = pod.cri.container_config("web", &["true"]);
    pod.try_create(config).await.expect_err("no such option");
    let text = stdout(&daemon.cairn(&["explain", "p/web"]).await);
    for line in [
        "10-typo  1 change",
        "+ mounts[\"/data\"] = {\"options\":[\"rbind\",\"r0\"]",
        "\nnot created: ",
        "\"r0\" is not an option",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    pod.end().await;
}

#[tokio::test]
async fn a_change_that_a_later_plugin_overrode_is_told_as_such() {
    let daemon = Daemon::start().await;
    let socket = daemon.nri_socket();
    let first = Plugin::join(&socket, "10", "first").await;
    let second = Plugin::join(&socket, "20", "second").await;
    first.adjusts(|_, _| {
        let mut adjust = ContainerAdjustment::default();
        adjust.add_env("GREETING", "one");
        Some(adjust)
    });
    second.adjusts(|_, _| {
        let mut adjust = ContainerAdjustment::default();
        adjust.remove_env("GREETING").add_env("GREETING", "two");
        Some(adjust)
    });
    let pod = daemon.cri().pod("p").await;
    pod.create("web", &["true"]).await;
    let text = stdout(&daemon.cairn(&["explain", "web"]).await);
    assert!(
        text.contains("~ env[\"GREETING\"] (overridden by a plugin behind it)")
            && text.contains("+ env[\"GREETING\"] (value not shown)"),
        "{text}"
    );
    pod.end().await;
}

#[tokio::test]
async fn a_name_that_says_too_little_or_nothing_is_refused_in_one_line() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let (one, two) = (cri.pod("one").await, cri.pod("two").await);
    one.create("web", &["true"]).await;
    two.create("web", &["true"]).await;
    let refused = |name: &'static str| async {
        let output = daemon.cairn(&["explain", name]).await;
        assert!(!output.status.success(), "{}", shown(&output));
        let printed = String::from_utf8(output.stderr).expect("text");
        assert_eq!(printed.lines().count(), 1, "{printed}");
        printed
    };
    let several = refused("web").await;
    assert!(
        several.contains("/one/web (") && several.contains("/two/web ("),
        "{several}"
    );
    assert!(refused("nobody").await.contains("nobody"));
    let one_of_them = explained(&daemon, "two/web").await;
    assert_eq!(one_of_them["container"]["pod"], two.id.as_str());
    assert_eq!(one_of_them["base"], Value::Null, "no plugin was there");
    one.end().await;
    two.end().await;
}

const MIB: i64 = 1 << 20;

/// Returns each update of a container: plugin, call, path, values before and after, and whether it
/// failed.
fn updates(explained: &Value) -> Vec<Value> {
    let updates = explained["updates"].as_array().expect("a list");
    let one = |update: &Value| {
        let value = &update["values"][0];
        let failed = update["error"].is_string();
        json!([
            update["plugin"],
            update["hook"],
            value["field"],
            value["old"],
            value["new"],
            failed
        ])
    };
    updates.iter().map(one).collect()
}

/// A plugin that pins containers when it is synchronized, and limits the values that a client
/// requests.
async fn pinner(daemon: &Daemon) -> Stub {
    let handlers = Handlers::new()
        .synchronize(|_, containers| async move {
            let mut updates = Vec::new();
            for container in containers {
                let mut pin = adjust::update(&container.id, false);
                pin.cpuset_cpus("0");
                updates.push(pin);
            }
            let mut nobody = adjust::update("f".repeat(64), false);
            nobody.cpuset_cpus("0");
            updates.push(nobody);
            Ok(updates)
        })
        .update_container(|_, container, _| async move {
            let mut cap = adjust::update(&container.id, false);
            cap.memory_limit(64 * MIB);
            Ok(vec![cap])
        });
    let connection = std::os::unix::net::UnixStream::connect(daemon.nri_socket());
    let stub = Stub::builder(handlers)
        .name("pinner")
        .index("10")
        .connection(connection.expect("connect"))
        .register()
        .await
        .expect("it registers");
    stub.runtime().synchronized().await;
    stub
}

#[tokio::test]
async fn updates_of_a_container_that_a_plugin_never_saw_created_are_events_also_after_a_restart() {
    let mut daemon = Daemon::start().await;
    let pod = daemon.cri().pod("p").await;
    let container = pod.sleeper("web").await;
    let id = container.id.clone();
    let plugin = pinner(&daemon).await;
    until("the updates of Synchronize are events", || async {
        (updates(&explained(&daemon, "web").await).len() == 1).then_some(())
    })
    .await;
    container.limit_memory(256 * MIB).await.expect("an update");
    let mut impossible = adjust::update(&id, false);
    impossible.cpuset_cpus("4000");
    let runtime = plugin.runtime();
    let failed = runtime
        .update_containers(vec![impossible], Vec::new())
        .await;
    assert_eq!(failed.expect("UpdateContainers").len(), 1);

    let cpus = "linux.resources.cpu.cpus";
    let memory = "linux.resources.memory.limit";
    let expected = [
        json!(["10-pinner", "Synchronize", cpus, null, "0", false]),
        json!([
            null,
            "UpdateContainerResources",
            memory,
            null,
            256 * MIB,
            false
        ]),
        json!([
            "10-pinner",
            "UpdateContainer",
            memory,
            256 * MIB,
            64 * MIB,
            false
        ]),
        json!(["10-pinner", "UpdateContainers", cpus, "0", "4000", true]),
    ];
    assert_eq!(updates(&explained(&daemon, "web").await), expected);
    drop(plugin);
    daemon.kill_and_restart().await;
    let after = explained(&daemon, "web").await;
    assert_eq!(updates(&after), expected);
    // The specs differ only in the plugins' changes.
    let (base, spec) = (&after["base"], &after["spec"]);
    assert_eq!(
        base.pointer("/linux/resources/memory/limit"),
        Some(&json!(256 * MIB))
    );
    assert_eq!(
        spec.pointer("/linux/resources/memory/limit"),
        Some(&json!(64 * MIB))
    );
    assert_eq!(base.pointer("/linux/resources/cpu/cpus"), None);
    assert_eq!(spec.pointer("/linux/resources/cpu/cpus"), Some(&json!("0")));

    let text = stdout(&daemon.cairn(&["timeline"]).await);
    for line in [
        "web: updated by 10-pinner (Synchronize): linux.resources.cpu.cpus \"0\"",
        "web: updated by 10-pinner (UpdateContainer): linux.resources.memory.limit 268435456 -> 67108864",
        "web: resources updated: linux.resources.memory.limit 268435456",
        "by 10-pinner (Synchronize) failed",
        "update by 10-pinner (UpdateContainers) failed",
    ] {
        // Lines are wrapped at 100 columns.
        let words: Vec<_> = text.split_whitespace().collect();
        assert!(words.join(" ").contains(line), "{line:?} is not in\n{text}");
    }

    // By its pod's id, also after both are removed.
    let pod_id = pod.id.clone();
    for state in ["running", "removed"] {
        if state == "removed" {
            daemon.cri().pod_by_id(&pod_id, "p").end().await;
        }
        for name in [&pod_id[..12], "p"] {
            let by_pod = explained(&daemon, name).await;
            assert_eq!(by_pod["container"]["id"], "", "{by_pod}");
            let containers = by_pod["containers"].as_array().expect("a list");
            assert_eq!(containers.len(), 1);
            assert_eq!(containers[0]["container"]["state"], state);
            assert_eq!(updates(&containers[0]), expected);
        }
        let by_name = explained(&daemon, "p/web").await;
        assert_eq!(by_name["container"]["id"], id.as_str());
        assert_eq!(updates(&by_name), expected);
    }
}

//! `cairn ps` and `cairn status`, on healthy and on degraded daemons.

use std::fs;

use cairn_tests::{
    Daemon, Setup,
    cri::{NamespaceMode, PodSandboxState},
    output::{shown, stdout},
    plugin::Plugin,
    pod::pod_namespaces,
};
use serde_json::Value;

use crate::policy::until_state;

async fn asked(daemon: &Daemon, args: &[&str]) -> String {
    let output = daemon.cairn(args).await;
    assert!(output.status.success(), "{}", shown(&output));
    let text = stdout(&output);
    assert!(!text.contains('\x1b'), "no terminal, no colours: {text}");
    text
}

/// Returns the row with this name in the first column, as words.
fn row<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let is_row = |line: &&str| {
        let line = line.trim_start_matches(['├', '└', '─', ' ']);
        line.split_whitespace().next() == Some(name)
    };
    let line = text.lines().find(is_row);
    let line = line.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
    let line = line.trim_start_matches(['├', '└', '─', ' ']);
    line.split_whitespace().collect()
}

/// Returns the output of `cairn status`, and whether it exits 0.
async fn status(daemon: &Daemon) -> (bool, Value) {
    let output = daemon.cairn(&["status", "--output", "json"]).await;
    let value: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", shown(&output)));
    let exit = output.status.code();
    assert_eq!(exit, Some(i32::from(value["ready"] == false)), "{value}");
    (output.status.success(), value)
}

fn finding<'a>(status: &'a Value, what: &str) -> &'a Value {
    let findings = status["findings"].as_array().expect("a list");
    let found = findings.iter().find(|finding| finding["what"] == what);
    found.unwrap_or_else(|| panic!("{what} is not in {status}"))
}

#[tokio::test]
async fn ps_shows_pods_with_their_containers_and_all_also_those_that_ended() {
    let daemon = Daemon::start().await;
    let none = asked(&daemon, &["ps"]).await;
    assert_eq!(
        none,
        "no pod is ready, and no container runs; --all shows those that ended\n"
    );
    let app = daemon.cri().pod("app").await;
    let runs = app.sleeper("runs").await;
    let ended = app.run("ended", &["sh", "-c", "exit 7"]).await;
    ended.exited().await;
    let mut config = app.cri.container_config("waits", &["true"]);
    config.metadata.as_mut().expect("set").attempt = 3;
    let waits = app.try_create(config).await.expect("created");
    let old = daemon.cri().pod("old").await;
    old.stop().await.expect("stopped");
    assert_eq!(old.status().await.state(), PodSandboxState::SandboxNotready);
    let pid = runs.pid().await.expect("a pid").to_string();

    let text = asked(&daemon, &["ps"]).await;
    let head: Vec<_> = text.lines().next().expect("a head").split("  ").collect();
    assert_eq!(head[0], "POD / CONTAINER");
    let pod = row(&text, "default/app");
    assert_eq!((pod[1], pod[3], pod[4]), ("ready", "0", &app.id[..13]));
    let row_of = row(&text, "runs");
    assert_eq!(row_of[1], "running");
    assert_eq!(row_of[4], &runs.id[..13]);
    assert_eq!(row_of[5], cairn_tests::image::BUSYBOX);
    assert_eq!(row_of[6..], ["pid", pid.as_str()]);
    let row_of = row(&text, "waits");
    assert_eq!((row_of[1], row_of[3]), ("created", "3"));
    assert_eq!(text.lines().count(), 4, "{text}");

    let text = asked(&daemon, &["ps", "-a"]).await;
    assert_eq!(row(&text, "ended")[6..], ["exit", "7"], "{text}");
    assert_eq!(row(&text, "default/old")[1], "notready");
    assert_eq!(text.lines().count(), 6, "{text}");
    let branches: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once("─ "))
        .map(|(branch, rest)| (branch, rest.split(' ').next().unwrap_or_default()))
        .collect();
    // In the order of their creation.
    assert_eq!(
        branches,
        [("├", "runs"), ("├", "ended"), ("└", "waits")],
        "{text}"
    );

    let json: Value =
        serde_json::from_str(&asked(&daemon, &["ps", "-a", "-o", "json"]).await).expect("JSON");
    let pods = json["pods"].as_array().expect("a list");
    let ids: Vec<_> = pods.iter().map(|pod| &pod["id"]).collect();
    assert_eq!(ids, [&app.id, &old.id]);
    let containers = pods[0]["containers"].as_array().expect("a list");
    assert_eq!(containers[0]["pid"].to_string(), pid);
    assert_eq!(containers[1]["exit_code"], 7);
    assert_eq!(containers[2]["id"], waits.id.as_str());
    app.end().await;
    old.end().await;
}

#[tokio::test]
async fn status_of_a_daemon_that_is_well_is_ready_and_exits_0() {
    let daemon = Daemon::start().await;
    let _plugin = Plugin::join(&daemon.nri_socket(), "10", "idle").await;
    until_state(&daemon, "10-idle", "active").await;
    let (ready, status_now) = status(&daemon).await;
    assert!(ready, "{status_now}");
    for (what, found) in [
        ("runtime", concat!("cairn ", env!("CARGO_PKG_VERSION"))),
        ("network", "pods get one"),
        ("plugins", "connected: 10-idle"),
        ("records", "every one could be read"),
        ("pulls", "none under way"),
    ] {
        let finding = finding(&status_now, what);
        assert_eq!(finding["state"], "ok", "{finding}");
        assert_eq!(finding["found"], found, "{finding}");
    }
    // As seen by the daemon.
    for key in ["root", "state"] {
        let all = status_now["directories"].as_array().expect("a list");
        let directory = all.iter().find(|directory| directory["key"] == key);
        let directory = directory.expect("it is listed");
        assert_eq!(directory["path"], daemon.path(key).display().to_string());
        assert!(directory["size_bytes"].as_u64() >= directory["free_bytes"].as_u64());
        assert!(directory["size_bytes"].as_u64() > Some(0), "{directory}");
    }
    let text = asked(&daemon, &["status"]).await;
    assert!(text.contains("ok       network  pods get one\n"), "{text}");
}

#[tokio::test]
async fn status_names_what_is_not_ready_and_what_to_do_and_exits_1() {
    let toml = "[network]\nbridge = \"\"\n[nri.plugin.\"10-guard\"]\nrequired = true";
    let daemon = Daemon::with(Setup::default().toml(toml)).await;
    let (ready, status_now) = status(&daemon).await;
    assert!(!ready);
    let network = finding(&status_now, "network");
    assert_eq!(network["state"], "fails");
    let conf_dir = daemon.path("cni").display().to_string();
    assert!(network["cost"].to_string().contains(&conf_dir), "{network}");
    let plugin = finding(&status_now, "plugins");
    assert_eq!(plugin["state"], "fails");
    let found = plugin["found"].as_str().expect("text");
    assert!(
        found.starts_with("10-guard has been MISSING for "),
        "{plugin}"
    );
    let text = daemon.cairn(&["status"]).await;
    assert_eq!(text.status.code(), Some(1));
    let text = stdout(&text);
    assert!(
        text.contains("no pod and no container is created without it"),
        "{text}"
    );
    assert!(text.ends_with("not ready: see the lines marked \"fails\"\n"));
    // The plugin connects: the network is the remaining problem.
    let _guard = Plugin::join(&daemon.nri_socket(), "10", "guard").await;
    until_state(&daemon, "10-guard", "active").await;
    let (ready, status_now) = status(&daemon).await;
    assert!(!ready);
    assert_eq!(finding(&status_now, "plugins")["state"], "ok");
}

#[tokio::test]
async fn what_is_held_is_shown_by_both_and_leaves_the_daemon_ready() {
    let mut daemon = Daemon::start().await;
    let pod = daemon.cri().pod("torn").await;
    let container = pod.sleeper("c").await;
    daemon.kill().await;
    let record = daemon.path("root/containers");
    let record = record.join(format!("{}.json", container.id));
    let whole = fs::read(&record).expect("the record is there");
    fs::write(&record, &whole[..20]).expect("written");
    daemon.serve().await;
    let text = asked(&daemon, &["ps"]).await;
    assert_eq!(
        row(&text, "default/torn")[1],
        "ready",
        "its record is whole: {text}"
    );
    assert!(text.contains("RecordUnreadable"), "{text}");
    let (ready, status_now) = status(&daemon).await;
    assert!(ready);
    let records = finding(&status_now, "records");
    assert_eq!(records["state"], "limited");
    let found = records["found"].as_str().expect("text");
    assert!(found.starts_with("cannot be read: container "), "{found}");
    assert!(found.contains(&container.id[..13]), "{found}");
    let gone = daemon.cairn(&["rm", &container.id]).await;
    assert!(gone.status.success(), "{}", shown(&gone));
    assert_eq!(finding(&status(&daemon).await.1, "records")["state"], "ok");
    daemon.cri().pod_by_id(&pod.id, "torn").end().await;
}

/// A record of a version that left the procfs to the pause process (SECURITY.md, *Advisories*).
fn as_an_affected_version_wrote(record: &[u8]) -> Vec<u8> {
    let mut record: Value = serde_json::from_slice(record).expect("a record is JSON");
    let namespaces = record["record"]["namespaces"].as_object_mut();
    let procfs = namespaces.and_then(|namespaces| namespaces.remove("procfs"));
    assert!(procfs.is_some_and(|path| path.is_string()), "{record}");
    record.to_string().into_bytes()
}

#[tokio::test]
async fn a_sandbox_of_a_version_that_exposed_the_node_is_named_until_it_is_removed() {
    let mut daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut config = cri.pod_config("shares");
    pod_namespaces(&mut config).pid = NamespaceMode::Pod.into();
    let pod = cri.try_pod(config).await.expect("RunPodSandbox");
    let is_named = async |daemon: &Daemon| {
        let (ready, now) = status(daemon).await;
        let findings = now["findings"].as_array().expect("a list").clone();
        let named = findings.iter().find(|finding| finding["what"] == "pods");
        let named = named.map(|finding| (finding["state"].clone(), finding["found"].to_string()));
        (ready, named)
    };
    assert_eq!(is_named(&daemon).await, (true, None));
    daemon.kill().await;
    let file = daemon.path("root/pods").join(format!("{}.json", pod.id));
    let record = fs::read(&file).expect("the record is there");
    fs::write(&file, as_an_affected_version_wrote(&record)).expect("written");
    daemon.serve().await;
    let (ready, named) = is_named(&daemon).await;
    let (state, found) = named.expect("it is named");
    assert!(
        ready && state == "limited" && found.contains("default/shares"),
        "{found}"
    );
    let log = daemon.log();
    assert!(log.contains("remove this sandbox"), "{log}");
    daemon.cri().pod_by_id(&pod.id, "shares").end().await;
    assert_eq!(is_named(&daemon).await, (true, None));
}

#[tokio::test]
async fn status_without_a_daemon_says_where_nobody_answers_and_exits_1() {
    let mut daemon = Daemon::start().await;
    daemon.terminate().await;
    let (ready, status_now) = status(&daemon).await;
    assert!(!ready);
    let runtime = finding(&status_now, "runtime");
    let found = runtime["found"].as_str().expect("text");
    let socket = daemon.socket().display().to_string();
    assert!(
        found.contains("no daemon answers") && found.contains(&socket),
        "{found}"
    );
    let ps = daemon.cairn(&["ps"]).await;
    assert_eq!(ps.status.code(), Some(1), "{}", shown(&ps));
    assert!(
        shown(&ps).contains("no daemon answers at"),
        "{}",
        shown(&ps)
    );
}

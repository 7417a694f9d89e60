//! `[nri.plugin."10-name"]` on the daemon: required plugins, kept events, skipped plugins and
//! permissions.

use std::fs;

use cairn_tests::{
    Daemon, Setup,
    output::{shown, stdout},
    plugin::{Behavior, Plugin},
    until,
};
use nri::{
    adjust::Adjust,
    proto::{ContainerAdjustment, Event},
};
use serde_json::Value;

pub(crate) const GUARD: &str = "[nri]\nrequest_timeout = \"2s\"\n\
    tolerate_missing_annotation = \"cairn.test/tolerate\"\n\
    [nri.plugin.\"10-guard\"]\nrequired = true";

/// Returns a plugin in `cairn plugins --output json`; null if it is missing.
pub(crate) async fn info(daemon: &Daemon, id: &str) -> Value {
    let found = daemon.plugins().await.into_iter().find(|p| p["id"] == id);
    found.unwrap_or_default()
}

/// Waits until a plugin is in a state.
pub(crate) async fn until_state(daemon: &Daemon, id: &str, state: &str) -> Value {
    until(&format!("{id} is {state}"), || async {
        let info = info(daemon, id).await;
        (info["state"] == state).then_some(info)
    })
    .await
}

fn env(key: &str, value: &str) -> ContainerAdjustment {
    let mut adjust = ContainerAdjustment::default();
    adjust.add_env(key, value);
    adjust
}

#[tokio::test]
async fn a_required_plugin_that_no_event_needs_is_refused_and_shown() {
    let daemon = Daemon::with(Setup::default().toml(GUARD)).await;
    let deaf = [Event::StopContainer];
    let socket = daemon.nri_socket();
    // Its answer to Configure is the last message.
    let deaf = tokio::spawn(async move { Plugin::try_join(&socket, "10", "guard", &deaf).await });
    let why = "a required plugin must get one of RunPodSandbox, CreateContainer, ValidateContainerAdjustment";
    until("it is refused", async || {
        let info = info(&daemon, "10-guard").await;
        let reported = info["last_error"].as_str()?.contains(why);
        (reported && info["state"] == "absent").then_some(())
    })
    .await;
    until("it is logged", async || {
        daemon.log().contains(why).then_some(())
    })
    .await;
    let status = daemon.cairn(&["status"]).await;
    let shown = stdout(&status);
    let unfolded = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(unfolded.contains(why), "{shown}");
    deaf.abort();
    let cri = daemon.cri();
    let refused = cri.try_pod(cri.pod_config("p")).await;
    refused.expect_err("the guard is absent");
}

#[tokio::test]
async fn a_required_plugin_that_the_configuration_drops_is_named_at_every_start() {
    let mut daemon = Daemon::with(Setup::default().toml(GUARD)).await;
    let file = daemon.path("cairn.toml");
    let text = fs::read_to_string(&file).expect("a configuration");
    let text = text.replace(GUARD, "");
    let dropped = |daemon: &Daemon| {
        let log = daemon.log();
        let mut lines = log.lines().map(str::to_owned).collect::<Vec<_>>();
        lines.retain(|line| line.contains("WARN") && line.contains("10-guard is required, and"));
        lines
    };
    let lines = dropped(&daemon);
    assert_eq!(lines, [] as [&str; 0]);
    for (toml, why) in [
        ("", "no table"),
        ("", "no table"),
        ("[nri]\nenable = false", "nri.enable is false"),
        ("[nri.plugin.\"10-guard\"]", ""),
        ("", ""),
    ] {
        let before = dropped(&daemon).len();
        daemon.terminate().await;
        fs::write(&file, format!("{text}\n{toml}\n")).expect("a configuration");
        daemon.serve().await;
        let lines = dropped(&daemon).split_off(before);
        assert_eq!(
            lines.len(),
            usize::from(!why.is_empty()),
            "{toml}: {lines:?}"
        );
        assert!(lines.iter().all(|line| line.contains(why)), "{lines:?}");
    }
}

/// A plugin that requests that its failures fail requests and that it is kept when it is late. It
/// hangs at each pod "bad".
async fn touchy(daemon: &Daemon) -> nri::stub::Stub {
    async fn unless_bad(pod: nri::proto::PodSandbox) -> nri::Result<()> {
        if pod.name == "bad" {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
    let policy = nri::proto::FailurePolicy {
        fail_request: true,
        keep_connected: true,
    };
    let handlers = nri::Handlers::new()
        .failure_policy(policy)
        .stop_pod_sandbox(unless_bad)
        .remove_pod_sandbox(unless_bad);
    let stub = nri::stub::Stub::builder(handlers)
        .index("10")
        .name("touchy")
        .socket(daemon.nri_socket());
    let mut stub = stub;
    let stub = stub.start().await.expect("it joins");
    until_state(daemon, "10-touchy", "active").await;
    stub
}

#[tokio::test]
async fn contract_g32_a_plugins_failure_at_teardown_is_told_when_all_is_torn_down_if_it_wants_that()
{
    let hasty = "[nri.plugin.\"10-touchy\"]\nrequest_timeout = \"1s\"";
    let daemon = Daemon::with(Setup::default().toml(hasty)).await;
    let _touchy = touchy(&daemon).await;
    let other = Plugin::join(&daemon.nri_socket(), "20", "other").await;
    let shown = info(&daemon, "10-touchy").await;
    assert!(
        shown["fail_request"] == true && shown["on_timeout"] == "keep",
        "{shown}"
    );
    let table = stdout(&daemon.cairn(&["plugins"]).await);
    assert!(table.contains("fail request, keep connected"), "{table}");

    let cri = daemon.cri();
    let pod = cri.pod("bad").await;
    pod.sleeper("c").await;
    let says =
        |event: &str| format!("plugin 10-touchy failed to handle {event} request: timed out");
    let failed = pod.stop().await.expect_err("it was late");
    assert!(
        failed.message().contains(&says("StopPodSandbox")),
        "{failed}"
    );
    // All steps were done and all plugins notified, so the repeated call has no effect.
    pod.stop().await.expect("it is stopped already");
    let failed = pod.remove().await.expect_err("it was late again");
    assert!(
        failed.message().contains(&says("RemovePodSandbox")),
        "{failed}"
    );
    pod.remove().await.expect("it is removed already");
    assert!(cri.pods().await.is_empty());
    let reported = other.list();
    for event in [
        "StopPodSandbox bad",
        "RemoveContainer bad c",
        "RemovePodSandbox bad",
    ] {
        assert_eq!(
            reported.iter().filter(|line| *line == event).count(),
            1,
            "{reported:?}"
        );
    }
    // A running pod that is removed at once is removed, and both failures are in one error.
    let pod = cri.pod("bad").await;
    let failed = pod.remove().await.expect_err("it was late");
    assert!(failed.message().contains("10-touchy"), "{failed}");
    assert!(cri.pods().await.is_empty());
    cri.pod("good").await.end().await;
}

const KEEPER: &str = "[nri.plugin.\"10-keeper\"]\nmust_run = true\nrequest_timeout = \"2s\"";

#[tokio::test]
async fn what_was_kept_for_a_must_run_plugin_ends_with_the_daemon() {
    let mut daemon = Daemon::with(Setup::default().toml(KEEPER)).await;
    let pod = daemon.cri().pod("p").await;
    let stays = daemon.cri().pod("stays").await;
    pod.end().await;
    assert_eq!(info(&daemon, "10-keeper").await["backlog"], 2);
    let table = stdout(&daemon.cairn(&["plugins"]).await);
    assert!(
        table.contains("2 Stop and Remove events wait for it"),
        "{table}"
    );
    daemon.kill_and_restart().await;
    assert_eq!(info(&daemon, "10-keeper").await["backlog"], 0);
    // It learns the rest from its list: this pod exists, the other does not.
    let again = Plugin::join(&daemon.nri_socket(), "10", "keeper").await;
    let listed: Vec<_> = again
        .synchronised()
        .await
        .0
        .into_iter()
        .map(|p| p.id)
        .collect();
    assert_eq!(listed, [stays.id]);
    assert!(again.list().is_empty());
}

pub(crate) const SLOW: &str =
    "[nri.plugin.\"10-slow\"]\non_timeout = \"skip\"\nrequest_timeout = \"1s\"\n";

#[tokio::test]
async fn no_environment_value_reaches_a_log_an_error_or_a_table() {
    let toml = "[nri.plugin.\"30-limited\"]\nfields = \"Annotations\"";
    let daemon = Daemon::with(Setup::default().toml(toml)).await;
    let secrets = [
        "of-the-container",
        "of-an-adjustment",
        "of-a-conflict",
        "of-a-refusal",
    ];
    let secret = |n: usize| format!("sEcReT-{}", secrets[n]);
    let socket = daemon.nri_socket();
    let one = Plugin::join(&socket, "10", "one").await;
    let two = Plugin::join(&socket, "20", "two").await;
    let adjusted = secret(1);
    one.adjusts(move |_, _| Some(env("ADJUSTED", &adjusted)));
    let cri = daemon.cri();
    let config = |name: &str| {
        let mut config = cri.container_config(name, &["sleep", "1000"]);
        config.envs = vec![cairn_tests::cri::KeyValue {
            key: "CONFIGURED".into(),
            value: secret(0),
        }];
        config
    };
    let pod = cri.pod("p").await;
    let container = pod.started(config("c")).await;
    let values = container.sh("echo $CONFIGURED $ADJUSTED").await;
    assert_eq!(values, format!("{} {}", secret(0), secret(1)));
    let mut errors = Vec::new();
    let conflicting = secret(2);
    two.adjusts(move |_, _| Some(env("ADJUSTED", &conflicting)));
    let conflict = pod.try_create(config("d")).await.expect_err("a conflict");
    assert!(conflict.message().contains("ADJUSTED"), "{conflict}");
    errors.push(conflict);
    two.adjusts(|_, _| None);
    let limited = Plugin::join(&socket, "30", "limited").await;
    let refused = secret(3);
    limited.adjusts(move |_, _| Some(env("REFUSED", &refused)));
    errors.push(pod.try_create(config("e")).await.expect_err("a refusal"));
    two.does(Event::CreateContainer, Behavior::Error("no".into()));
    errors.push(pod.try_create(config("f")).await.expect_err("a veto"));
    let mut bad = config("g");
    bad.envs[0].key = "BAD=KEY".into();
    errors.extend(pod.try_create(bad).await.err());
    pod.end().await;

    let mut printed = vec![("log".to_owned(), daemon.log())];
    for args in [
        &["timeline"][..],
        &["timeline", "--json"],
        &["plugins"],
        &["plugins", "--output", "json"],
    ] {
        printed.push((args.join(" "), shown(&daemon.cairn(args).await)));
    }
    printed.extend(errors.iter().map(|e| ("error".to_owned(), e.to_string())));
    let trace = daemon.path("root/trace");
    let files = cairn_tests::look::tree(&trace);
    assert!(!files.is_empty(), "there is an event log");
    for file in files {
        let text = fs::read(trace.join(&file)).unwrap_or_default();
        printed.push((file, String::from_utf8_lossy(&text).into_owned()));
    }
    // CRI's values are bytes: Rust's debug format prints them as numbers.
    let bytes = format!("{:?}", b"sEcReT").replace(['[', ']'], "");
    for (what, text) in &printed {
        let line = text
            .lines()
            .find(|l| l.contains("sEcReT") || l.contains(&bytes));
        assert_eq!(line, None, "in {what}");
    }
}

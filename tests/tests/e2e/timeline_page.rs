//! `cairn timeline --html` of a running daemon.

use std::{
    fs, io,
    process::{Command, Stdio},
};

use cairn_tests::{
    Daemon, bins,
    output::{shown, stdout},
    plugin::{Behavior, Plugin},
};
use nri::{
    adjust::Adjust,
    proto::{ContainerAdjustment, Event},
};

#[tokio::test]
async fn a_failed_start_is_told_on_the_page_with_the_plugin_that_refused_it_and_no_secret() {
    let daemon = Daemon::start().await;
    let socket = daemon.nri_socket();
    let setter = Plugin::join(&socket, "10", "setter").await;
    setter.adjusts(|_, _| {
        let mut adjust = ContainerAdjustment::default();
        adjust.add_env("SECRET", "hunter2");
        Some(adjust)
    });
    let quota = Plugin::join(&socket, "20", "quota").await;
    let pod = daemon.cri().pod("p").await;
    let container = pod.create("c", &["true"]).await;
    let hostile = "no <img src=x onerror=alert(1)></script> quota";
    quota.does(Event::StartContainer, Behavior::Error(hostile.to_owned()));
    let refused = container.start().await.expect_err("the plugin refuses it");
    assert!(refused.message().contains("20-quota"), "{refused}");

    let page = daemon.path("page.html");
    let name = page.display().to_string();
    let output = daemon.cairn(&["timeline", "p", "--html", &name]).await;
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(stdout(&output), "");
    let text = fs::read_to_string(&page).expect("the page");
    let verdict = text.split("id=\"verdict\"").nth(1).expect("a verdict");
    let verdict = verdict.split("</div>").next().expect("its end");
    for part in [
        "StartContainer c failed",
        "20-quota",
        "&lt;img src=x onerror=alert(1)&gt;",
    ] {
        assert!(verdict.contains(part), "{part}: {verdict}");
    }
    assert!(!text.contains("<img"), "the plugin's text is text");
    let data = text.split("id=\"data\">").nth(1).expect("data");
    let data = data.split("</script>").next().expect("its end");
    let data: serde_json::Value = serde_json::from_str(data).expect("JSON");
    let lanes = &data["groups"][0]["lanes"];
    for lane in [
        "CRI calls",
        "runtime",
        "network",
        "processes",
        "10-setter",
        "20-quota",
    ] {
        let there = lanes
            .as_array()
            .is_some_and(|l| l.iter().any(|l| l == lane));
        assert!(there, "{lane}: {lanes}");
    }
    assert!(text.contains(r#"env[\"SECRET\"]"#) && !text.contains("hunter2"));

    // The recorded events give the same page without the daemon.
    let log = daemon.path("events");
    let recorded = daemon.cairn(&["timeline", "p", "--json"]).await;
    fs::write(&log, &recorded.stdout).expect("written");
    let again = daemon.path("again.html");
    let output = tokio::process::Command::new(cairn_tests::bins::cairn())
        .args(["timeline", "--from"])
        .arg(&log)
        .arg("--html")
        .arg(&again)
        .output()
        .await
        .expect("cairn runs");
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(fs::read_to_string(&again).expect("the page"), text);
    pod.end().await;
}

#[tokio::test]
async fn a_page_that_cannot_be_had_leaves_the_one_that_was_there() {
    let daemon = Daemon::start().await;
    let page = daemon.path("page.html");
    fs::write(&page, "old").expect("written");
    let name = page.display().to_string();
    let output = daemon.cairn(&["timeline", "nobody", "--html", &name]).await;
    assert!(!output.status.success() && shown(&output).contains("nobody"));
    assert_eq!(fs::read_to_string(&page).expect("there"), "old");
    let output = daemon
        .cairn(&["timeline", "--follow", "--html", &name])
        .await;
    assert!(!output.status.success(), "{}", shown(&output));
}

#[test]
fn a_command_whose_reader_has_left_ends_without_an_error() {
    let dir = tempfile::TempDir::with_prefix(cairn_tests::daemon::PREFIX).expect("a directory");
    let log = dir.path().join("log");
    let event = r#"{"schema":1,"seq":1,"wall_ns":1,"mono_ns":1,"pod":"p1","kind":"step","step":"namespaces"}"#;
    fs::write(&log, format!("{event}\n").repeat(2)).expect("the log");
    let log = log.to_str().expect("a name");
    for form in [
        &["timeline", "--json", "--from", log][..],
        &["timeline", "--from", log],
        &["config", "default"],
    ] {
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let mut cairn = Command::new(bins::cairn());
        cairn.args(form).stdout(writer);
        let output = cairn.stderr(Stdio::piped()).output().expect("cairn runs");
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{form:?}: {output:?}"
        );
    }
}

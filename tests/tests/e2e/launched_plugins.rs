//! Plugins that the daemon launches: their life, and their rows in `cairn plugins`.

use std::{
    fs,
    io::Write as _,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    time::Duration,
};

use cairn_tests::{
    Daemon, Setup, bins,
    output::{shown, stdout},
    plugin::{Behavior, Plugin},
    until,
};
use nri::proto::Event;

use crate::policy::{GUARD, SLOW, info, until_state};

#[tokio::test]
async fn a_launched_plugin_that_fails_at_once_is_started_ever_later() {
    let toml = "[nri.plugin.\"10-fails\"]\nrestart = \"on-failure\"";
    let mut daemon = Daemon::new(Setup::default().toml(toml)).await;
    let file = daemon.path("plugins/10-fails");
    fs::write(&file, "#!/bin/sh\nexit 1\n").expect("a script");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("it is ours");
    daemon.serve().await;
    for after in ["1s", "2s", "4s"] {
        until(&format!("it is to be started after {after}"), || async {
            let line = format!("Restarting {{ after: {after} }}");
            daemon.log().contains(&line).then_some(())
        })
        .await;
    }
    daemon.cri().pod("p").await.end().await;
}

#[tokio::test]
async fn connections_and_files_that_are_rejected_are_listed_with_the_reason() {
    let mut daemon = Daemon::new(Setup::default()).await;
    fs::write(daemon.path("plugins/31-mode"), "").expect("a file");
    daemon.serve().await;
    let nri = daemon.nri_socket();
    drop(UnixStream::connect(&nri).expect("connect"));
    // The first bytes of the Go stub, which writes before it reads.
    let mut mistaken = UnixStream::connect(daemon.socket()).expect("connect");
    let frame = [0, 0, 0, 2, 0, 0, 0, 4, 1, 2, 3, 4];
    mistaken.write_all(&frame).expect("it is taken");
    let expected = [
        "31-mode: is not executable (chmod +x)".to_owned(),
        format!(
            "an NRI plugin connected to the CRI socket; the NRI socket is {}",
            nri.display()
        ),
        "before it registered".to_owned(),
    ];
    until("all are listed", || async {
        let output = daemon.cairn(&["plugins", "--output", "json"]).await;
        let output = stdout(&output);
        let all: serde_json::Value = serde_json::from_str(&output).expect("JSON");
        let reasons = all["rejected"].to_string();
        expected
            .iter()
            .all(|reason| reasons.contains(reason.as_str()))
            .then_some(())
    })
    .await;
    let table = stdout(&daemon.cairn(&["plugins"]).await);
    assert!(
        table.contains(
            "
rejected
"
        ) && table.contains("external, "),
        "{table}"
    );
}

#[tokio::test]
async fn cairn_plugins_shows_at_a_glance_who_is_healthy_who_hangs_and_who_is_missing() {
    let setup = Setup::default()
        .toml(GUARD)
        .toml(&format!("{SLOW}breaker = 0"))
        .plugin("05-logger", bins::peer("nri-logger"));
    let daemon = Daemon::with(setup).await;
    let slow = [Event::StopContainer, Event::CreateContainer];
    let slow = Plugin::subscribed(&daemon.nri_socket(), "10", "slow", &slow).await;
    slow.does(Event::CreateContainer, Behavior::Hang);
    let cri = daemon.cri();
    let mut config = cri.pod_config("p");
    let annotation = ("cairn.test/tolerate".to_owned(), "true".to_owned());
    config.annotations.extend([annotation]);
    let pod = cri.try_pod(config).await.expect("it is annotated");
    pod.create("c", &["true"]).await;
    let output = daemon.cairn(&["plugins"]).await;
    assert!(output.status.success(), "{}", shown(&output));
    let table = stdout(&output);
    // The rest of the table: `runtime/src/cli/plugin_table.rs`.
    let pid = info(&daemon, "05-logger").await["pid"].to_string();
    for (id, words) in [
        (
            "05-logger",
            &["connected", "launched", &pid, "v1alpha1", "all", "3"][..],
        ),
        ("10-slow", &["hung", "CreateContainer", "StopContainer"]),
        ("10-guard", &["MISSING", "required"]),
    ] {
        let line = table.lines().find(|line| line.starts_with(id));
        let line = line.unwrap_or_else(|| panic!("{id}: {table}"));
        for word in words {
            let has = line.split([' ', ',']).any(|w| w == *word);
            assert!(has, "{id} {word}: {table}");
        }
    }
    let slow = info(&daemon, "10-slow").await;
    assert!(slow["calls"] == 1 && slow["errors"] == 1, "{slow}");
    assert!(slow["p99_ns"].as_u64() >= Some(900_000_000), "{slow}");
    assert!(slow["last_error_age_ns"].as_u64() > Some(0), "{slow}");
    let help = stdout(&daemon.cairn(&["plugins", "--help"]).await);
    for word in ["--output", "json", "MISSING", "hung", "BACKLOG"] {
        assert!(help.contains(word), "{word}: {help}");
    }
    pod.end().await;
}

#[tokio::test]
async fn launched_plugins_that_fail_are_listed_and_heard_and_do_not_hold_the_start_up_until_they_time_out()
 {
    let dir = tempfile::tempdir().expect("a directory");
    let program = |name: &str, script: &str| {
        let file = dir.path().join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("it is ours");
        file
    };
    let setup = Setup::default()
        .toml("[nri]\nregistration_timeout = \"30s\"")
        .plugin(
            "10-broken",
            program("broken", "echo no such file: my.conf >&2; exit 3"),
        )
        .plugin("20-mute", program("mute", "exec sleep 1000"));
    let begun = std::time::Instant::now();
    let daemon = Daemon::with(setup).await;
    assert!(
        begun.elapsed() < Duration::from_secs(25),
        "{:?}",
        begun.elapsed()
    );
    let broken = until_state(&daemon, "10-broken", "gone").await;
    assert_eq!(broken["kind"], "launched", "{broken}");
    let why = broken["last_error"].as_str().unwrap_or_default();
    assert!(why.contains("before it registered"), "{broken}");
    let log = daemon.log();
    let mut lines = log.lines();
    let heard = lines.any(|l| l.contains("10-broken") && l.contains("no such file: my.conf"));
    assert!(heard, "what it says is in the log");
    assert!(
        log.contains("20-mute") && log.contains("goes on without it"),
        "{log}"
    );
}

//! The container's log file, byte by byte: CRI-130, 138, 250…256.

use std::fs;

use cairn_tests::{
    Daemon,
    criclog::{self, written},
};
use tonic::Code;

#[tokio::test]
async fn a_long_line_is_split_at_the_limit_and_joins_again() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("long").await;
    for size in [16_383_usize, 16_384, 16_385, 50_000] {
        let script = format!("head -c {size} /dev/zero | tr '\\0' x; echo");
        let container = pod.run(&format!("c{size}"), &["sh", "-c", &script]).await;
        container.exited().await;
        let records = container.records();
        let last = records.last().expect("a record");
        assert!(!last.partial, "the newline ends the line");
        assert!(records[..records.len() - 1].iter().all(|r| r.partial));
        assert!(records.iter().all(|r| r.content.len() <= 16_384));
        let mut expected = vec![b'x'; size];
        expected.push(b'\n');
        assert_eq!(written(&records, "stdout"), expected, "{size}");
        assert_eq!(records.len(), size.div_ceil(16_384), "{size}");
    }
    pod.end().await;
}

#[tokio::test]
async fn two_streams_at_once_lose_no_line() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("both").await;
    let script = "(i=0; while [ $i -lt 3000 ]; do echo out $i; i=$((i+1)); done) & \
                  (i=0; while [ $i -lt 3000 ]; do echo err $i >&2; i=$((i+1)); done); wait";
    let container = pod.run("c", &["sh", "-c", script]).await;
    container.exited().await;
    let records = container.records();
    for (stream, word) in [("stdout", "out"), ("stderr", "err")] {
        let lines = criclog::lines(&records, stream);
        let expected: Vec<String> = (0..3000).map(|i| format!("{word} {i}")).collect();
        assert_eq!(lines, expected, "{stream}");
    }
    pod.end().await;
}

#[tokio::test]
async fn reopening_while_writing_loses_and_doubles_nothing() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("rotate").await;
    let script = "i=0; while [ $i -lt 4000 ]; do echo $i; i=$((i+1)); done; echo end";
    let container = pod.run("c", &["sh", "-c", script]).await;
    let mut whole = Vec::new();
    for n in 0.. {
        let old = container.log.with_extension(format!("{n}"));
        if fs::rename(&container.log, &old).is_err() {
            break;
        }
        if container.reopen_log().await.is_err() {
            // It ended meanwhile; its last records are in the renamed file.
            whole.extend(fs::read(&old).expect("the old log"));
            break;
        }
        assert!(
            container.log.exists(),
            "the new file is there when the call returns"
        );
        whole.extend(fs::read(&old).expect("the old log"));
    }
    container.exited().await;
    whole.extend(fs::read(&container.log).unwrap_or_default());
    let lines = criclog::lines(&criclog::records(&whole), "stdout");
    let mut expected: Vec<String> = (0..4000).map(|i| i.to_string()).collect();
    expected.push("end".into());
    assert_eq!(lines, expected);
    pod.end().await;
}

#[tokio::test]
async fn a_reopen_that_fails_makes_no_file_and_says_why() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let pod = cri.pod("reopen").await;
    let nobody = cri.container_by_id(&"f".repeat(64), daemon.path("none"));
    let error = nobody.reopen_log().await.expect_err("no such container");
    assert_eq!(error.code(), Code::NotFound, "{error}");
    let container = pod.run("c", &["true"]).await;
    container.exited().await;
    fs::remove_file(&container.log).expect("the log is there");
    let reopened = container.reopen_log().await;
    reopened.expect_err("it does not run");
    assert!(!container.log.exists());
    pod.end().await;
}

#[tokio::test]
async fn without_a_log_path_output_is_drained() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("nolog").await;
    let mut config = pod
        .cri
        .container_config("c", &["sh", "-c", "head -c 1000000 /dev/zero; exit 5"]);
    config.log_path.clear();
    let container = pod.started(config).await;
    assert_eq!(container.exited().await.exit_code, 5);
    assert!(container.status().await.log_path.is_empty());
    let mut config = pod.cri.container_config("runs", &["sleep", "1000"]);
    config.log_path.clear();
    let container = pod.started(config).await;
    let reopened = container.reopen_log().await;
    reopened.expect("there is nothing to reopen");
    pod.end().await;
}

#[tokio::test]
async fn the_log_stays_when_the_container_is_removed() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("stays").await;
    let container = pod.run("c", &["echo", "kept"]).await;
    let status = container.exited().await;
    assert_eq!(status.log_path, container.log.display().to_string());
    container.remove().await.expect("RemoveContainer");
    assert_eq!(container.lines(), ["kept"]);
    pod.end().await;
    assert_eq!(container.lines(), ["kept"]);
}

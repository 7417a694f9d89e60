//! The kill of containers: all their processes, also without a PID namespace or `cgroup.kill`.
//! Needs root.

#![allow(clippy::disallowed_methods, reason = "tests may block")]

mod common;

use std::fs;
use std::time::Duration;

use cairn::monitor::{Ending, MonitorError};
use common::{Ground, end, running};

#[tokio::test]
async fn kill_all_reaches_every_process_of_a_container_without_its_own_pid_namespace() {
    let mut ground = Ground::new().await;
    let mut b = ground.container(&[
        "sh",
        "-c",
        "setsid sleep 66 & (setsid sleep 67 &); exec sleep 68",
    ]);
    let namespaces = b.spec["linux"]["namespaces"]
        .as_array_mut()
        .expect("namespaces");
    namespaces.retain(|n| n["type"] != "pid");
    let monitor = running(&ground, &b).await;
    common::until("all three run", || b.processes() >= 3).await;
    monitor.kill(9, false).await.expect("kill init");
    let Ending::Exited(exit) = monitor.wait().await else {
        panic!("lost")
    };
    assert_eq!((exit.code, exit.signal), (137, 9));
    assert_eq!(b.processes(), 0, "what init leaves behind dies with it");
    monitor.delete().await.expect("delete");
}

#[tokio::test]
async fn without_cgroup_kill_the_freezer_does_it() {
    let mut ground = Ground::new().await;
    let mut b = ground.container(&[
        "sh",
        "-c",
        "setsid sleep 66 & (setsid sleep 67 &); exec sleep 68",
    ]);
    b.cgroups.retain(|c| !c.unified());
    let monitor = running(&ground, &b).await;
    let mut spec = b.exec(&["sh", "-c", "setsid sleep 77 & sleep 76"]);
    spec.timeout = Some(Duration::from_millis(200));
    let error = monitor.exec_sync(spec).await.expect_err("a timeout");
    assert!(
        matches!(error, MonitorError::ExecTimedOut { .. }),
        "{error}"
    );
    let left = monitor.exec_sync(b.exec(&["ps"])).await.expect("exec");
    assert!(!String::from_utf8_lossy(&left.stdout).contains("sleep 77"));
    end(monitor).await;
    assert_eq!(b.processes(), 0);
}

/// The joiner is blocked in the container's frozen cgroups; without cgroup v2 it is not yet in the
/// exec's own cgroup.
#[tokio::test]
async fn an_exec_whose_time_is_over_before_it_is_inside_has_timed_out_and_is_never_inside() {
    for unified in [true, false] {
        let mut ground = Ground::new().await;
        let mut b = ground.container(&["sleep", "100"]);
        b.cgroups.retain(|c| unified || !c.unified());
        let monitor = running(&ground, &b).await;
        let freezer = b.cgroups.iter().find(|c| c.controller == "freezer");
        let state = format!("{}/freezer.state", freezer.expect("a freezer").path);
        fs::write(&state, "FROZEN").expect("it freezes");
        let mut spec = b.exec(&["touch", "/tmp/inside"]);
        let limit = Duration::from_secs(1);
        spec.timeout = Some(limit);
        let exec = monitor.exec_sync(spec);
        let thaw = async {
            tokio::time::sleep(limit * 3 / 2).await;
            // It handles one request at a time: with the second answer it has checked the deadline.
            for _ in 0..2 {
                monitor.reopen_log().await.expect("it answers");
            }
            fs::write(&state, "THAWED").expect("it thaws");
        };
        let (error, ()) = tokio::join!(exec, thaw);
        let error = error.expect_err("a timeout");
        assert!(
            matches!(error, MonitorError::ExecTimedOut { .. }),
            "{error}"
        );
        monitor.exec_sync(b.exec(&["true"])).await.expect("exec");
        assert!(!ground.root().join("tmp/inside").exists());
        end(monitor).await;
    }
}

//! OCI hooks after the start end with their container, and a stopped helper with its monitor. Needs
//! root.

#![allow(clippy::disallowed_methods, reason = "tests may block")]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use cairn::monitor::{Launcher, Monitor};
use common::{Box, Ground, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// Well below the limits of the daemon (30 s and more).
const SOON: Duration = Duration::from_secs(5);

/// A container whose hooks of one point run a script of the host.
fn hooked(ground: &mut Ground, program: &str, point: &str, script: &str) -> Box {
    let mut b = ground.container(&["sh", "-c", program]);
    b.spec["hooks"] = json!({});
    let hook = json!({
        "path": "/bin/sh",
        "args": ["sh", "-c", script, marker(&b)],
        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    });
    b.spec["hooks"][point] = json!([hook]);
    b
}

/// An argument of each process of its hooks, and of no other process.
fn marker(b: &Box) -> String {
    format!("hook-of-{}", b.id)
}

/// A script that hangs, with an orphan in a session of its own.
const HANGS: &str =
    "(setsid sh -c 'sleep 1001; exit' \"$0\" &) ; sh -c 'sleep 1002; exit' \"$0\"; exit";
/// A script that ends and leaves an orphan in a session of its own.
const LEAVES: &str = "(setsid sh -c 'sleep 1001; exit' \"$0\" &)";

/// Living processes with this argument.
fn marked(b: &Box) -> usize {
    processes(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|b| *b == 0)
            .any(|word| word == marker(b).as_bytes())
    })
}

/// Living processes in the directory of the container: its monitor and helpers.
fn helpers(b: &Box) -> usize {
    processes(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let cwd = fs::read_link(format!("/proc/{pid}/cwd"));
        name == "cairn-create\n" && cwd.is_ok_and(|cwd| cwd.starts_with(&b.dir))
    })
}

fn processes(matches: impl Fn(i32) -> bool) -> usize {
    let entries = fs::read_dir("/proc").expect("procfs").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| !has_ended(*pid) && matches(*pid)).count()
}

fn has_ended(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_none_or(|(_, state)| state.starts_with('Z'))
}

fn nothing_is_left(b: &Box, way: &str) {
    assert_eq!((marked(b), helpers(b)), (0, 0), "{way}");
    assert!(!b.dir.join("lc").exists(), "{way}");
}

fn kill_monitor(b: &Box) {
    let recorded = Launcher::recorded(&b.dir).expect("a pid file");
    let pid = Pid::from_raw(recorded.monitor).expect("a pid");
    kill_process(pid, Signal::KILL).expect("killed");
}

async fn kill_all(monitor: &Monitor) {
    monitor.kill(9, true).await.expect("kill all");
    monitor.wait().await;
}

/// Launches it, and starts it in a task, which waits for its hooks.
async fn starting(ground: &Ground, b: &Box) -> (Monitor, tokio::task::JoinHandle<()>) {
    let monitor = ground.launch(b).await.expect("create");
    let starting = monitor.clone();
    let start = tokio::spawn(async move { drop(starting.start().await) });
    until("the hook runs, and its orphan", || marked(b) == 3).await;
    (monitor, start)
}

#[tokio::test]
async fn a_kill_of_everything_ends_poststart_hooks_that_hang() {
    let mut ground = Ground::new().await;
    let b = hooked(&mut ground, "sleep 1000", "poststart", HANGS);
    let (monitor, start) = starting(&ground, &b).await;
    kill_all(&monitor).await;
    assert_eq!((marked(&b), helpers(&b)), (0, 0));
    start.await.expect("no panic");
    monitor.delete().await.expect("delete");
    nothing_is_left(&b, "delete");
}

#[tokio::test]
async fn a_deletion_ends_poststart_hooks_that_outlive_the_container() {
    let mut ground = Ground::new().await;
    let go = ground.root().join("tmp/go");
    let program = "until test -e /tmp/go; do sleep 0.01; done";
    let b = hooked(&mut ground, program, "poststart", HANGS);
    let (monitor, start) = starting(&ground, &b).await;
    fs::write(go, "").expect("written");
    monitor.wait().await;
    assert_eq!(marked(&b), 3, "they may go on");
    let deleted = tokio::time::timeout(SOON, monitor.delete()).await;
    deleted.expect("in time").expect("delete");
    start.await.expect("no panic");
    nothing_is_left(&b, "delete");
}

#[tokio::test]
async fn whoever_ends_a_deletion_whose_poststop_hooks_hang_leaves_nothing() {
    for monitor_first in [false, true] {
        let mut ground = Ground::new().await;
        let b = hooked(&mut ground, "sleep 1000", "poststop", HANGS);
        let monitor = common::running(&ground, &b).await;
        kill_all(&monitor).await;
        let deleting = monitor.clone();
        let delete = tokio::spawn(async move { drop(deleting.delete().await) });
        until("the hook runs, and its orphan", || marked(&b) == 3).await;
        if monitor_first {
            kill_monitor(&b);
        }
        let begun = Instant::now();
        ground.launcher.cleanup(&b.dir).await.expect("cleaned up");
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        nothing_is_left(&b, "cleanup");
        delete.await.expect("no panic");
    }
}

#[tokio::test]
async fn a_second_deletion_waits_for_the_same_poststop_hooks() {
    let mut ground = Ground::new().await;
    let go = ground.dir.path().join("go");
    let script = format!("until test -e {}; do sleep 0.01; done", go.display());
    let b = hooked(&mut ground, "sleep 1000", "poststop", &script);
    let monitor = common::running(&ground, &b).await;
    kill_all(&monitor).await;
    let (first, second) = (monitor.clone(), monitor.clone());
    let first = tokio::spawn(async move { first.delete().await });
    until("the hook runs", || marked(&b) == 1).await;
    let second = tokio::spawn(async move { second.delete().await });
    // It handles requests in their order: with this answer it has seen the second one.
    let _ = monitor.resize(1, 1).await; // it has no terminal
    fs::write(go, "").expect("written");
    first.await.expect("no panic").expect("deleted");
    second.await.expect("no panic").expect("deleted");
    nothing_is_left(&b, "delete");
}

#[tokio::test]
async fn a_lost_monitors_poststart_hooks_end_by_the_cleanup() {
    let mut ground = Ground::new().await;
    let b = hooked(&mut ground, "sleep 1000", "poststart", HANGS);
    let (monitor, start) = starting(&ground, &b).await;
    kill_monitor(&b);
    monitor.wait().await;
    ground.launcher.cleanup(&b.dir).await.expect("cleaned up");
    nothing_is_left(&b, "cleanup");
    start.await.expect("no panic");
}

#[tokio::test]
async fn a_process_that_a_hook_leaves_in_the_background_ends_with_the_container() {
    for is_lost in [false, true] {
        let mut ground = Ground::new().await;
        let b = hooked(&mut ground, "sleep 1000", "poststart", LEAVES);
        let monitor = common::running(&ground, &b).await;
        until("it runs", || marked(&b) == 1).await;
        assert_eq!(helpers(&b), 1, "the helper stays with it");
        if is_lost {
            kill_monitor(&b);
            monitor.wait().await;
            ground.launcher.cleanup(&b.dir).await.expect("cleaned up");
        } else {
            common::end(monitor).await;
        }
        nothing_is_left(&b, "the end");
    }
}

/// Without cgroup v2 the helper is in no cgroup of the container before it has read its inputs,
/// which takes long here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_helper_that_stops_before_it_is_in_a_cgroup_ends_with_its_monitor() {
    for is_killed in [false, true] {
        let mut ground = Ground::new().await;
        let mut b = ground.container(&["sleep", "1000"]);
        b.cgroups.retain(|c| !c.unified());
        let long: Vec<String> = (0..300_000).map(|n| format!("value {n}")).collect();
        b.spec["annotations"] = json!({ "long": long.join(" ") });
        let (launcher, spec) = (ground.launcher.clone(), b.launch_spec());
        let launch = tokio::spawn(async move { launcher.launch(spec).await.map(drop) });
        let helper = stopped_helper(&b).await;
        let cgroups = fs::read_to_string(format!("/proc/{helper}/cgroup")).expect("it is there");
        assert!(!cgroups.contains(&b.id), "too late: {cgroups}");
        if is_killed {
            let monitor = parent(helper);
            kill_process(Pid::from_raw(monitor).expect("a pid"), Signal::KILL).expect("killed");
            drop(launch.await.expect("no panic").expect_err("it is lost"));
        } else {
            launch.abort();
        }
        until("the helper has ended", || has_ended(helper)).await;
        ground.launcher.cleanup(&b.dir).await.expect("cleaned up");
        nothing_is_left(&b, "cleanup");
    }
}

/// Stops the helper as soon as it executes its program.
async fn stopped_helper(b: &Box) -> i32 {
    let find = || {
        let entries = fs::read_dir("/proc").expect("procfs").flatten();
        let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let cwd = fs::read_link(format!("/proc/{pid}/cwd"));
            line.starts_with(b"cairn-create") && cwd.is_ok_and(|cwd| cwd == b.dir)
        })
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(pid) = find() {
            kill_process(Pid::from_raw(pid).expect("a pid"), Signal::STOP).expect("stopped");
            return pid;
        }
        assert!(Instant::now() < deadline, "no helper");
        tokio::task::yield_now().await;
    }
}

fn parent(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    let parent = fields.split(' ').nth(1).expect("a parent");
    parent.parse().expect("a number")
}

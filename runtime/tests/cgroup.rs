//! The cgroup module on this machine's own hierarchies, in any layout. Needs root.
//!
//! Every test works below its own parent cgroup and removes it, even if it fails.

#![allow(clippy::disallowed_methods, reason = "tests may block")]

use cairn::cgroup::{Cgroup, Detail, Host, OpenFiles};
use oci_spec::runtime::LinuxResources;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

/// A parent cgroup of the test; its processes and directories are removed when it is dropped.
struct Parent {
    host: Host,
    path: String,
}

impl Parent {
    fn new(test: &str) -> Self {
        Self {
            host: Host::detect().unwrap(),
            path: format!("/cairn-test-{}-{test}", std::process::id()),
        }
    }

    fn container(&self, name: &str) -> Cgroup {
        self.host.container(&self.path, name).unwrap()
    }

    fn group(&self) -> Cgroup {
        self.host.pod(&self.path, "/unused", "unused").unwrap()
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let group = self.group();
        let clean = async {
            group.kill_all(LONG).await?;
            group.remove(LONG).await
        };
        // On a separate thread: a runtime cannot be entered from within another.
        let result = std::thread::scope(|s| s.spawn(|| block_on(clean)).join().unwrap());
        if !std::thread::panicking() {
            result.unwrap();
        }
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().unwrap().block_on(work)
}

/// Returns its files in v1 hierarchies by which a process enters it.
fn tasks(group: &Cgroup) -> Vec<PathBuf> {
    let unified = group.unified_dir();
    let v1 = group
        .dirs()
        .into_iter()
        .filter(|dir| Some(dir) != unified.as_ref());
    v1.map(|dir| dir.join("tasks")).collect()
}

/// Whether the cgroup exists in every hierarchy.
fn exists(group: &Cgroup) -> bool {
    group.dirs().iter().all(|dir| dir.is_dir())
}

/// Runs `script` with sh as a process that has joined `group` itself. The script waits for a line
/// from the test, so that it does nothing outside.
fn spawn(group: &Cgroup, script: &str) -> Child {
    let mut enter = String::from("set -e\n");
    for file in tasks(group) {
        enter += &format!("echo 0 > '{}'\n", file.display());
    }
    if let Some(dir) = group.unified_dir() {
        // The monitor starts there by CLONE_INTO_CGROUP; a shell has to move.
        enter += &format!("echo 0 > '{}/cgroup.procs'\n", dir.display());
    }
    let mut child = Command::new("sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .arg("-c")
        .arg(format!("{enter}echo in\nset +e\n{script}"))
        .spawn()
        .unwrap();
    let mut line = [0_u8; 3];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
    assert_eq!(&line, b"in\n");
    child
}

fn resources(json: serde_json::Value) -> LinuxResources {
    serde_json::from_value(json).unwrap()
}

fn read(group: &Cgroup, controller: &str, file: &str) -> String {
    let path = group.dir_of(controller).unwrap().join(file);
    let text = std::fs::read_to_string(&path);
    text.unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .trim()
        .to_owned()
}

/// Returns the memory limit from this layout's file.
fn memory_limit(group: &Cgroup) -> String {
    let v2 = group.dir_of("memory").unwrap().join("memory.max").exists();
    let file = if v2 {
        "memory.max"
    } else {
        "memory.limit_in_bytes"
    };
    read(group, "memory", file)
}

#[tokio::test]
async fn a_process_joins_is_seen_in_every_hierarchy_and_is_killed_with_its_children() {
    let parent = Parent::new("kill");
    let group = parent.container("c");
    group.create().unwrap();
    let mut child = spawn(&group, "sleep 1000 & sleep 1000 & wait");
    let membership = std::fs::read_to_string(format!("/proc/{}/cgroup", child.id())).unwrap();
    for line in membership.lines() {
        assert!(line.ends_with(group.path().as_str()), "{line}");
    }
    assert!(group.procs().unwrap().contains(&child.id()));
    group.kill_all(LONG).await.unwrap();
    assert!(!group.populated().unwrap());
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    group.remove(LONG).await.unwrap();
    assert!(!exists(&group));
}

#[tokio::test]
async fn a_fork_bomb_ends() {
    let parent = Parent::new("bomb");
    let group = parent.container("c");
    group.create().unwrap();
    group
        .apply(&resources(serde_json::json!({"pids": {"limit": 60}})))
        .unwrap();
    let mut child = spawn(
        &group,
        "f() { f & f & }; while :; do f 2>/dev/null; done 2>/dev/null",
    );
    group.kill_all(LONG).await.unwrap();
    assert!(!group.populated().unwrap());
    child.wait().unwrap();
}

#[tokio::test]
async fn a_process_outside_the_unified_tree_is_killed_too() {
    let parent = Parent::new("v1only");
    let group = parent.container("c");
    group.create().unwrap();
    let tasks = tasks(&group);
    if tasks.is_empty() {
        return; // cgroup v2 only: there is no outside
    }
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    for file in &tasks {
        std::fs::write(file, child.id().to_string()).unwrap();
    }
    group.kill_all(LONG).await.unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

#[tokio::test]
async fn a_frozen_process_can_be_killed() {
    let parent = Parent::new("freeze");
    let group = parent.container("c");
    group.create().unwrap();
    let mut child = spawn(&group, "while :; do :; done");
    let used = || {
        group
            .stats(Detail::All, &mut OpenFiles::default())
            .cpu
            .unwrap()
            .usage_ns
    };
    let unified = group.unified_dir().map(|dir| dir.join("cgroup.freeze"));
    match unified.filter(|file| file.exists()) {
        Some(file) => std::fs::write(file, "1").unwrap(),
        None => {
            let v1 = group.dir_of("freezer").unwrap().join("freezer.state");
            std::fs::write(v1, "FROZEN").unwrap();
        }
    }
    let frozen = async {
        let mut before = None;
        while before.replace(used()) != Some(used()) || used() == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LONG, frozen).await.unwrap();
    group.kill_all(LONG).await.unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

#[tokio::test]
async fn removal_waits_for_the_last_process_and_takes_nested_cgroups() {
    let parent = Parent::new("wait");
    let group = parent.container("c");
    group.create().unwrap();
    let nested = group.child("exec-1").unwrap();
    nested.create().unwrap();
    let mut child = spawn(&nested, "read line");
    let error = group.remove(Duration::from_millis(50)).await.unwrap_err();
    assert!(error.to_string().contains("remove: not done"), "{error}");
    let (removed, ()) = tokio::join!(group.remove(LONG), async {
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        child.wait().unwrap();
    });
    removed.unwrap();
    assert!(group.dirs().iter().all(|dir| !dir.exists()));
}

#[tokio::test]
async fn parents_that_cairn_made_go_with_the_last_child_and_others_stay() {
    let parent = Parent::new("marks");
    let theirs = parent.group();
    theirs.create().unwrap();
    let above = format!("{}/a/b", parent.path);
    let one = parent.host.container(&above, "one").unwrap();
    let two = parent.host.container(&above, "two").unwrap();
    one.create().unwrap();
    two.create().unwrap();
    one.remove(LONG).await.unwrap();
    assert!(exists(&two));
    two.remove(LONG).await.unwrap();
    for dir in theirs.dirs() {
        assert!(dir.exists() && !dir.join("a").exists(), "{}", dir.display());
    }
}

#[tokio::test]
async fn parents_whose_removal_was_cut_short_go_with_the_next_removal() {
    let parent = Parent::new("cut");
    let theirs = parent.group();
    theirs.create().unwrap();
    let above = format!("{}/a/b", parent.path);
    let group = parent.host.container(&above, "one").unwrap();
    group.create().unwrap();
    for dir in group.dirs() {
        std::fs::remove_dir(&dir).unwrap();
    }
    // The group's last directory is in the hierarchy from which parents are removed first.
    let unified = group.dirs().pop().unwrap();
    std::fs::remove_dir(unified.parent().unwrap()).unwrap();
    group.remove(LONG).await.unwrap();
    for dir in theirs.dirs() {
        assert!(dir.exists() && !dir.join("a").exists(), "{}", dir.display());
    }
}

#[tokio::test]
async fn limits_are_applied_updated_and_read_back() {
    let parent = Parent::new("limits");
    let group = parent.container("c");
    group.create().unwrap();
    let first = serde_json::json!({
        "memory": {"limit": 64 << 20, "swap": 64 << 20},
        "cpu": {"shares": 1024, "quota": 20000, "period": 100000, "cpus": "0"},
        "pids": {"limit": 50},
        "hugepageLimits": [{"pageSize": "2MB", "limit": 0}, {"pageSize": "1GB", "limit": 0}]
    });
    group.apply(&resources(first)).unwrap();
    assert_eq!(memory_limit(&group), (64 << 20).to_string());
    assert_eq!(read(&group, "cpuset", "cpuset.cpus"), "0");
    assert_eq!(read(&group, "pids", "pids.max"), "50");
    let mut files = OpenFiles::default();
    for megabytes in [256_u64, 16, 32] {
        let limit = megabytes << 20;
        let next = serde_json::json!({"memory": {"limit": limit, "swap": limit}});
        group.change(resources(next)).await.unwrap();
        let stats = group.stats(Detail::All, &mut files);
        assert_eq!(stats.memory.unwrap().limit, Some(limit));
        assert_eq!(stats.swap.map(|s| s.limit), Some(Some(0)));
        assert_eq!(stats.limits.cpu_quota_us, Some(20000));
    }
}

#[tokio::test]
async fn files_that_are_held_open_show_a_cgroup_that_was_removed_and_made_again() {
    let parent = Parent::new("again");
    let group = parent.container("c");
    let mut files = OpenFiles::default();
    let mut limit = || {
        let stats = group.stats(Detail::All, &mut files);
        Some(stats.memory?.limit.map(|limit| limit >> 20))
    };
    for megabytes in [64_u64, 32] {
        group.create().unwrap();
        let own = serde_json::json!({"memory": {"limit": megabytes << 20}});
        group.apply(&resources(own)).unwrap();
        assert_eq!(limit(), Some(Some(megabytes)));
        group.remove(LONG).await.unwrap();
        assert_eq!(limit(), None);
    }
}

#[tokio::test]
async fn a_refused_value_takes_the_whole_update_back() {
    let parent = Parent::new("undo");
    let group = parent.container("c");
    group.create().unwrap();
    let before = serde_json::json!({"memory": {"limit": 64 << 20}, "pids": {"limit": 50}});
    group.apply(&resources(before)).unwrap();
    let bad = serde_json::json!({
        "memory": {"limit": 128 << 20}, "pids": {"limit": 70}, "cpu": {"quota": 5000, "cpus": "4095"}
    });
    let refused = group.change(resources(bad)).await.unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("write \"4095\" to cpuset.cpus"), "{text}");
    assert!(!text.contains("restoring"), "{text}");
    assert_eq!(memory_limit(&group), (64 << 20).to_string());
    assert_eq!(read(&group, "pids", "pids.max"), "50");
    assert_eq!(
        group
            .stats(Detail::All, &mut OpenFiles::default())
            .limits
            .cpu_quota_us,
        None
    );
}

#[test]
fn device_rules_hold_for_a_process_in_the_cgroup() {
    let parent = Parent::new("devices");
    let group = parent.container("c");
    group.create().unwrap();
    let rules = serde_json::json!({"devices": [
        {"allow": false, "access": "rwm"},
        {"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rw"}
    ]});
    group.apply(&resources(rules)).unwrap();
    let script = "cat /dev/null && ! cat /dev/zero >/dev/null 2>/dev/null";
    let script = script.replace("cat /dev/zero", "head -c1 /dev/zero");
    let status = spawn(&group, &script).wait().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn an_oom_kill_is_counted_when_the_process_is_reaped() {
    let parent = Parent::new("oom");
    let group = parent.container("c");
    group.create().unwrap();
    let small = serde_json::json!({"memory": {"limit": 8 << 20, "swap": 8 << 20}});
    group.apply(&resources(small)).unwrap();
    assert_eq!(group.oom_kills().unwrap(), 0);
    let status = spawn(&group, "exec tail /dev/zero").wait().unwrap();
    assert_eq!(status.signal(), Some(9));
    assert_eq!(group.oom_kills().unwrap(), 1);
}

#[test]
fn many_pods_come_and_go_below_one_parent_at_once() {
    let parent = Parent::new("race");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let parent = &parent;
            scope.spawn(move || {
                for round in 0..10 {
                    let above = format!("{}/shared/deep", parent.path);
                    let name = format!("c{thread}-{round}");
                    let group = parent.host.container(&above, &name).unwrap();
                    group.create().unwrap();
                    assert!(exists(&group));
                    block_on(group.remove(LONG)).unwrap();
                }
            });
        }
    });
    let shared = parent.group().child("shared").unwrap();
    assert!(
        shared.dirs().iter().all(|dir| !dir.exists()),
        "the shared parents are left"
    );
}

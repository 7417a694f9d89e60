//! Monitor, cairn-create and init through the daemon's client: a container's life. Needs root.

#![allow(clippy::disallowed_methods, reason = "tests may block")]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use cairn::monitor::{Ending, Exit, Reattached};
use common::{Ground, records};

fn exit(ending: Ending) -> Exit {
    match ending {
        Ending::Exited(exit) => exit,
        Ending::Lost => panic!("the monitor is lost"),
    }
}

#[tokio::test]
async fn a_container_is_created_started_logged_waited_for_and_deleted() {
    let mut ground = Ground::new().await;
    let b = ground.container(&["sh", "-c", "echo out; echo err >&2; printf tail; exit 7"]);
    let monitor = ground.launch(&b).await.expect("create");
    assert!(monitor.init().0 > 1);
    monitor.start().await.expect("start");
    let end = exit(monitor.wait().await);
    assert_eq!(
        (end.code, end.signal, end.oom_killed, end.started),
        (7, 0, false, true)
    );
    let log = fs::read_to_string(&b.log).expect("log");
    let mut found = records(&log);
    found.sort();
    let rec = |s: &str, t: &str, c: &str| (s.to_owned(), t.to_owned(), c.to_owned());
    let mut wanted = [
        rec("stdout", "F", "out"),
        rec("stderr", "F", "err"),
        rec("stdout", "P", "tail"),
    ];
    wanted.sort();
    assert_eq!(found, wanted);
    monitor.delete().await.expect("delete");
    assert!(!b.dir.join("ctl.sock").exists());
    assert!(!b.dir.join("lc").exists());
    let pid = monitor.init().0;
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[tokio::test]
async fn init_is_as_its_spec_says() {
    let mut ground = Ground::new().await;
    let mut b = ground.container(&[
        "sh",
        "-c",
        "id; hostname; echo $MARK $HOME; ls /proc/self/fd | wc -l; cat /proc/self/oom_score_adj; \
         grep -E '^(Cap(Eff|Prm|Bnd|Inh|Amb)|NoNewPrivs|Seccomp|SigIgn|SigBlk):' /proc/self/status; \
         grep 'open files' /proc/self/limits; cat /proc/self/cgroup; pwd; ls /sys/fs/cgroup",
    ]);
    b.spec["process"]["user"] =
        serde_json::json!({"uid": 1000, "gid": 1000, "additionalGids": [7, 8]});
    b.spec["process"]["cwd"] = "/made/for/me".into();
    let log = ground.run(&b).await;
    println!("{log}");
    let text: Vec<String> = records(&log).into_iter().map(|r| r.2).collect();
    let has = |line: &str| {
        assert!(
            text.iter().any(|l| l == line),
            "no line {line:?} in\n{}",
            text.join("\n")
        )
    };
    has("uid=1000(user) gid=1000 groups=7,8");
    has("box");
    has("yes /home/user");
    has("500");
    has("CapEff:\t0000000000000000");
    has("CapPrm:\t0000000000000000");
    has("CapBnd:\t00000000000004e1");
    has("NoNewPrivs:\t1");
    has("SigIgn:\t0000000000000000");
    has("SigBlk:\t0000000000000000");
    has("Max open files            512                  1024                 files     ");
    has("/made/for/me");
    let joined = text
        .iter()
        .filter(|l| l.ends_with(&format!("/{}", b.id)))
        .count();
    assert_eq!(joined, b.cgroups.len(), "init is in each of its cgroups");
}

#[tokio::test]
async fn a_missing_program_fails_the_creation_by_name_and_leaves_nothing() {
    let mut ground = Ground::new().await;
    let b = ground.container(&["/nope"]);
    let error = ground
        .launch(&b)
        .await
        .err()
        .expect("no such program")
        .to_string();
    assert!(
        error.contains("/nope") && error.contains("no such file"),
        "{error}"
    );
    assert!(!b.dir.join("lc").exists());
    for dir in &b.cgroups {
        let procs = fs::read_to_string(format!("{}/cgroup.procs", dir.path)).expect("cgroup");
        assert_eq!(procs, "", "{}", dir.path);
    }
}

#[tokio::test]
async fn a_container_survives_its_daemon_and_is_found_again() {
    let mut ground = Ground::new().await;
    let b = ground.container(&[
        "sh",
        "-c",
        "trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done",
    ]);
    let monitor = ground.launch(&b).await.expect("create");
    monitor.start().await.expect("start");
    let init = monitor.init();
    drop(monitor);
    let Reattached::Running(monitor) = ground
        .launcher
        .reattach(&b.id, &b.dir)
        .await
        .expect("reattach")
    else {
        panic!("not running");
    };
    assert_eq!(monitor.init(), init);
    common::until("the trap is set", || {
        fs::read_to_string(&b.log).is_ok_and(|l| l.contains("up"))
    })
    .await;
    monitor.kill(15, false).await.expect("kill");
    assert_eq!(exit(monitor.wait().await).code, 3);
    drop(monitor);
    let found = ground
        .launcher
        .reattach(&b.id, &b.dir)
        .await
        .expect("reattach");
    let Reattached::Exited(end, Some(monitor)) = found else {
        panic!("its end is not known")
    };
    assert_eq!(end.code, 3);
    monitor.delete().await.expect("delete");
}

#[tokio::test]
async fn a_container_that_was_not_started_goes_with_its_daemon() {
    let mut ground = Ground::new().await;
    let b = ground.container(&["sleep", "100"]);
    let monitor = ground.launch(&b).await.expect("create");
    let pid = monitor.init().0;
    drop(monitor);
    common::until("init has ended", || {
        !std::path::Path::new(&format!("/proc/{pid}")).exists()
    })
    .await;
    common::until("the state is removed", || {
        !b.dir.join("lc").exists() && !b.dir.join("ctl.sock").exists()
    })
    .await;
    let found = ground
        .launcher
        .reattach(&b.id, &b.dir)
        .await
        .expect("reattach");
    assert!(matches!(found, Reattached::Lost));
    ground.launcher.cleanup(&b.dir).await.expect("cleanup");
}

#[tokio::test]
async fn a_lost_monitor_is_noticed_and_cleaned_up_after() {
    let mut ground = Ground::new().await;
    let b = ground.container(&["sh", "-c", "setsid sleep 100 & sleep 100"]);
    let monitor = ground.launch(&b).await.expect("create");
    monitor.start().await.expect("start");
    let recorded = cairn::monitor::Launcher::recorded(&b.dir).expect("pid file");
    assert_eq!((recorded.pid, recorded.start_time), monitor.init());
    let pid = rustix::process::Pid::from_raw(recorded.monitor).expect("pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill the monitor");
    let ending = tokio::time::timeout(Duration::from_secs(5), monitor.wait())
        .await
        .expect("noticed");
    assert_eq!(ending, Ending::Lost);
    assert_eq!(
        ground.launcher.cleanup(&b.dir).await.expect("cleanup"),
        None
    );
    for dir in &b.cgroups {
        let procs = fs::read_to_string(format!("{}/cgroup.procs", dir.path)).expect("cgroup");
        assert_eq!(procs, "", "{}", dir.path);
    }
}

#[tokio::test]
async fn a_log_that_cannot_be_opened_is_named() {
    let mut ground = Ground::new().await;
    let mut b = ground.container(&["true"]);
    b.log = ground.root(); // a directory
    let error = ground.launch(&b).await.err().expect("refused").to_string();
    assert!(
        error.contains("open the log") && error.contains("rootfs"),
        "{error}"
    );
    assert!(!b.dir.join("ctl.sock").exists());
}

/// Finds the running helper of this container.
fn helper(dir: &std::path::Path) -> Option<rustix::process::Pid> {
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = pids.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let pid = pids.find(|pid| {
        let is = |name: &str| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.trim() == name)
        };
        fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == dir) && is("cairn-create")
    });
    pid.and_then(rustix::process::Pid::from_raw)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whenever_the_helper_is_killed_nothing_is_left() {
    let mut ground = Ground::new().await;
    let mut failed = 0;
    let deadline = Instant::now() + Duration::from_secs(60);
    for round in 0u32.. {
        // A busy machine may have no failure in the first rounds.
        if round >= 16 && (failed > 0 || Instant::now() > deadline) {
            break;
        }
        let b = ground.container(&["sleep", "100"]);
        let launcher = ground.launcher.clone();
        let spec = b.launch_spec();
        let launch = tokio::spawn(async move { launcher.launch(spec).await });
        let mut found = None;
        while found.is_none() && !launch.is_finished() {
            found = helper(&b.dir);
        }
        tokio::time::sleep(Duration::from_micros(u64::from(round % 16) * 400)).await;
        if let Some(pid) = found {
            // It may have ended already.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        match launch.await.expect("no panic") {
            Err(_) => failed += 1,
            Ok(monitor) => {
                monitor.kill(9, true).await.expect("kill");
                monitor.wait().await;
                monitor.delete().await.expect("delete");
            }
        }
        common::until("the state is removed", || {
            !b.dir.join("lc").exists() && !b.dir.join("ctl.sock").exists()
        })
        .await;
        for dir in &b.cgroups {
            let procs = fs::read_to_string(format!("{}/cgroup.procs", dir.path)).expect("cgroup");
            assert_eq!(procs, "", "round {round}: {}", dir.path);
        }
    }
    assert!(failed > 0, "no helper was hit");
}

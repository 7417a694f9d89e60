//! Exec, attach, kill, log and terminal through the daemon's client. Needs root.

#![allow(clippy::disallowed_methods, reason = "tests may block")]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use cairn::monitor::{AttachSpec, Ending, MonitorError};
use common::{Ground, end, records, running};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const IN_AND_OUT: AttachSpec = AttachSpec {
    stdin: true,
    stdout: true,
    stderr: false,
};

async fn read_until(stream: &mut (impl AsyncReadExt + Unpin), wanted: &str) -> String {
    let mut text = String::new();
    let mut chunk = [0; 1024];
    let deadline = Instant::now() + Duration::from_secs(10);
    while !text.contains(wanted) {
        let left = deadline.saturating_duration_since(Instant::now());
        let n = tokio::time::timeout(left, stream.read(&mut chunk)).await;
        let n = n
            .unwrap_or_else(|_| panic!("no {wanted:?} in {text:?}"))
            .expect("read");
        assert!(n > 0, "the stream ended without {wanted:?}: {text:?}");
        text.push_str(&String::from_utf8_lossy(&chunk[..n]));
    }
    text
}

#[tokio::test]
async fn an_exec_is_as_confined_as_its_container() {
    let mut ground = Ground::new().await;
    let look = "for n in /proc/self/ns/*; do readlink $n; done; \
        grep -E '^(Uid|Gid|Groups|Cap...|NoNewPrivs|Seccomp|SigIgn|SigBlk|Umask):' /proc/self/status; \
        grep -v '^0:' /proc/self/cgroup; cat /proc/self/oom_score_adj; cat /proc/self/limits; env | grep -v SHLVL; pwd; \
        ls /proc/self/fd | wc -l; echo seen";
    let mut b = ground.container(&["sh", "-c", &format!("{look}; sleep 100")]);
    b.spec["process"]["user"] =
        serde_json::json!({"uid": 1000, "gid": 1000, "additionalGids": [7]});
    b.spec["process"]["env"] = serde_json::json!(["PATH=/bin", "HOME=/", "MARK=yes"]);
    b.spec["linux"]["seccomp"] = no_mkdir();
    let monitor = running(&ground, &b).await;
    let out = monitor
        .exec_sync(b.exec(&["sh", "-c", look]))
        .await
        .expect("exec");
    common::until("init has looked", || {
        fs::read_to_string(&b.log).is_ok_and(|l| l.contains("seen"))
    })
    .await;
    let init: Vec<String> = records(&fs::read_to_string(&b.log).expect("log"))
        .into_iter()
        .map(|r| r.2)
        .collect();
    let exec: Vec<String> = String::from_utf8_lossy(&out.stdout)
        .lines()
        .map(str::to_owned)
        .collect();
    assert_eq!(exec, init, "{}", String::from_utf8_lossy(&out.stderr));
    assert!(init.iter().any(|l| l == "Seccomp:\t2"), "{init:?}");
    let refused = monitor
        .exec_sync(b.exec(&["mkdir", "/tmp/x"]))
        .await
        .expect("exec");
    assert_ne!(refused.code, 0, "the filter acts");
    let unified = b.cgroups.iter().find(|c| c.unified()).expect("unified");
    // Processes that joined it may still be ending.
    common::until("sub-groups are removed", || {
        let sessions = fs::read_dir(&unified.path).expect("cgroup");
        !sessions.flatten().any(|e| e.path().is_dir())
    })
    .await;
    end(monitor).await;
}

#[tokio::test]
async fn an_exec_into_a_directory_that_is_not_there_names_it() {
    let mut ground = Ground::new().await;
    let b = ground.container(&["sleep", "100"]);
    let monitor = running(&ground, &b).await;
    let mut lost = b.exec(&["true"]);
    lost.process.cwd = b"/not/there".to_vec();
    let error = monitor
        .exec_sync(lost)
        .await
        .expect_err("no such directory");
    assert!(error.to_string().contains("/not/there"), "{error}");
    end(monitor).await;
}

fn no_mkdir() -> serde_json::Value {
    serde_json::json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"],
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 77}]
    })
}

#[tokio::test]
async fn a_timeout_kills_the_exec_with_all_it_started_and_nothing_else() {
    let mut ground = Ground::new().await;
    let b = ground.container(&["sleep", "100"]);
    let monitor = running(&ground, &b).await;
    let mut spec = b.exec(&[
        "sh",
        "-c",
        "setsid sleep 77 & (setsid sh -c 'sleep 78 & sleep 79' &) ; sleep 76",
    ]);
    spec.timeout = Some(Duration::from_millis(300));
    let started = Instant::now();
    let error = monitor.exec_sync(spec).await.expect_err("a timeout");
    assert!(
        matches!(error, MonitorError::ExecTimedOut { .. }),
        "{error}"
    );
    // By the monitor: its client would end it three seconds later.
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
    let left = monitor
        .exec_sync(b.exec(&["ps"]))
        .await
        .expect("the container still answers");
    let left = String::from_utf8_lossy(&left.stdout).into_owned();
    assert!(!left.contains("sleep 7"), "{left}");
    assert!(left.contains("sleep 100"), "{left}");
    end(monitor).await;
}

#[tokio::test]
async fn a_containers_terminal_is_logged_attached_and_resized() {
    let mut ground = Ground::new().await;
    let mut b = ground.container(&[
        "sh",
        "-c",
        "tty; echo err >&2; read x; stty size; echo got $x; read y; exit 5",
    ]);
    (b.tty, b.stdin) = (true, true);
    b.spec["process"]["terminal"] = true.into();
    let monitor = ground.launch(&b).await.expect("create");
    let mut session = monitor
        .attach(AttachSpec {
            stdin: true,
            stdout: true,
            stderr: true,
        })
        .await
        .expect("attach");
    assert!(session.stderr.is_none());
    monitor.start().await.expect("start");
    let mut out = session.stdout.take().expect("stdout");
    let text = read_until(&mut out, "err").await;
    assert!(
        text.contains("/dev/pts/0") || text.contains("/dev/console"),
        "{text}"
    );
    monitor.resize(111, 22).await.expect("resize");
    session
        .stdin
        .as_mut()
        .expect("stdin")
        .write_all(b"word\n")
        .await
        .expect("write");
    let text = read_until(&mut out, "got word").await;
    assert!(text.contains("22 111"), "{text}");
    session
        .stdin
        .as_mut()
        .expect("stdin")
        .write_all(b"\n")
        .await
        .expect("write");
    let Ending::Exited(exit) = monitor.wait().await else {
        panic!("lost")
    };
    assert_eq!(exit.code, 5);
    monitor.delete().await.expect("delete");
    let log = fs::read_to_string(&b.log).expect("log");
    assert!(records(&log).iter().all(|r| r.0 == "stdout"), "{log}");
    assert!(log.contains("got word"), "{log}");
}

#[tokio::test]
async fn stdin_once_ends_with_the_first_session_and_otherwise_stays() {
    let mut ground = Ground::new().await;
    for once in [true, false] {
        let mut b = ground.container(&["sh", "-c", "while read x; do echo got $x; done; echo eof"]);
        (b.stdin, b.stdin_once) = (true, once);
        let monitor = running(&ground, &b).await;
        let mut session = monitor.attach(IN_AND_OUT).await.expect("attach");
        session
            .stdin
            .as_mut()
            .expect("stdin")
            .write_all(b"one\n")
            .await
            .expect("write");
        read_until(session.stdout.as_mut().expect("stdout"), "got one").await;
        let attach_id = session.attach_id;
        drop(session);
        monitor.detach(attach_id).await.expect("detach");
        if once {
            monitor.wait().await;
            assert!(fs::read_to_string(&b.log).expect("log").contains("eof"));
            monitor.delete().await.expect("delete");
        } else {
            let mut session = monitor.attach(IN_AND_OUT).await.expect("attach again");
            session
                .stdin
                .as_mut()
                .expect("stdin")
                .write_all(b"two\n")
                .await
                .expect("write");
            read_until(session.stdout.as_mut().expect("stdout"), "got two").await;
            end(monitor).await;
        }
    }
}

/// A file system of four pages.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn at(dir: &std::path::Path) -> Self {
        fs::create_dir_all(dir).expect("a directory");
        let options = Some(c"size=16k");
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("full", dir, "tmpfs", flags, options).expect("mount");
        Self(dir.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).expect("unmount");
    }
}

#[tokio::test]
async fn a_full_disk_does_not_stop_the_container() {
    let mut ground = Ground::new().await;
    let b = ground.container(&["sh", "-c", "seq 1 100000; exit 9"]);
    let full = SmallDisk::at(b.log.parent().expect("a directory"));
    let monitor = running(&ground, &b).await;
    let Ending::Exited(exit) = monitor.wait().await else {
        panic!("lost")
    };
    assert_eq!(exit.code, 9);
    assert!(exit.log_lost > 1_000_000, "{}", exit.log_lost);
    monitor.delete().await.expect("delete");
    drop(full);
}

#[tokio::test]
async fn an_attached_client_that_does_not_read_is_let_go_and_who_reads_loses_nothing() {
    let mut ground = Ground::new().await;
    let b = ground.container(&["sh", "-c", "read x; seq 1 60000; echo done; read y"]);
    let mut b = b;
    b.stdin = true;
    let monitor = running(&ground, &b).await;
    let mut slow = monitor.attach(IN_AND_OUT).await.expect("attach");
    let stuck = monitor
        .attach(AttachSpec {
            stdin: false,
            ..IN_AND_OUT
        })
        .await
        .expect("attach");
    let mut stdout = slow.stdout.take().expect("stdout");
    let reading = tokio::spawn(async move {
        let mut text = String::new();
        stdout.read_to_string(&mut text).await.map(|_| text)
    });
    let start = Instant::now();
    let stdin = slow.stdin.as_mut().expect("stdin");
    stdin.write_all(b"\n").await.expect("write");
    // One client does not read: its pipe fills, the container waits; requests are still answered.
    let out = monitor
        .exec_sync(b.exec(&["echo", "hi"]))
        .await
        .expect("exec");
    assert_eq!(out.stdout, b"hi\n");
    assert!(monitor.ending().is_none());
    stdin.write_all(b"\n").await.expect("write");
    let text = tokio::time::timeout(Duration::from_secs(60), reading).await;
    let text = text.expect("the other is let go");
    let text = text.expect("no panic").expect("read");
    let wanted: String = (1..=60000).map(|n| format!("{n}\n")).collect::<String>() + "done\n";
    assert_eq!(text, wanted, "the one that reads gets everything");
    monitor.wait().await;
    // It may take two seconds; it once took ten.
    assert!(
        start.elapsed() < Duration::from_secs(9),
        "{:?}",
        start.elapsed()
    );
    let log = fs::read_to_string(&b.log).expect("log");
    assert_eq!(records(&log).len(), 60001);
    drop(stuck);
    monitor.delete().await.expect("delete");
}

/// When the container ends, its pipe contains the output that a lagging client delays.
#[tokio::test]
async fn an_attached_client_that_is_behind_at_the_end_costs_the_log_nothing() {
    const LINE: &str = "0123456789abcde\n";
    const BLOCKS: usize = 47;
    let mut ground = Ground::new().await;
    let script = format!(
        "read x; yes 0123456789abcde | dd bs=4096 count={BLOCKS} iflag=fullblock 2>/dev/null"
    );
    let mut b = ground.container(&["sh", "-c", &script]);
    b.stdin = true;
    let monitor = running(&ground, &b).await;
    let mut client = monitor.attach(IN_AND_OUT).await.expect("attach");
    let mut stdout = client.stdout.take().expect("stdout");
    let stdin = client.stdin.as_mut().expect("stdin");
    stdin.write_all(b"\n").await.expect("write");
    // The pipes and the monitor hold the rest, so that the container has written everything and
    // ends.
    let mut got = vec![0; 60 << 10];
    stdout.read_exact(&mut got).await.expect("read");
    common::until("it has ended", || b.processes() == 0).await;
    // Another 64 KiB are read: the client lags, but its time starts again, and exceeds the
    // container's.
    stdout.read_exact(&mut got[..4 << 10]).await.expect("read");
    let Ending::Exited(exit) = monitor.wait().await else {
        panic!("lost")
    };
    assert_eq!((exit.code, exit.log_lost), (0, 0));
    let log = fs::read_to_string(&b.log).expect("log");
    assert_eq!(records(&log).len(), BLOCKS * 4096 / LINE.len());
    monitor.delete().await.expect("delete");
}

/// A request that its caller gave up has no effect that lasts, whatever answer comes late.
#[tokio::test]
async fn what_is_given_up_before_it_begins_has_no_owner_and_ends() {
    let mut ground = Ground::new().await;
    let b = ground.container(&["sleep", "1000"]);
    let monitor = running(&ground, &b).await;
    let recorded = cairn::monitor::Launcher::recorded(&b.dir).expect("a pid file");
    let pid = rustix::process::Pid::from_raw(recorded.monitor).expect("a pid");
    let signal = |signal| rustix::process::kill_process(pid, signal).expect("signalled");
    signal(rustix::process::Signal::STOP);
    let exec = monitor.exec(b.exec(&["sh", "-c", "touch /tmp/began; sleep 1000"]));
    let attach = monitor.attach(IN_AND_OUT);
    let both = async { tokio::join!(exec, attach) };
    let given_up = tokio::time::timeout(Duration::from_millis(300), both).await;
    assert!(given_up.is_err(), "it is stopped");
    signal(rustix::process::Signal::CONT);
    let groups = || {
        let mut dirs = b.cgroups.iter();
        let dir = dirs.find(|c| c.unified()).or(b.cgroups.first());
        let entries = fs::read_dir(&dir.expect("a cgroup").path).expect("there");
        let names = entries.flatten().map(|e| e.file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with("exec-"))
            .count()
    };
    // With this answer it has begun the exec.
    monitor.reopen_log().await.expect("it answers");
    common::until("the exec and its processes have ended", || {
        groups() == 0 && b.processes() == 1
    })
    .await;
    end(monitor).await;
}

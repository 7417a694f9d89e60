//! Resources that a container, an image or a host user may exhaust, and files that they must not
//! reach.

use std::{collections::BTreeSet, path::Path, time::Duration};

use cairn_tests::{
    Daemon, Setup,
    container::Container,
    cri, look,
    pod::{Pod, container_namespaces, security, user_namespace},
    until,
};

use crate::escape::mapped_pod;

async fn sleeper(pod: &Pod, name: &str, mapped: bool) -> Container {
    let mut config = pod.cri.container_config(name, &["sleep", "1000"]);
    if mapped {
        container_namespaces(&mut config).userns_options = Some(user_namespace());
    }
    pod.started(config).await
}

/// Returns the size of the directory's files, as `du` counts: others also write to the machine's
/// file system.
async fn written(daemon: &Daemon, dir: &Path) -> u64 {
    let du = daemon
        .yard
        .command("du")
        .arg("-skx")
        .arg(dir)
        .output()
        .await;
    let du = String::from_utf8(du.expect("du runs").stdout).expect("text");
    du.split_whitespace()
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number")
}

#[tokio::test]
async fn a_container_that_fills_its_pods_files_fills_nothing_of_the_host() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("fills").await;
    let container = sleeper(&pod, "c", false).await;
    let before = written(&daemon, &daemon.path("state")).await;
    for file in ["hosts", "hostname", "resolv.conf"] {
        let fill = format!("dd if=/dev/zero of=/etc/{file} bs=1M count=30 2>&1");
        let printed = container
            .try_exec(&["sh", "-c", &fill], 30)
            .await
            .expect("ExecSync");
        assert!(printed.out.contains("No space left"), "{file}: {printed:?}");
    }
    let after = written(&daemon, &daemon.path("state")).await;
    assert!(
        after < before + 4096,
        "{before} kB before, {after} kB after"
    );
    // These mounts must not allow programs or devices of the host.
    let mounts = container.sh("cat /proc/self/mountinfo").await;
    for at in ["/etc/hosts", "/dev/shm"] {
        let line = mounts.lines().find(|l| l.split(' ').nth(4) == Some(at));
        let options = line
            .and_then(|l| l.split(' ').nth(5))
            .expect("it is mounted");
        assert!(options.contains("nosuid,nodev,noexec"), "{at}: {options}");
    }
    // Another pod has its own space.
    let other = daemon.cri().pod("other").await;
    sleeper(&other, "c", false)
        .await
        .sh("echo 10.1.1.1 x >>/etc/hosts && cat /etc/hosts")
        .await;
    let files = daemon.path("state/pods").join(&pod.id);
    pod.end().await;
    assert!(!files.exists(), "it goes with its pod");
    other.end().await;
}

/// Ids of pods and containers are not secret: the mount table contains them.
#[tokio::test]
async fn a_user_of_the_host_enters_nothing_of_images_roots_and_pods() {
    let daemon = Daemon::start().await;
    let plain = daemon.cri().pod("plain").await;
    let mapped = mapped_pod(&daemon, "mapped").await;
    let (one, two) = (
        sleeper(&plain, "c", false).await,
        sleeper(&mapped, "c", true).await,
    );
    for container in [&one, &two] {
        container
            .sh("cp /bin/busybox /tmp/root && chmod 4755 /tmp/root")
            .await;
    }
    let mut paths: BTreeSet<String> = BTreeSet::new();
    for dir in ["state", "root"] {
        // The test's directories are closed to others: the check covers the daemon's own
        // directories.
        let find = daemon
            .yard
            .command("find")
            .arg(daemon.path(dir))
            .output()
            .await;
        let found = String::from_utf8_lossy(&find.expect("find runs").stdout).into_owned();
        paths.extend(found.lines().map(str::to_owned));
    }
    // Directories of single pods and containers may be visible, but must not be accessible.
    let inside = |path: &&String| {
        let below = |dir: &str| {
            Path::new(path)
                .strip_prefix(daemon.path(dir))
                .ok()
                .map(Path::to_owned)
        };
        below("root").is_some_and(|p| p.components().count() > 1)
            || ["pods", "containers", "image-volumes"].iter().any(|kind| {
                below(&format!("state/{kind}")).is_some_and(|p| p.components().count() > 1)
            })
    };
    let asked: Vec<String> = paths.iter().filter(inside).cloned().collect();
    assert!(asked.iter().any(|p| p.ends_with("/shm")), "{asked:?}");
    assert!(asked.iter().any(|p| p.ends_with("/tmp/root")), "{asked:?}");
    let list = daemon.path("asked");
    std::fs::write(&list, asked.join("\n") + "\n").expect("ours");
    // Permissions of a `root` that an administrator made: open.
    let open = format!(
        "chmod 755 {} {}",
        daemon.path("").display(),
        daemon.path("root").display()
    );
    let script = format!(
        "{open}; setpriv --reuid=65534 --regid=65534 --clear-groups sh -c \
         'while read -r p; do [ -e \"$p\" ] && echo \"$p\"; done' <{}; true",
        list.display()
    );
    let run = daemon
        .yard
        .command("sh")
        .args(["-c", &script])
        .output()
        .await
        .expect("sh runs");
    let seen = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(
        seen.is_empty() && run.status.success(),
        "{} of {}: {seen} {run:?}",
        seen.lines().count(),
        asked.len()
    );
    plain.end().await;
    mapped.end().await;
}

/// Prints the errno of `socket` for each family, and of the 32-bit `socketcall`.
#[cfg(target_arch = "x86_64")]
const SOCKETS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static int of_32_bits(long number, long first, long second) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(first), "c"(second), "d"(0L), "S"(0L), "D"(0L)
                     : "memory", "r8", "r9", "r10", "r11");
    return (int)result;
}
static long of_64_bits(long family) { return syscall(SYS_socket, family, 1, 0) < 0 ? -errno : 0; }
int main(void) {
    int *arguments = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    arguments[0] = 40, arguments[1] = 1, arguments[2] = 0;
    printf("unix=%ld alg=%ld vsock=%ld ", of_64_bits(1), of_64_bits(38), of_64_bits(40));
    printf("upper_alg=%ld upper_vsock=%ld ", of_64_bits((1L << 32) + 38), of_64_bits((1L << 32) + 40));
    printf("alg32=%d socketcall=%d", of_32_bits(359, 38, 5), of_32_bits(102, 1, (long)arguments));
    return 0;
}
"#;

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn alg_and_vsock_are_refused_by_each_call_that_makes_a_socket() {
    let daemon = Daemon::start().await;
    let (source, program) = (daemon.path("sockets.c"), daemon.path("sockets"));
    std::fs::write(&source, SOCKETS).expect("written");
    let compiled = std::process::Command::new("gcc")
        .args(["-O1", "-static", "-o"])
        .args([&program, &source])
        .status();
    assert!(compiled.expect("gcc runs").success());
    let pod = daemon.cri().pod("sockets").await;
    let mut config = pod.cri.container_config("c", &["sleep", "1000"]);
    security(&mut config).seccomp = Some(cri::SecurityProfile {
        profile_type: cri::security_profile::ProfileType::RuntimeDefault.into(),
        localhost_ref: String::new(),
    });
    config.mounts = vec![cri::Mount {
        host_path: program.display().to_string(),
        container_path: "/sockets".into(),
        readonly: true,
        ..Default::default()
    }];
    let container = pod.started(config).await;
    let printed = container.exec(&["/sockets"]).await;
    let (unix, rest) = printed.split_once(' ').expect("words");
    assert_eq!(unix, "unix=0");
    // A kernel without 32-bit programs ends this one by a signal, and prints nothing.
    let expected = "alg=-1 vsock=-1 upper_alg=-1 upper_vsock=-1 alg32=-1 socketcall=-38";
    assert_eq!(
        rest, expected,
        "EPERM, and ENOSYS where libraries try another call"
    );
    pod.end().await;
}

#[tokio::test]
async fn a_system_call_newer_than_the_seccomp_profile_answers_enosys() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("newer").await;
    let mut config = pod.cri.container_config("c", &["sleep", "1000"]);
    security(&mut config).seccomp = Some(cri::SecurityProfile {
        profile_type: cri::security_profile::ProfileType::RuntimeDefault.into(),
        localhost_ref: String::new(),
    });
    // For a program that can make any system call: the host's perl.
    config.mounts = ["/usr", "/lib", "/lib64"]
        .into_iter()
        .filter(|dir| Path::new(dir).exists())
        .map(|dir| cri::Mount {
            host_path: std::fs::canonicalize(dir)
                .expect("it is there")
                .display()
                .to_string(),
            container_path: dir.into(),
            readonly: true,
            ..Default::default()
        })
        .collect();
    let container = pod.started(config).await;
    let call = |number: &str| format!("perl -e 'my $r = syscall({number}); print $r, \" \", $!+0'");
    let (enosys, eperm) = ("-1 38", "-1 1");
    assert_eq!(
        container.sh(&call("1000")).await,
        enosys,
        "one that no kernel has"
    );
    // Known calls that are forbidden: reboot and swapon; and an old number that is no longer a
    // call.
    let (reboot, swapon) = if cfg!(target_arch = "x86_64") {
        ("169", "167")
    } else {
        ("142", "224")
    };
    assert_eq!(
        container.sh(&call(&format!("{reboot}, 0, 0, 0, 0"))).await,
        eperm
    );
    assert_eq!(container.sh(&call(&format!("{swapon}, 0, 0"))).await, eperm);
    pod.end().await;
}

#[tokio::test]
async fn the_daemon_raises_its_limit_of_open_files_and_gives_the_former_to_what_it_starts() {
    let daemon = Daemon::with(Setup::default().open_files(1024, 8192)).await;
    let own = std::fs::read_to_string(daemon.yard.inside(format!("/proc/{}/limits", daemon.pid())));
    let own = own.expect("a process has limits");
    let line = own
        .lines()
        .find(|l| l.starts_with("Max open files"))
        .expect("there is one");
    let numbers: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers, ["8192", "8192"]);
    let pod = daemon.cri().pod("limits").await;
    let container = sleeper(&pod, "c", false).await;
    let shown = "grep 'open files' /proc/1/limits; ulimit -Sn; ulimit -Hn";
    let lines = container.sh(shown).await;
    let words: Vec<&str> = lines.split_whitespace().skip(3).collect();
    assert_eq!(words, ["1024", "8192", "files", "1024", "8192"]);
    pod.end().await;
}

/// Returns the processor time of a process in seconds.
fn used(daemon: &Daemon) -> f64 {
    let stat = daemon.yard.inside(format!("/proc/{}/stat", daemon.pid()));
    let stat = std::fs::read_to_string(stat).expect("it runs");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .expect("one")
        .split_whitespace()
        .collect();
    (fields[11].parse::<f64>().expect("a number") + fields[12].parse::<f64>().expect("a number"))
        / 100.0
}

async fn limit_open_files(daemon: &Daemon, most: usize) {
    let done = daemon
        .yard
        .command("prlimit")
        .args([
            format!("--pid={}", daemon.pid()),
            format!("--nofile={most}:8192"),
        ])
        .output()
        .await
        .expect("prlimit runs");
    assert!(done.status.success(), "{done:?}");
}

#[tokio::test]
async fn a_full_table_of_descriptors_makes_nothing_spin_and_loses_no_exit() {
    let daemon = Daemon::with(Setup::default().open_files(1024, 8192)).await;
    let pod = daemon.cri().pod("full").await;
    let mut containers = Vec::new();
    for n in 0..5 {
        let script = format!(
            "trap 'exit {}' TERM; echo ready; while :; do sleep 0.1; done",
            40 + n
        );
        let container = pod.run(&format!("c{n}"), &["sh", "-c", &script]).await;
        until("it waits for the signal", || async {
            (container.lines() == ["ready"]).then_some(())
        })
        .await;
        containers.push((container, 40 + n));
    }
    let mut pids = Vec::new();
    for (container, _) in &containers {
        pids.push(container.pid().await.expect("it runs").to_string());
    }
    let late = pod.create("late", &["sleep", "1000"]).await;
    let fds = daemon.yard.inside(format!("/proc/{}/fd", daemon.pid()));
    let open = std::fs::read_dir(fds).expect("it runs").count();
    limit_open_files(&daemon, open - 1).await;
    let error = late.start().await.expect_err("there is no descriptor left");
    assert!(error.message().contains("Too many open files"), "{error}");
    // More clients than the descriptors that the failed start released.
    let waiting: Vec<_> = (0..100)
        .map(|_| std::os::unix::net::UnixStream::connect(daemon.socket()).expect("it listens"))
        .collect();
    let killed = daemon
        .yard
        .command("kill")
        .arg("-TERM")
        .args(&pids)
        .output()
        .await;
    assert!(killed.expect("kill runs").status.success());
    let before = used(&daemon);
    tokio::time::sleep(Duration::from_secs(3)).await; // this period is measured
    let spent = used(&daemon) - before;
    assert!(spent < 1.0, "{spent} s of 3 s");
    limit_open_files(&daemon, 8192).await;
    drop(waiting);
    for (container, code) in containers {
        assert_eq!(container.exited().await.exit_code, code, "its own code");
    }
    pod.end().await;
}

/// A container has the directory of its pod's logs as a volume: it replaces a directory in the path
/// of a log by a link.
#[tokio::test]
async fn a_link_in_place_of_a_logs_directory_is_not_followed() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let pod = cri.pod("log-directory").await;
    let logs = Path::new(&pod.config.log_directory).to_owned();
    let (victim, inside) = (daemon.path("victim"), logs.join("sub"));
    std::fs::create_dir(&victim).expect("ours");
    let mut config =
        cri.container_config("c", &["sh", "-c", "while :; do echo evil; sleep 0.1; done"]);
    config.log_path = "sub/c.log".into();
    let container = pod.started(config.clone()).await;
    until("it is logged", || async {
        inside.join("c.log").exists().then_some(())
    })
    .await;
    config.metadata.as_mut().expect("set").name = "late".into();
    config.log_path = "sub/deep/late.log".into();
    let late = pod.try_create(config).await.expect("CreateContainer");
    std::fs::rename(&inside, logs.join("moved")).expect("ours");
    std::os::unix::fs::symlink(&victim, &inside).expect("a link");
    let reopened = container.reopen_log().await;
    let error = reopened.expect_err("a link is rejected as a directory");
    assert!(error.message().contains("link"), "{error}");
    let error = late
        .start()
        .await
        .expect_err("a link is rejected as a directory");
    assert!(error.message().contains("link"), "{error}");
    assert!(
        look::tree(&victim).is_empty(),
        "nothing was made where the link leads"
    );
    container.stop(Duration::ZERO).await.expect("StopContainer");
    std::fs::remove_file(&inside).expect("the link is ours");
    pod.end().await;
}

//! A container with writable cgroups, on a host without cgroup v2: it nests them and chooses their
//! names.

use std::{fs, path::Path, time::Duration};

use cairn_tests::{
    Daemon, Setup,
    container::Container,
    cri::NamespaceMode,
    image::{BUSYBOX, Image},
    look,
    pod::{Pod, container_namespaces, pod_namespaces, pod_security, security},
    until,
};

/// A daemon that sees no cgroup v2, so that it cannot use `cgroup.kill`. `None` on a host with v2
/// only.
async fn without_v2() -> Option<Daemon> {
    if !Path::new("/sys/fs/cgroup/freezer").exists() {
        eprintln!("skipped: this host has no cgroup v1");
        return None;
    }
    let mut daemon = Daemon::new(Setup::default()).await;
    let script = "while read -r _ _ _ _ at rest; do case $rest in *' - cgroup2 '*) umount $at ;; esac; done </proc/self/mountinfo";
    let unmounted = daemon.yard.command("sh").args(["-c", script]).status();
    assert!(unmounted.await.expect("sh runs").success());
    daemon.serve().await;
    daemon.import(&Image::busybox(BUSYBOX)).await;
    Some(daemon)
}

/// A pod whose containers continue after their first process ends.
async fn shared_pod(daemon: &Daemon, name: &str) -> Pod {
    let cri = daemon.cri();
    let mut config = cri.pod_config(name);
    pod_namespaces(&mut config).pid = NamespaceMode::Pod.into();
    pod_security(&mut config).privileged = true;
    cri.try_pod(config).await.expect("RunPodSandbox")
}

/// Runs a privileged container, whose cgroups are writable.
async fn runs(pod: &Pod, name: &str, script: &str) -> Container {
    let mut config = pod.cri.container_config(name, &["sh", "-c", script]);
    container_namespaces(&mut config).pid = NamespaceMode::Pod.into();
    security(&mut config).privileged = true;
    pod.started(config).await
}

/// Whether a process of the yard has this argument.
fn is_running(daemon: &Daemon, argument: &str) -> bool {
    let processes = look::subdirs(&daemon.yard.inside("/proc"));
    processes.iter().any(|process| {
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        command.split(|b| *b == 0).any(|a| a == argument.as_bytes())
    })
}

#[tokio::test]
async fn a_process_in_the_deepest_of_a_containers_own_cgroups_ends_with_it() {
    let Some(daemon) = without_v2().await else {
        return;
    };
    shared_pod(&daemon, "warm-up").await.end().await;
    let before = daemon.inventory().await;
    let pod = shared_pod(&daemon, "deep").await;
    let script = "cd /sys/fs/cgroup/freezer || exit
for i in $(seq 80); do mkdir d && cd d || exit; done
sh -c 'echo $$ >cgroup.procs && echo deep && exec sleep 86399' &
exec sleep 86398";
    let container = runs(&pod, "c", script).await;
    container.says("deep").await;
    until("it sleeps", || async {
        is_running(&daemon, "86399").then_some(())
    })
    .await;
    container.stop(Duration::ZERO).await.expect("StopContainer");
    assert!(!is_running(&daemon, "86399"), "it outlives its container");
    container.remove().await.expect("RemoveContainer");
    pod.end().await;
    daemon.leaves_only(&before).await;
}

#[tokio::test]
async fn a_process_that_its_container_has_frozen_ends_with_it() {
    let Some(without_v2) = without_v2().await else {
        return;
    };
    for daemon in [without_v2, Daemon::start().await] {
        shared_pod(&daemon, "warm-up").await.end().await;
        let before = daemon.inventory().await;
        let pod = shared_pod(&daemon, "frozen").await;
        let script = "cd /sys/fs/cgroup/freezer && mkdir -p a/b || exit
sleep 86395 & p=$!; echo $p >a/b/cgroup.procs || exit
while [ \"$(tr '\\0' ' ' </proc/$p/cmdline)\" != 'sleep 86395 ' ]; do :; done
for d in a/b a; do echo FROZEN >$d/freezer.state || exit; done
echo frozen; exec sleep 86394";
        let container = runs(&pod, "c", script).await;
        container.says("frozen").await;
        container.stop(Duration::ZERO).await.expect("StopContainer");
        assert!(!is_running(&daemon, "86395") && !is_running(&daemon, "86394"));
        container.remove().await.expect("RemoveContainer");
        pod.end().await;
        daemon.leaves_only(&before).await;
    }
}

#[tokio::test]
async fn names_that_a_container_takes_for_its_own_cgroups_fail_no_exec() {
    let Some(daemon) = without_v2().await else {
        return;
    };
    shared_pod(&daemon, "warm-up").await.end().await;
    let before = daemon.inventory().await;
    let pod = shared_pod(&daemon, "names").await;
    let script = "cd /sys/fs/cgroup/pids || exit
for i in $(seq 100); do mkdir exec-$i exec-$i/below || exit; done
echo made; exec sleep 86397";
    let container = runs(&pod, "c", script).await;
    container.says("made").await;
    for n in 0..3 {
        assert_eq!(container.exec(&["echo", "in"]).await, "in", "exec {n}");
    }
    let late = container.try_exec(&["sleep", "86396"], 1).await;
    late.expect_err("its time is over");
    assert!(!is_running(&daemon, "86396"));
    container.stop(Duration::ZERO).await.expect("StopContainer");
    container.remove().await.expect("RemoveContainer");
    pod.end().await;
    daemon.leaves_only(&before).await;
}

/// The kernel orders directories of cgroups by a hash of their names: `al` and `ba` have the same
/// hash.
#[tokio::test]
async fn cgroups_whose_names_the_kernel_places_alike_keep_no_container() {
    let without_v2 = without_v2().await;
    for daemon in without_v2.into_iter().chain([Daemon::start().await]) {
        shared_pod(&daemon, "warm-up").await.end().await;
        let before = daemon.inventory().await;
        let pod = shared_pod(&daemon, "alike").await;
        // On a host with v2 only, the directory itself is the hierarchy.
        let script = "cd /sys/fs/cgroup || exit
for d in */ ./; do
  [ -w $d/cgroup.procs ] && ! [ -L ${d%/} ] || continue
  for n in al ba alal alba baal baba; do mkdir $d/$n $d/$n/al $d/$n/ba || exit; done
done
[ -d freezer/ba/al ] || [ -d ./ba/al ] || exit
echo made; exec sleep 86393";
        let container = runs(&pod, "c", script).await;
        container.says("made").await;
        let ends = async {
            container.stop(Duration::ZERO).await.expect("StopContainer");
            assert!(!is_running(&daemon, "86393"), "it outlives its container");
            container.remove().await.expect("RemoveContainer");
        };
        let ended = tokio::time::timeout(Duration::from_secs(60), ends).await;
        ended.expect("stopped and removed in time");
        pod.end().await;
        daemon.leaves_only(&before).await;
    }
}

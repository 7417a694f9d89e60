//! Containers that join a PID namespace equal those with their own: the same procfs, terminals,
//! ends and hooks.

use std::{collections::BTreeSet, fs, time::Duration};

use cairn_tests::{
    Daemon, bins,
    container::Container,
    cri,
    plugin::Plugin,
    pod::{Pod, pod_security, security, user_namespace},
    until,
};
use nri::{
    adjust::{Adjust, HookKind},
    proto::{ContainerAdjustment, Hook, LinuxScheduler, LinuxSchedulerPolicy as Policy, Mount},
};

type Config = cri::ContainerConfig;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Plain,
    Privileged,
    Mapped,
}

fn options(mode: cri::NamespaceMode, kind: Kind) -> cri::NamespaceOption {
    cri::NamespaceOption {
        pid: mode.into(),
        userns_options: (kind == Kind::Mapped).then(user_namespace),
        ..Default::default()
    }
}

/// A pod with a shared PID namespace.
async fn sharing(daemon: &Daemon, kind: Kind) -> Pod {
    let cri = daemon.cri();
    let mut config = cri.pod_config(&format!("pid-{kind:?}").to_lowercase());
    let context = pod_security(&mut config);
    context.namespace_options = Some(options(cri::NamespaceMode::Pod, kind));
    context.privileged = kind == Kind::Privileged;
    cri.try_pod(config).await.expect("RunPodSandbox")
}

async fn start(
    pod: &Pod,
    name: &str,
    kind: Kind,
    mode: cri::NamespaceMode,
    script: &str,
) -> Container {
    start_with(pod, name, kind, mode, script, |_| ()).await
}

async fn start_with(
    pod: &Pod,
    name: &str,
    kind: Kind,
    mode: cri::NamespaceMode,
    script: &str,
    adapt: impl FnOnce(&mut Config),
) -> Container {
    let mut config = pod.cri.container_config(name, &["/bin/sh", "-c", script]);
    security(&mut config).namespace_options = Some(options(mode, kind));
    security(&mut config).privileged = kind == Kind::Privileged;
    adapt(&mut config);
    pod.started(config).await
}

/// Returns the mounts at and below `/proc`: path, options, and type of file system.
async fn procfs(container: &Container) -> BTreeSet<String> {
    let mounts = container.sh("cat /proc/self/mountinfo").await;
    let below = mounts.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let kind = fields.iter().position(|f| *f == "-")?;
        (fields[4].starts_with("/proc"))
            .then(|| format!("{} {} {}", fields[4], fields[5], fields[kind + 1]))
    });
    below.collect()
}

#[tokio::test]
async fn a_container_that_joins_a_pid_namespace_has_the_procfs_of_any_other() {
    use cri::NamespaceMode as Mode;
    let daemon = Daemon::start().await;
    for kind in [Kind::Plain, Kind::Privileged, Kind::Mapped] {
        let pod = sharing(&daemon, kind).await;
        let sleep = "exec sleep 1000";
        let own = start(&pod, "own", kind, Mode::Container, sleep).await;
        let shares = start(&pod, "shares", kind, Mode::Pod, sleep).await;
        let joins = start_with(&pod, "joins", kind, Mode::Target, sleep, |config| {
            let options = security(config).namespace_options.as_mut();
            options.expect("set").target_id.clone_from(&own.id);
        })
        .await;
        let expected = procfs(&own).await;
        assert!(!expected.is_empty(), "{kind:?}");
        assert_eq!(procfs(&shares).await, expected, "{kind:?}: of the pod");
        assert_eq!(procfs(&joins).await, expected, "{kind:?}: of the target");
        assert_eq!(shares.exec(&["cat", "/proc/1/comm"]).await, "pause");
        assert_eq!(joins.exec(&["cat", "/proc/1/comm"]).await, "sleep");
        // Settings and files that are not mounts: which may be read and written.
        let probe = "cat /proc/self/attr/current 2>/dev/null; cat /proc/kcore 2>&1 | wc -c; \
             ( echo 1 >/proc/sys/kernel/domainname ) 2>&1; ls /proc/acpi /proc/scsi 2>&1 | wc -l";
        if kind != Kind::Privileged {
            assert_eq!(shares.sh(probe).await, own.sh(probe).await, "{kind:?}");
        }
        pod.end().await;
    }
}

#[tokio::test]
async fn ends_signals_terminals_and_execs_are_the_same_in_a_shared_pid_namespace() {
    use cri::NamespaceMode::Pod as Shared;
    let daemon = Daemon::start().await;
    for kind in [Kind::Plain, Kind::Mapped] {
        let pod = sharing(&daemon, kind).await;
        let seven = start(&pod, "seven", kind, Shared, "exit 7").await;
        assert_eq!(seven.exited().await.exit_code, 7, "{kind:?}");

        let script = "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.1; done";
        let reported = start(&pod, "told", kind, Shared, script).await;
        until("it waits for the signal", || async {
            (reported.lines() == ["ready"]).then_some(())
        })
        .await;
        reported
            .stop(Duration::from_secs(20))
            .await
            .expect("StopContainer");
        assert_eq!(reported.exited().await.exit_code, 3, "{kind:?}");

        // A terminal of its own, the controlling one of a session that it leads.
        let script = "tty; echo through >/dev/tty; [ $(cut -d' ' -f6 /proc/self/stat) = $$ ] && echo leads; \
             exec sleep 1000";
        let seen = start_with(&pod, "tty", kind, Shared, script, |c| c.tty = true).await;
        until("it has a terminal", || async {
            let lines = seen.lines();
            let lines: Vec<&str> = lines.iter().map(|l| l.trim_end()).collect();
            (lines == ["/dev/pts/0", "through", "leads"]).then_some(())
        })
        .await;
        assert_eq!(seen.exec(&["cat", "/proc/1/comm"]).await, "pause");

        let missing = pod.cri.container_config("missing", &["/no/such/program"]);
        let mut missing = missing;
        security(&mut missing).namespace_options = Some(options(Shared, kind));
        let missing = pod.try_create(missing).await.expect("CreateContainer");
        let error = missing.start().await.expect_err("there is no program");
        assert!(
            error.message().contains("no such file"),
            "{kind:?}: {error}"
        );

        let stays = start(&pod, "stays", kind, Shared, "exec sleep 1000").await;
        seen.stop(Duration::ZERO).await.expect("StopContainer");
        assert_eq!(seen.exited().await.exit_code, 137, "{kind:?}");
        let alive = stays.exec(&["echo", "stays"]).await;
        assert_eq!(alive, "stays", "a kill reaches one container only");
        pod.end().await;
    }
}

/// OCI hooks keep the create helper in a copy of the host's mount namespace; some schedulers are not
/// inherited by a fork.
#[tokio::test]
async fn hooks_and_a_scheduler_reach_a_container_in_a_shared_pid_namespace() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "adjuster").await;
    let out = daemon.path("out");
    fs::create_dir(&out).expect("ours");
    let to = out.clone();
    plugin.adjusts(move |_, _| {
        let mut adjust = ContainerAdjustment::default();
        let busybox = bins::system("busybox").expect("installed");
        let host = (busybox.display().to_string(), to.display().to_string());
        for (kind, name, (path, out)) in [
            (HookKind::CreateRuntime, "createRuntime", host),
            (
                HookKind::StartContainer,
                "startContainer",
                ("/bin/busybox".to_owned(), "/out".to_owned()),
            ),
        ] {
            let script =
                format!("cat >{out}/{name}.state; readlink /proc/self/ns/pid >{out}/{name}.pid");
            adjust.add_hook(
                kind,
                Hook {
                    path,
                    args: ["sh".to_owned(), "-c".to_owned(), script].into(),
                    env: vec!["PATH=/bin:/usr/bin".to_owned()],
                    timeout: None,
                },
            );
        }
        adjust.add_mount(Mount {
            destination: "/out".into(),
            r#type: "bind".into(),
            source: to.display().to_string(),
            options: vec!["bind".into(), "rw".into()],
        });
        adjust.scheduler(LinuxScheduler {
            policy: Policy::SchedBatch.into(),
            nice: 5,
            ..Default::default()
        });
        Some(adjust)
    });
    let pod = sharing(&daemon, Kind::Plain).await;
    let script = "echo $$; cut -d' ' -f19,41 /proc/self/stat; exec sleep 1000";
    let c = start(&pod, "c", Kind::Plain, cri::NamespaceMode::Pod, script).await;
    let inside = c.exec(&["readlink", "/proc/self/ns/pid"]).await;
    let read = |name: &str| fs::read_to_string(out.join(name)).expect("the hook ran");
    let lines = until("it has printed both", || async {
        Some(c.lines()).filter(|lines| lines.len() > 1)
    })
    .await;
    assert_eq!(lines[1], "5 3", "nice, and SCHED_BATCH");
    assert_eq!(read("startContainer.pid").trim(), inside);
    assert_ne!(read("createRuntime.pid").trim(), inside);
    let state: serde_json::Value =
        serde_json::from_str(&read("startContainer.state")).expect("it is JSON");
    assert_eq!(
        state["pid"].to_string(),
        lines[0],
        "as the container sees it"
    );
    pod.end().await;
}

/// The plugin names it by the pause process of another pod, which has no procfs itself.
#[tokio::test]
async fn a_plugin_may_choose_the_pid_namespace_of_another_pod() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "chooser").await;
    let other = sharing(&daemon, Kind::Plain).await;
    let mode = cri::NamespaceMode::Pod;
    let there = start(&other, "there", Kind::Plain, mode, "exec sleep 1000").await;
    let status = daemon.cri().pod_status(&other.id).await;
    let status = status.expect("PodSandboxStatus");
    let info: serde_json::Value = serde_json::from_str(&status.info["info"]).expect("it is JSON");
    let pause = info["pid"].as_u64().expect("a pause process has a pid");
    plugin.adjusts(move |_, _| {
        let mut adjust = ContainerAdjustment::default();
        adjust.add_namespace("pid", format!("/proc/{pause}/ns/pid"));
        Some(adjust)
    });
    let pod = daemon.cri().pod("chosen").await;
    let joins = pod.run("joins", &["sleep", "1000"]).await;
    let namespace = async |c: &Container| c.exec(&["readlink", "/proc/self/ns/pid"]).await;
    assert_eq!(namespace(&joins).await, namespace(&there).await);
    assert_eq!(joins.exec(&["cat", "/proc/1/comm"]).await, "pause");
    pod.end().await;
    other.end().await;
}

/// The record identifies the namespace by a pid, which may belong to another process now.
#[tokio::test]
async fn a_target_that_has_ended_is_not_joined_by_its_number() {
    use cri::NamespaceMode as Mode;
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("target").await;
    let target = pod.run("target", &["sleep", "1000"]).await;
    let mut config = pod.cri.container_config("joins", &["sleep", "1000"]);
    let mut joined = options(Mode::Target, Kind::Plain);
    joined.target_id.clone_from(&target.id);
    security(&mut config).namespace_options = Some(joined);
    let joins = pod.try_create(config).await.expect("CreateContainer");
    target.stop(Duration::ZERO).await.expect("StopContainer");
    target.exited().await;
    let error = joins.start().await.expect_err("there is nothing to join");
    assert!(error.message().contains("has ended"), "{error}");
    pod.end().await;
}

//! C-01 RunPodSandbox.

use std::fs;

use cairn_tests::{
    Daemon,
    cri::{self, PodSandboxState},
    look,
    plugin::{Deed, Gate, Plugin},
    pod::{Pod, host_network, pod_namespaces},
};
use nri::proto::{Event, PodSandbox};
use tokio::task::JoinHandle;
use tonic::Status;

use super::{host_pings, in_netns, namespace, refuses, with_plugin};

struct Running {
    gate: Gate,
    call: JoinHandle<Result<Pod, Status>>,
    pod: PodSandbox,
}

impl Running {
    /// Lets the hook return; answers the pod.
    async fn passes(self) -> Pod {
        assert!(!self.call.is_finished(), "RunPodSandbox waits for its hook");
        self.gate.open();
        self.call.await.expect("no panic").expect("RunPodSandbox")
    }
}

/// A pod whose RunPodSandbox blocks in the hook.
async fn in_run(daemon: &Daemon, plugin: &Plugin, config: cri::PodSandboxConfig) -> Running {
    let gate = plugin.blocks(Event::RunPodSandbox);
    let name = config.metadata.as_ref().expect("a name").name.clone();
    let cri = daemon.cri();
    let call = tokio::spawn(async move { cri.try_pod(config).await });
    let seen = plugin.sees(Event::RunPodSandbox, &name).await;
    Running {
        gate,
        call,
        pod: seen.pod,
    }
}

#[tokio::test]
async fn contract_c01_while_run_blocks_the_pods_cgroup_exists() {
    let (daemon, plugin) = with_plugin().await;
    let running = in_run(&daemon, &plugin, daemon.cri().pod_config("cgroup")).await;
    let linux = running.pod.linux.clone().expect("a linux part");
    assert_eq!(linux.cgroup_parent, daemon.cgroup_parent());
    assert!(
        !look::cgroup_dirs(&linux.cgroup_parent).is_empty(),
        "{}",
        linux.cgroup_parent
    );
    if !linux.cgroups_path.is_empty() {
        assert!(
            !look::cgroup_dirs(&linux.cgroups_path).is_empty(),
            "{}",
            linux.cgroups_path
        );
    }
    running.passes().await.end().await;
}

#[tokio::test]
async fn contract_c01_while_run_blocks_the_namespaces_exist_and_their_paths_are_told() {
    let (daemon, plugin) = with_plugin().await;
    let running = in_run(&daemon, &plugin, daemon.cri().pod_config("namespaces")).await;
    for kind in ["network", "ipc", "uts"] {
        let path = namespace(&daemon, &running.pod, kind);
        let path = path.unwrap_or_else(|| panic!("no path of the {kind} namespace"));
        let enter = tokio::process::Command::new("nsenter")
            .arg(format!(
                "--{}={}",
                if kind == "network" { "net" } else { kind },
                path.display()
            ))
            .args(["cat", "/proc/sys/kernel/hostname"])
            .output()
            .await
            .expect("nsenter runs");
        assert!(
            enter.status.success(),
            "{kind}: {}",
            String::from_utf8_lossy(&enter.stderr)
        );
        if kind == "uts" {
            assert_eq!(String::from_utf8_lossy(&enter.stdout), "namespaces\n");
        }
    }
    running.passes().await.end().await;
}

#[tokio::test]
async fn contract_c01_a_pod_of_the_hosts_network_has_no_network_path() {
    let (daemon, plugin) = with_plugin().await;
    let mut config = daemon.cri().pod_config("hostnet");
    host_network(&mut config);
    let running = in_run(&daemon, &plugin, config).await;
    assert_eq!(namespace(&daemon, &running.pod, "network"), None);
    assert!(running.pod.ips.is_empty());
    running.passes().await.end().await;
}

#[tokio::test]
async fn contract_c01_while_run_blocks_the_network_works() {
    let (daemon, plugin) = with_plugin().await;
    let running = in_run(&daemon, &plugin, daemon.cri().pod_config("network")).await;
    let address = running
        .pod
        .ips
        .first()
        .cloned()
        .expect("an address is told");
    assert!(
        host_pings(&daemon, &address).await,
        "the host reaches {address}"
    );
    let shown = in_netns(&daemon, &running.pod, &["ip", "-o", "-4", "addr"]).await;
    assert!(
        shown.contains(&address) && shown.contains(" lo "),
        "{shown}"
    );
    let links = in_netns(&daemon, &running.pod, &["ip", "-o", "link"]).await;
    assert!(
        links.lines().all(|l| l.contains("UP")),
        "all links are up: {links}"
    );
    let pod = running.passes().await;
    assert_eq!(pod.ip().await, address, "and it stays so");
    pod.end().await;
}

#[tokio::test]
async fn contract_c01_while_run_blocks_a_pause_process_runs_if_there_is_one() {
    let (daemon, plugin) = with_plugin().await;
    let mut config = daemon.cri().pod_config("pause");
    pod_namespaces(&mut config).pid = cri::NamespaceMode::Pod.into();
    let running = in_run(&daemon, &plugin, config).await;
    assert!(
        running.pod.pid > 0,
        "a pod with a shared pid namespace has a pause process"
    );
    let proc = daemon.yard.inside(format!("/proc/{}", running.pod.pid));
    assert!(proc.join("ns/pid").exists(), "and it runs");
    running.passes().await.end().await;
}

#[tokio::test]
async fn contract_c01_while_run_blocks_the_sandbox_is_not_listed_and_not_found() {
    let (daemon, plugin) = with_plugin().await;
    let running = in_run(&daemon, &plugin, daemon.cri().pod_config("hidden")).await;
    let cri = daemon.cri();
    assert!(cri.pods().await.is_empty());
    let error = cri
        .pod_status(&running.pod.id)
        .await
        .expect_err("it is not found");
    assert_eq!(error.code(), tonic::Code::NotFound, "{error}");
    let early = cri.pod_by_id(&running.pod.id, "hidden");
    early
        .try_create(cri.container_config("c", &["true"]))
        .await
        .expect_err("too early");
    assert!(cri.containers().await.is_empty());
    let pod = running.passes().await;
    assert_eq!(pod.status().await.state(), PodSandboxState::SandboxReady);
    assert!(
        !plugin.events().contains(&Event::CreateContainer),
        "the early one made no event"
    );
    pod.end().await;
}

#[tokio::test]
async fn contract_c01_a_container_starts_at_once_when_the_hook_has_returned() {
    let (daemon, plugin) = with_plugin().await;
    let running = in_run(&daemon, &plugin, daemon.cri().pod_config("ready")).await;
    let files = look::tree(&daemon.path("state"));
    let pod = running.passes().await;
    let after = look::tree(&daemon.path("state"));
    // Nothing but bookkeeping may follow the hook: no new mount point, no new namespace.
    let new: Vec<_> = after
        .difference(&files)
        .filter(|p| p.contains("netns") || p.contains("shm"))
        .collect();
    assert!(new.is_empty(), "made after the hook: {new:?}");
    let container = pod.sleeper("c").await;
    assert_eq!(container.exec(&["hostname"]).await, "ready");
    pod.end().await;
}

#[tokio::test]
async fn contract_c01_no_container_is_created_before_all_plugins_returned() {
    let (daemon, first) = with_plugin().await;
    let second = Plugin::join(&daemon.nri_socket(), "20", "second").await;
    let late = second.blocks(Event::RunPodSandbox);
    let running = in_run(&daemon, &first, daemon.cri().pod_config("order")).await;
    assert!(
        second.seen().is_empty(),
        "plugins are asked one after the other"
    );
    running.gate.open();
    second.sees(Event::RunPodSandbox, "order").await;
    let cri = daemon.cri();
    let early = cri.pod_by_id(&running.pod.id, "order");
    early
        .try_create(cri.container_config("c", &["true"]))
        .await
        .expect_err("one plugin is missing");
    assert!(cri.pods().await.is_empty() && !running.call.is_finished());
    late.open();
    let pod = running.passes().await;
    pod.run("c", &["true"]).await.exited().await;
    pod.end().await;
    assert_eq!(first.list(), second.list());
}

#[tokio::test]
async fn contract_c01_run_promises_nothing_about_volumes() {
    // A volume that appears after RunPodSandbox is good enough for the container.
    let (daemon, plugin) = with_plugin().await;
    let running = in_run(&daemon, &plugin, daemon.cri().pod_config("volumes")).await;
    let volume = daemon.path("volumes/late");
    assert!(!volume.exists());
    let pod = running.passes().await;
    fs::create_dir(&volume).expect("a directory");
    fs::write(volume.join("file"), "late").expect("a file");
    let mut config = pod.cri.container_config("c", &["cat", "/volume/file"]);
    config.mounts = vec![cri::Mount {
        host_path: volume.display().to_string(),
        container_path: "/volume".into(),
        ..Default::default()
    }];
    let container = pod.try_create(config).await.expect("CreateContainer");
    container.start().await.expect("StartContainer");
    container.exited().await;
    assert_eq!(container.records()[0].content, b"late");
    pod.end().await;
}

#[tokio::test]
async fn contract_c01_a_veto_fails_the_pod_cleans_up_and_a_retry_works() {
    let (daemon, plugin) = with_plugin().await;
    let other = Plugin::join(&daemon.nri_socket(), "20", "other").await;
    let cri = daemon.cri();
    cri.pod("warm-up").await.end().await;
    let before = daemon.inventory().await;
    other.does(Event::RunPodSandbox, Deed::Error("not this one".into()));
    let error = cri
        .try_pod(cri.pod_config("veto"))
        .await
        .expect_err("it was vetoed");
    for word in ["20-other", "RunPodSandbox", "not this one"] {
        assert!(error.message().contains(word), "{word}: {error}");
    }
    assert!(!error.message().contains('\n'));
    for plugin in [&plugin, &other] {
        plugin.sees(Event::RemovePodSandbox, "veto").await;
        let own: Vec<_> = plugin
            .list()
            .into_iter()
            .filter(|l| l.contains(" veto"))
            .collect();
        assert_eq!(
            own,
            [
                "RunPodSandbox veto",
                "StopPodSandbox veto",
                "RemovePodSandbox veto"
            ]
        );
    }
    assert!(cri.pods().await.is_empty());
    daemon.leaves_only(&before).await;
    let vetoed = plugin.sees(Event::RunPodSandbox, "veto").await.pod.id;
    other.behaves();
    let pod = cri.pod("veto").await;
    assert_ne!(pod.id, vetoed, "a retry gets a fresh id");
    pod.end().await;
}

#[tokio::test]
async fn contract_c01_a_veto_is_undone_by_stop_then_remove_with_the_namespaces_still_there() {
    let daemon = Daemon::start().await;
    let first = Plugin::join(&daemon.nri_socket(), "10", "first").await;
    let second = Plugin::join(&daemon.nri_socket(), "20", "second").await;
    second.does(Event::RunPodSandbox, refuses());
    let gate = first.blocks(Event::StopPodSandbox);
    let cri = daemon.cri();
    let config = cri.pod_config("p");
    let call = {
        let cri = daemon.cri();
        tokio::spawn(async move { cri.try_pod(config).await.map(drop) })
    };
    let stop = first.sees(Event::StopPodSandbox, "p").await;
    // No pause process: no pid, at neither point. And nothing was torn down.
    let run = first.sees(Event::RunPodSandbox, "p").await;
    assert_eq!((run.pod.pid, stop.pod.pid), (0, 0));
    let linux = stop.pod.linux.expect("a Linux pod");
    let paths: Vec<_> = linux
        .namespaces
        .iter()
        .filter(|n| !n.path.is_empty())
        .collect();
    assert!(paths.len() >= 3, "{:?}", linux.namespaces);
    for namespace in paths {
        let path = daemon.yard.inside(&namespace.path);
        assert!(path.exists(), "{} is gone", path.display());
    }
    gate.open();
    let refused = call.await.expect("no panic").expect_err("vetoed");
    assert!(refused.message().contains("not here"), "{refused}");
    let undone = ["RunPodSandbox p", "StopPodSandbox p", "RemovePodSandbox p"];
    assert_eq!(first.list(), undone);
    assert_eq!(second.list(), undone);
    assert!(cri.pods().await.is_empty());
}

//! The contract points, each looked at from inside while a plugin blocks in the hook: what must
//! hold then holds. NRI-1110…1117 (Run), 1130…1134 (Stop), 1140…1143 (Remove).

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use cairn_tests::{
    Daemon, Setup, bins,
    cri::{self, ContainerState, PodSandboxState},
    look,
    plugin::{Deed, Gate, Plugin, Seen},
    pod::{Container, Cri, Pod, host_network},
};
use nri::proto::{Event, PodSandbox};
use tokio::task::JoinHandle;
use tonic::Status;

/// A hook may block for as long as a test looks around.
const PATIENT: &str = "[nri]\nrequest_timeout = \"60s\"";

/// A daemon with one plugin.
async fn with_plugin() -> (Daemon, Plugin) {
    let daemon = Daemon::with(Setup::default().toml(PATIENT)).await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "blocker").await;
    (daemon, plugin)
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

/// The path of a pod's namespace, as a reader outside of the yard reaches it.
fn namespace(daemon: &Daemon, pod: &PodSandbox, kind: &str) -> Option<PathBuf> {
    let linux = pod.linux.as_ref()?;
    let found = linux.namespaces.iter().find(|n| n.r#type == kind)?;
    (!found.path.is_empty()).then(|| daemon.yard.inside(&found.path))
}

/// Runs busybox inside the network namespace of a pod.
async fn in_netns(daemon: &Daemon, pod: &PodSandbox, applet: &[&str]) -> String {
    let net = namespace(daemon, pod, "network").expect("a network namespace");
    let busybox = bins::system("busybox").expect("busybox-static is installed");
    let output = tokio::process::Command::new("nsenter")
        .arg(format!("--net={}", net.display()))
        .arg(busybox)
        .args(applet)
        .output()
        .await
        .expect("nsenter runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{applet:?} in the pod's network: {said}"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// One ping from the yard, the pods' host.
async fn host_pings(daemon: &Daemon, address: &str) -> bool {
    let busybox = bins::system("busybox").expect("busybox-static is installed");
    let ping = daemon
        .yard
        .command(busybox)
        .args(["ping", "-c", "1", "-W", "5", address])
        .output();
    ping.await.is_ok_and(|o| o.status.success())
}

#[tokio::test]
async fn contract_1110_while_run_blocks_the_pods_cgroup_exists() {
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
async fn contract_1111_while_run_blocks_the_namespaces_exist_and_their_paths_are_told() {
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
async fn contract_1111_a_pod_of_the_hosts_network_has_no_network_path() {
    let (daemon, plugin) = with_plugin().await;
    let mut config = daemon.cri().pod_config("hostnet");
    host_network(&mut config);
    let running = in_run(&daemon, &plugin, config).await;
    assert_eq!(namespace(&daemon, &running.pod, "network"), None);
    assert!(running.pod.ips.is_empty());
    running.passes().await.end().await;
}

#[tokio::test]
async fn contract_1112_while_run_blocks_the_network_works() {
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
async fn contract_1113_while_run_blocks_a_pause_process_runs_if_there_is_one() {
    let (daemon, plugin) = with_plugin().await;
    let mut config = daemon.cri().pod_config("pause");
    let security = config
        .linux
        .as_mut()
        .and_then(|l| l.security_context.as_mut())
        .expect("set");
    security.namespace_options.as_mut().expect("set").pid = cri::NamespaceMode::Pod.into();
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
async fn contract_1114_while_run_blocks_the_sandbox_is_not_listed_and_not_found() {
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
async fn contract_1115_a_container_starts_at_once_when_the_hook_has_returned() {
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
async fn contract_1116_no_container_is_created_before_all_plugins_returned() {
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
async fn contract_1117_run_promises_nothing_about_volumes() {
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
async fn contract_1118_a_veto_fails_the_pod_cleans_up_and_a_retry_works() {
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

/// A pod with one running container whose StopPodSandbox blocks in the hook.
struct Stopping {
    gate: Gate,
    call: JoinHandle<Result<(), Status>>,
    pod: Pod,
    container: Container,
    seen: Seen,
}

async fn in_stop(cri: &Cri, plugin: &Plugin, name: &str) -> Stopping {
    let pod = cri.pod(name).await;
    let container = pod.sleeper("c").await;
    let gate = plugin.blocks(Event::StopPodSandbox);
    let call = tokio::spawn({
        let pod = pod.clone();
        async move { pod.stop().await }
    });
    let seen = plugin.sees(Event::StopPodSandbox, name).await;
    Stopping {
        gate,
        call,
        pod,
        container,
        seen,
    }
}

impl Stopping {
    async fn passes(self) {
        assert!(
            !self.call.is_finished(),
            "StopPodSandbox waits for its hook"
        );
        self.gate.open();
        self.call.await.expect("no panic").expect("StopPodSandbox");
        self.pod.remove().await.expect("RemovePodSandbox");
    }
}

#[tokio::test]
async fn contract_1130_while_stop_blocks_all_containers_are_stopped_and_told() {
    let (daemon, plugin) = with_plugin().await;
    let stopping = in_stop(&daemon.cri(), &plugin, "stopped").await;
    assert_eq!(
        stopping.container.state().await,
        ContainerState::ContainerExited
    );
    let pids = look::cgroup_pids(daemon.cgroup_parent());
    assert!(
        pids.is_empty(),
        "no process of a container is left: {pids:?}"
    );
    let events = plugin.events();
    let at = |event| events.iter().position(|e| *e == event);
    assert!(
        at(Event::StopContainer).expect("it was told") < at(Event::StopPodSandbox).expect("so too")
    );
    stopping.passes().await;
}

#[tokio::test]
async fn contract_1131_while_stop_blocks_the_network_still_works() {
    let (daemon, plugin) = with_plugin().await;
    let stopping = in_stop(&daemon.cri(), &plugin, "network").await;
    let address = stopping
        .seen
        .pod
        .ips
        .first()
        .cloned()
        .expect("an address is told");
    assert!(
        host_pings(&daemon, &address).await,
        "the host reaches {address}"
    );
    let shown = in_netns(&daemon, &stopping.seen.pod, &["ip", "-o", "-4", "addr"]).await;
    assert!(shown.contains(&address), "{shown}");
    in_netns(
        &daemon,
        &stopping.seen.pod,
        &["ping", "-c", "1", "-W", "5", "10.88.0.1"],
    )
    .await;
    stopping.passes().await;
    assert!(
        !host_pings(&daemon, &address).await,
        "afterwards it is gone"
    );
}

#[tokio::test]
async fn contract_1132_while_stop_blocks_nothing_is_unmounted_or_deleted() {
    let (daemon, plugin) = with_plugin().await;
    let cri = daemon.cri();
    let pod = cri.pod("intact").await;
    let container = pod.sleeper("c").await;
    container.sh("echo kept > /dev/shm/kept").await;
    let mounts = |daemon: &Daemon| look::mounts(daemon.yard.pid());
    let before = mounts(&daemon);
    let gate = plugin.blocks(Event::StopPodSandbox);
    let call = tokio::spawn({
        let pod = pod.clone();
        async move { pod.stop().await }
    });
    let seen = plugin.sees(Event::StopPodSandbox, "intact").await;
    let now = mounts(&daemon);
    // A container's own rootfs may go with the container; what is the pod's stays.
    let missing = before.difference(&now).filter(|m| !m.ends_with("/rootfs"));
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "unmounted too early: {missing:?}");
    for kind in ["ipc", "uts", "network"] {
        let path = namespace(&daemon, &seen.pod, kind).expect("a path");
        assert!(path.exists(), "the {kind} namespace is pinned");
    }
    assert!(!look::cgroup_dirs(&seen.pod.linux.expect("a linux part").cgroup_parent).is_empty());
    let shm = before
        .iter()
        .find(|m| m.contains(&pod.id) && m.ends_with("shm"));
    let shm = shm.expect("the pod's shm is mounted under its id");
    let kept = fs::read_to_string(daemon.yard.inside(shm).join("kept"));
    assert_eq!(kept.expect("shm is intact"), "kept\n");
    gate.open();
    call.await.expect("no panic").expect("StopPodSandbox");
    let left: Vec<_> = mounts(&daemon)
        .into_iter()
        .filter(|m| m.contains(&pod.id))
        .collect();
    assert!(left.is_empty(), "still mounted: {left:?}");
    pod.remove().await.expect("RemovePodSandbox");
}

#[tokio::test]
async fn contract_1133_while_stop_blocks_the_status_still_answers() {
    let (daemon, plugin) = with_plugin().await;
    let stopping = in_stop(&daemon.cri(), &plugin, "status").await;
    let status = stopping.pod.status().await;
    assert_eq!(status.metadata.expect("metadata").name, "status");
    assert_eq!(daemon.cri().pods().await.len(), 1);
    assert_eq!(daemon.cri().containers().await.len(), 1);
    stopping.passes().await;
}

#[tokio::test]
async fn contract_1134_while_stop_blocks_namespaces_need_no_pause_process() {
    let (daemon, plugin) = with_plugin().await;
    let stopping = in_stop(&daemon.cri(), &plugin, "pinned").await;
    // No process is left in the pod; its namespaces can be entered all the same.
    assert!(look::cgroup_pids(daemon.cgroup_parent()).is_empty());
    let links = in_netns(&daemon, &stopping.seen.pod, &["ip", "-o", "link"]).await;
    assert!(links.contains("eth0"), "{links}");
    stopping.passes().await;
}

#[tokio::test]
async fn contract_1135_stop_is_told_once_also_over_a_restart() {
    let (mut daemon, plugin) = with_plugin().await;
    let pod = daemon.cri().pod("once").await;
    pod.stop().await.expect("StopPodSandbox");
    pod.stop().await.expect("StopPodSandbox");
    let stops = |plugin: &Plugin| {
        plugin
            .events()
            .iter()
            .filter(|e| **e == Event::StopPodSandbox)
            .count()
    };
    assert_eq!(stops(&plugin), 1);
    daemon.kill_and_restart().await;
    let again = Plugin::join(&daemon.nri_socket(), "10", "blocker").await;
    let pod = daemon.cri().pod_by_id(&pod.id, "once");
    pod.stop().await.expect("StopPodSandbox");
    pod.remove().await.expect("RemovePodSandbox");
    assert_eq!(again.list(), ["RemovePodSandbox once"]);
}

#[tokio::test]
async fn contract_1135_a_pod_older_than_the_daemon_gets_its_stop_and_remove() {
    let (mut daemon, _plugin) = with_plugin().await;
    let pod = daemon.cri().pod("older").await;
    pod.sleeper("c").await;
    daemon.kill_and_restart().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "blocker").await;
    let (pods, containers) = plugin.synchronised().await;
    assert_eq!(
        (pods.len(), containers.len()),
        (1, 1),
        "Synchronize tells what there is"
    );
    daemon.cri().pod_by_id(&pod.id, "older").end().await;
    let expected = [
        "StopContainer older c",
        "StopPodSandbox older",
        "RemoveContainer older c",
        "RemovePodSandbox older",
    ];
    assert_eq!(plugin.list(), expected);
}

/// A stopped pod whose RemovePodSandbox blocks in the hook.
async fn in_remove(pod: &Pod, plugin: &Plugin) -> (Gate, JoinHandle<Result<(), Status>>, Seen) {
    let gate = plugin.blocks(Event::RemovePodSandbox);
    let call = tokio::spawn({
        let pod = pod.clone();
        async move { pod.remove().await }
    });
    let seen = plugin
        .sees(Event::RemovePodSandbox, &pod.config.hostname)
        .await;
    (gate, call, seen)
}

async fn passes(gate: Gate, call: JoinHandle<Result<(), Status>>) {
    assert!(!call.is_finished(), "RemovePodSandbox waits for its hook");
    gate.open();
    call.await.expect("no panic").expect("RemovePodSandbox");
}

#[tokio::test]
async fn contract_1140_while_remove_blocks_all_containers_are_removed_and_told() {
    let (daemon, plugin) = with_plugin().await;
    let pod = daemon.cri().pod("removed").await;
    let container = pod.sleeper("c").await;
    pod.stop().await.expect("StopPodSandbox");
    let (gate, call, _) = in_remove(&pod, &plugin).await;
    assert!(daemon.cri().containers().await.is_empty());
    assert!(container.try_status().await.is_err());
    let events = plugin.events();
    let at = |event| events.iter().position(|e| *e == event);
    assert!(at(Event::RemoveContainer).expect("told") < at(Event::RemovePodSandbox).expect("told"));
    passes(gate, call).await;
    assert!(daemon.cri().pods().await.is_empty());
}

#[tokio::test]
async fn contract_1141_remove_of_a_running_pod_stops_it_first() {
    let (daemon, plugin) = with_plugin().await;
    let pod = daemon.cri().pod("running").await;
    pod.sleeper("c").await;
    let (gate, call, _) = in_remove(&pod, &plugin).await;
    let expected = [
        "RunPodSandbox running",
        "CreateContainer running c",
        "PostCreateContainer running c",
        "StartContainer running c",
        "PostStartContainer running c",
        "StopContainer running c",
        "StopPodSandbox running",
        "RemoveContainer running c",
        "RemovePodSandbox running",
    ];
    assert_eq!(plugin.list(), expected);
    let listed = daemon.cri().pods().await;
    assert!(
        listed
            .iter()
            .all(|p| p.state() == PodSandboxState::SandboxNotready)
    );
    passes(gate, call).await;
}

#[tokio::test]
async fn contract_1142_a_network_namespace_that_is_gone_is_not_sent() {
    let (daemon, plugin) = with_plugin().await;
    let pod = daemon.cri().pod("gone").await;
    pod.stop().await.expect("StopPodSandbox");
    let (gate, call, seen) = in_remove(&pod, &plugin).await;
    if let Some(path) = namespace(&daemon, &seen.pod, "network") {
        assert!(
            path.exists(),
            "a path is sent that no longer exists: {}",
            path.display()
        );
    }
    passes(gate, call).await;
}

#[tokio::test]
async fn contract_1143_remove_still_tells_who_the_pod_was() {
    let (daemon, plugin) = with_plugin().await;
    let cri = daemon.cri();
    let config = cri.pod_config("who");
    let pod = cri.try_pod(config.clone()).await.expect("RunPodSandbox");
    pod.stop().await.expect("StopPodSandbox");
    let (gate, call, seen) = in_remove(&pod, &plugin).await;
    let metadata = config.metadata.expect("set");
    assert_eq!(seen.pod.id, pod.id);
    assert_eq!(seen.pod.name, metadata.name);
    assert_eq!(
        (seen.pod.uid, seen.pod.namespace),
        (metadata.uid, metadata.namespace)
    );
    let sorted = |map: &std::collections::HashMap<String, String>| -> BTreeMap<String, String> {
        map.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    assert_eq!(seen.pod.labels, sorted(&config.labels));
    // The runtime adds its own, as containerd does; the pod's are among them unchanged.
    let mut annotations = seen.pod.annotations;
    annotations.retain(|key, _| !key.starts_with("io.kubernetes.cri."));
    assert_eq!(annotations, sorted(&config.annotations));
    passes(gate, call).await;
}

#[tokio::test]
async fn contract_1144_an_error_or_a_hang_never_prevents_removal() {
    let daemon = Daemon::with(Setup::default().toml("[nri]\nrequest_timeout = \"300ms\"")).await;
    let first = Plugin::join(&daemon.nri_socket(), "10", "first").await;
    let second = Plugin::join(&daemon.nri_socket(), "20", "second").await;
    let last = Plugin::join(&daemon.nri_socket(), "30", "last").await;
    first.does(Event::StopPodSandbox, Deed::Error("no".into()));
    first.does(Event::RemovePodSandbox, Deed::Error("no".into()));
    second.does(Event::StopContainer, Deed::Hang);
    let pod = daemon.cri().pod("goes").await;
    pod.sleeper("c").await;
    pod.end().await;
    assert!(daemon.cri().pods().await.is_empty());
    assert_eq!(
        last.list().last().map(String::as_str),
        Some("RemovePodSandbox goes")
    );
    assert_eq!(first.list(), last.list(), "an error costs nobody an event");
    assert!(
        second.is_dismissed(Duration::from_secs(5)).await,
        "a plugin that hangs is closed"
    );
    let unknown = daemon.cri().pod_by_id(&"a".repeat(64), "unknown");
    unknown
        .remove()
        .await
        .expect("a pod that is unknown is removed, without an event");
    assert_eq!(last.list().len(), first.list().len());
}

#[tokio::test]
async fn contract_create_hides_the_container_until_all_plugins_agreed() {
    let (daemon, plugin) = with_plugin().await;
    let cri = daemon.cri();
    let pod = cri.pod("create").await;
    let gate = plugin.blocks(Event::CreateContainer);
    let call = tokio::spawn({
        let pod = pod.clone();
        async move {
            pod.try_create(pod.cri.container_config("c", &["sleep", "1000"]))
                .await
        }
    });
    let seen = plugin.sees(Event::CreateContainer, "create").await;
    let told = seen.container.expect("a container");
    assert!(cri.containers().await.is_empty(), "it is not listed");
    let early = cri.container_by_id(&told.id, daemon.path("none"));
    early.try_status().await.expect_err("nor found");
    assert!(!call.is_finished());
    gate.open();
    let container = call.await.expect("no panic").expect("CreateContainer");
    assert_eq!(container.id, told.id);
    plugin.does(Event::CreateContainer, Deed::Error("not that one".into()));
    let before = daemon.inventory().await;
    let refused = pod
        .try_create(cri.container_config("d", &["true"]))
        .await
        .expect_err("vetoed");
    assert!(refused.message().contains("not that one"), "{refused}");
    assert_eq!(cri.containers().await.len(), 1);
    daemon.leaves_only(&before).await;
    plugin.behaves();
    pod.run("d", &["true"]).await.exited().await;
    pod.end().await;
}

#[tokio::test]
async fn contract_an_exit_is_told_once_before_the_pods_stop() {
    let (daemon, plugin) = with_plugin().await;
    let pod = daemon.cri().pod("exit").await;
    let container = pod.run("c", &["sh", "-c", "exit 3"]).await;
    container.exited().await;
    // Without any call: the exit itself is the event's cause.
    plugin.sees(Event::StopContainer, "exit").await;
    container.stop(Duration::ZERO).await.expect("StopContainer");
    container.remove().await.expect("RemoveContainer");
    pod.end().await;
    let expected = [
        "RunPodSandbox exit",
        "CreateContainer exit c",
        "PostCreateContainer exit c",
        "StartContainer exit c",
        "PostStartContainer exit c",
        "StopContainer exit c",
        "RemoveContainer exit c",
        "StopPodSandbox exit",
        "RemovePodSandbox exit",
    ];
    assert_eq!(plugin.list(), expected);
}

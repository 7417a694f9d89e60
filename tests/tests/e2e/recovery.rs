//! Hooks across a crash (the table *Restart* in CONTRACT.md): the daemon is killed while a plugin is
//! in a hook, and started again with one plugin that it launches and one that connects again.
//!
//! The launched plugin is the Go logger. It is synchronised before recovery, and recovery is through
//! when the daemon answers: what it has written by then is all that the restart told it.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use cairn_tests::{
    Daemon, bins,
    client::Cri,
    container::Container,
    cri,
    cri::{ContainerState, PodSandboxState},
    plugin::Plugin,
    pod::{Pod, pod_namespaces},
    until,
};
use nri::proto::Event;

/// A plugin that the daemon launches from its next start on.
struct Launched {
    out: PathBuf,
}

impl Launched {
    fn install(daemon: &Daemon) -> Self {
        let out = daemon.path("launched.out");
        let program = bins::peer("nri-logger");
        let (from, to) = (program.display(), out.display());
        let script = format!("#!/bin/sh\nexec {from} >>{to} 2>&1\n");
        let file = daemon.path("plugins/90-launched");
        fs::write(&file, script).expect("the plugin directory is ours");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("so is the file");
        Self { out }
    }

    /// What it was told, in order; "synchronised: …" for each Synchronize. What it says of its own
    /// end is left out.
    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.out).unwrap_or_default();
        let own = text
            .lines()
            .filter(|l| !l.contains("level=") && !l.starts_with("nri-logger:"));
        own.map(str::to_owned).collect()
    }
}

/// A daemon that was killed in a hook and serves again.
struct Again {
    daemon: Daemon,
    launched: Launched,
    /// Connected after the restart, as an external plugin that connects again does.
    external: Plugin,
}

impl Again {
    /// The only pod that is listed.
    async fn pod(&self) -> Pod {
        let cri = self.daemon.cri();
        let pods = cri.pods().await;
        assert_eq!(pods.len(), 1);
        cri.pod_by_id(&pods[0].id, "p")
    }

    /// The only container that is listed.
    async fn container(&self) -> Container {
        let cri = self.daemon.cri();
        let containers = cri.containers().await;
        assert_eq!(containers.len(), 1);
        cri.container_by_id(&containers[0].id, self.daemon.path("none"))
    }

    /// How many pods and containers the external plugin was told at its return.
    async fn listed(&self) -> (usize, usize) {
        let (pods, containers) = self.external.synchronised().await;
        (pods.len(), containers.len())
    }

    /// From here on both plugins see the same.
    fn both_saw(&self, restart: usize, expected: &[&str]) {
        assert_eq!(self.external.list(), expected);
        assert_eq!(self.launched.lines()[restart..], *expected);
    }
}

/// Kills the daemon while an external plugin is in an event of `life`, and starts it again.
async fn killed_in<Fut>(event: Event, life: impl FnOnce(Cri) -> Fut) -> Again
where
    Fut: Future<Output = ()> + Send + 'static,
{
    let mut daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "external").await;
    let _gate = plugin.blocks(event);
    let call = tokio::spawn(life(daemon.cri()));
    plugin.sees(event, "p").await;
    daemon.kill().await;
    // Its connection has gone with the daemon, and with it whatever it waited for.
    call.abort();
    drop(plugin);
    let launched = Launched::install(&daemon);
    daemon.serve().await;
    let external = Plugin::join(&daemon.nri_socket(), "10", "external").await;
    Again {
        daemon,
        launched,
        external,
    }
}

/// A pod with a container that runs.
async fn running(cri: &Cri) -> (Pod, Container) {
    let pod = cri.pod("p").await;
    let container = pod.sleeper("c").await;
    (pod, container)
}

#[tokio::test]
async fn a_daemon_killed_in_run_pod_sandbox_sends_stop_and_remove_and_the_pod_is_gone() {
    let again = killed_in(Event::RunPodSandbox, |cri| async move {
        let _ = cri.try_pod(cri.pod_config("p")).await;
    })
    .await;
    let told = [
        "synchronised: 0 pods, 0 containers",
        "StopPodSandbox p",
        "RemovePodSandbox p",
    ];
    assert_eq!(again.launched.lines(), told);
    assert_eq!(again.listed().await, (0, 0));
    let cri = again.daemon.cri();
    assert!(cri.pods().await.is_empty());
    cri.pod("p").await.end().await;
    again.both_saw(
        told.len(),
        &["RunPodSandbox p", "StopPodSandbox p", "RemovePodSandbox p"],
    );
}

#[tokio::test]
async fn a_daemon_killed_in_create_container_sends_stop_and_remove_and_the_container_is_gone() {
    let again = killed_in(Event::CreateContainer, |cri| async move {
        let pod = cri.pod("p").await;
        let _ = pod.try_create(cri.container_config("c", &["true"])).await;
    })
    .await;
    let told = [
        "synchronised: 1 pods, 0 containers",
        "StopContainer p c",
        "RemoveContainer p c",
    ];
    assert_eq!(again.launched.lines(), told);
    assert_eq!(again.listed().await, (1, 0));
    assert!(again.daemon.cri().containers().await.is_empty());
    let pod = again.pod().await;
    pod.create("c", &["true"]).await;
    again.both_saw(
        told.len(),
        &["CreateContainer p c", "PostCreateContainer p c"],
    );
    pod.end().await;
}

#[tokio::test]
async fn a_daemon_killed_in_stop_pod_sandbox_sends_it_again_and_stops_the_pod() {
    let again = killed_in(Event::StopPodSandbox, |cri| async move {
        let (pod, _) = running(&cri).await;
        let _ = pod.stop().await;
    })
    .await;
    let told = ["synchronised: 1 pods, 0 containers", "StopPodSandbox p"];
    assert_eq!(again.launched.lines(), told);
    assert_eq!(again.listed().await, (1, 0), "a stopped pod is listed");
    let pod = again.pod().await;
    assert_eq!(pod.status().await.state(), PodSandboxState::SandboxNotready);
    pod.end().await;
    again.both_saw(told.len(), &["RemoveContainer p c", "RemovePodSandbox p"]);
}

#[tokio::test]
async fn a_daemon_killed_in_remove_pod_sandbox_sends_it_again_and_the_pod_is_gone() {
    let again = killed_in(Event::RemovePodSandbox, |cri| async move {
        let (pod, _) = running(&cri).await;
        let _ = pod.remove().await;
    })
    .await;
    let told = ["synchronised: 0 pods, 0 containers", "RemovePodSandbox p"];
    assert_eq!(again.launched.lines(), told);
    assert_eq!(again.listed().await, (0, 0));
    assert!(again.daemon.cri().pods().await.is_empty());
    again.both_saw(told.len(), &[]);
}

#[tokio::test]
async fn a_daemon_killed_in_remove_container_sends_it_again_and_the_container_is_gone() {
    let again = killed_in(Event::RemoveContainer, |cri| async move {
        let (_, container) = running(&cri).await;
        let _ = container.remove().await;
    })
    .await;
    let told = ["synchronised: 1 pods, 0 containers", "RemoveContainer p c"];
    assert_eq!(again.launched.lines(), told);
    assert_eq!(again.listed().await, (1, 0));
    assert!(again.daemon.cri().containers().await.is_empty());
    again.pod().await.end().await;
    again.both_saw(told.len(), &["StopPodSandbox p", "RemovePodSandbox p"]);
}

#[tokio::test]
async fn a_daemon_killed_in_stop_container_sends_it_again() {
    let again = killed_in(Event::StopContainer, |cri| async move {
        cri.pod("p").await.run("c", &["sh", "-c", "exit 3"]).await;
    })
    .await;
    let told = ["synchronised: 1 pods, 0 containers", "StopContainer p c"];
    assert_eq!(again.launched.lines(), told);
    assert_eq!(
        again.listed().await,
        (1, 0),
        "what has exited is not listed"
    );
    assert_eq!(again.container().await.exited().await.exit_code, 3);
    again.pod().await.end().await;
    again.both_saw(
        told.len(),
        &[
            "StopPodSandbox p",
            "RemoveContainer p c",
            "RemovePodSandbox p",
        ],
    );
}

#[tokio::test]
async fn a_container_that_ended_while_the_daemon_was_down_is_told_once_after_synchronize() {
    let mut daemon = Daemon::start().await;
    let (_, container) = running(&daemon.cri()).await;
    let pid = container.pid().await.expect("a pid");
    daemon.kill().await;
    let proc = daemon.yard.inside(format!("/proc/{pid}"));
    let pid = i32::try_from(pid).expect("a pid");
    daemon.yard.kill(pid, 9).await;
    until("the container's process is gone", || async {
        (!proc.exists()).then_some(())
    })
    .await;
    let launched = Launched::install(&daemon);
    daemon.serve().await;
    let once = ["synchronised: 1 pods, 1 containers", "StopContainer p c"];
    assert_eq!(
        launched.lines(),
        once,
        "it is listed as it was, and then it ended"
    );
    let external = Plugin::join(&daemon.nri_socket(), "10", "external").await;
    let mut again = Again {
        daemon,
        launched,
        external,
    };
    assert_eq!(again.listed().await, (1, 0));
    assert_eq!(again.container().await.exited().await.exit_code, 137);
    again.daemon.kill_and_restart().await;
    assert_eq!(
        again.launched.lines()[once.len()..],
        ["synchronised: 1 pods, 0 containers"],
        "another restart does not tell it again"
    );
    again.pod().await.end().await;
}

#[tokio::test]
async fn a_daemon_killed_in_start_container_sends_nothing_and_the_container_can_be_started() {
    let again = killed_in(Event::StartContainer, |cri| async move {
        let pod = cri.pod("p").await;
        let container = pod.create("c", &["sleep", "1000"]).await;
        let _ = container.start().await;
    })
    .await;
    let told = ["synchronised: 1 pods, 1 containers"];
    assert_eq!(again.launched.lines(), told);
    assert_eq!(again.listed().await, (1, 1));
    let container = again.container().await;
    assert_eq!(container.state().await, ContainerState::ContainerCreated);
    container.start().await.expect("StartContainer");
    again.both_saw(
        told.len(),
        &["StartContainer p c", "PostStartContainer p c"],
    );
    again.pod().await.end().await;
}

#[tokio::test]
async fn a_daemon_killed_in_a_notification_or_an_update_sends_nothing() {
    for event in [
        Event::PostCreateContainer,
        Event::PostStartContainer,
        Event::UpdateContainer,
        Event::PostUpdateContainer,
        Event::UpdatePodSandbox,
        Event::PostUpdatePodSandbox,
    ] {
        let again = killed_in(event, |cri| async move {
            let (pod, container) = running(&cri).await;
            let _ = container.limit_memory(64 << 20).await;
            let _ = pod.share_cpu(300).await;
        })
        .await;
        let told = ["synchronised: 1 pods, 1 containers"];
        assert_eq!(again.launched.lines(), told, "{event:?}");
        assert_eq!(again.listed().await, (1, 1), "{event:?}");
        let state = match event {
            Event::PostCreateContainer => ContainerState::ContainerCreated,
            _ => ContainerState::ContainerRunning,
        };
        assert_eq!(again.container().await.state().await, state, "{event:?}");
        again.pod().await.end().await;
        again.both_saw(
            told.len(),
            match event {
                // What never ran has its stop with its removal.
                Event::PostCreateContainer => &[
                    "StopPodSandbox p",
                    "StopContainer p c",
                    "RemoveContainer p c",
                    "RemovePodSandbox p",
                ],
                _ => &[
                    "StopContainer p c",
                    "StopPodSandbox p",
                    "RemoveContainer p c",
                    "RemovePodSandbox p",
                ],
            },
        );
    }
}

#[tokio::test]
async fn contract_c01_a_record_that_cannot_be_written_after_run_sends_stop_and_remove() {
    let mut daemon = Daemon::start().await;
    daemon.cri().pod("warm-up").await.end().await;
    let before = daemon.inventory().await;
    let mut after_the_hook = 0;
    // The n-th write of a pod's record fails, until a start has no such write.
    for n in 1.. {
        daemon.terminate().await;
        daemon.setup_mut().env = vec![("CAIRN_FAULT".into(), format!("store.pod@{n}=error"))];
        daemon.serve().await;
        let plugin = Plugin::join(&daemon.nri_socket(), "10", "told").await;
        let cri = daemon.cri();
        let Err(error) = cri.try_pod(cri.pod_config("p")).await else {
            assert!(n > 2, "a start has more than {n} writes");
            break;
        };
        assert!(error.message().contains("store.pod"), "{error}");
        assert!(cri.pods().await.is_empty(), "write {n}");
        daemon.leaves_only(&before).await;
        let told = plugin.list();
        if !told.is_empty() {
            after_the_hook += 1;
            let all = ["RunPodSandbox p", "StopPodSandbox p", "RemovePodSandbox p"];
            assert_eq!(told, all, "write {n}");
        }
        cri.pod("p").await.end().await;
    }
    assert_eq!(after_the_hook, 1, "one write follows the hook");
}

/// A pod with a shared pid namespace, whose pause process was killed.
async fn dead_pod(daemon: &mut Daemon, plugin: &Plugin) -> Pod {
    let mut config = daemon.cri().pod_config("dead");
    pod_namespaces(&mut config).pid = cri::NamespaceMode::Pod.into();
    let pod = daemon.cri().try_pod(config).await.expect("RunPodSandbox");
    let pause = plugin.sees(Event::RunPodSandbox, "dead").await.pod.pid;
    assert!(pause > 0);
    let proc = daemon.yard.inside(format!("/proc/{pause}"));
    let pause = i32::try_from(pause).expect("a pid");
    daemon.yard.kill(pause, 9).await;
    until("the pause process is gone", || async {
        (!proc.exists()).then_some(())
    })
    .await;
    pod
}

#[tokio::test]
async fn contract_c02_a_sandbox_found_dead_still_gets_its_stop_and_only_once() {
    let mut daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "told").await;
    let pod = dead_pod(&mut daemon, &plugin).await;
    pod.stop().await.expect("StopPodSandbox");
    pod.stop().await.expect("StopPodSandbox");
    pod.remove().await.expect("RemovePodSandbox");
    let life = [
        "RunPodSandbox dead",
        "StopPodSandbox dead",
        "RemovePodSandbox dead",
    ];
    assert_eq!(plugin.list(), life);
}

#[tokio::test]
async fn contract_c02_a_sandbox_found_dead_at_a_restart_still_gets_its_stop_and_only_once() {
    let mut daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "told").await;
    let pod = dead_pod(&mut daemon, &plugin).await;
    daemon.kill_and_restart().await;
    let again = Plugin::join(&daemon.nri_socket(), "10", "told").await;
    assert_eq!(again.synchronised().await.0.len(), 1, "it is listed");
    let pod = daemon.cri().pod_by_id(&pod.id, "dead");
    assert_eq!(pod.status().await.state(), PodSandboxState::SandboxNotready);
    assert!(again.list().is_empty(), "being found dead is no event");
    pod.stop().await.expect("StopPodSandbox");
    pod.stop().await.expect("StopPodSandbox");
    pod.remove().await.expect("RemovePodSandbox");
    assert_eq!(
        again.list(),
        ["StopPodSandbox dead", "RemovePodSandbox dead"]
    );
}

//! The daemon serves at once after a restart, whatever plugins, CNI programs, monitors and
//! directories of others do, and however many objects they hold up. They would hold up a start that
//! waits for them for 10 s or more.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use cairn_tests::{
    Daemon, Setup,
    container::Container,
    cri::{self, ContainerState},
    daemon::PREFIX,
    look,
    pod::{host_network, pod_namespaces},
    until,
};
use tempfile::TempDir;

/// Time from the spawn to the first answer. It is a second on an idle machine.
const AT_ONCE: Duration = Duration::from_secs(8);
const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;

async fn served_at_once(daemon: &mut Daemon, party: &str) {
    let begun = Instant::now();
    daemon.serve().await;
    let took = begun.elapsed();
    assert!(took < AT_ONCE, "{party}: it serves after {took:?}");
}

/// SIGTERM is heard too.
async fn ends_at_once(daemon: &mut Daemon) {
    let begun = Instant::now();
    let ended = daemon.terminate().await;
    assert_eq!(ended.code(), Some(0), "{}", daemon.log_tail(10));
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "after {:?}",
        begun.elapsed()
    );
}

fn script(at: &Path, text: &str) {
    fs::write(at, text).expect("written");
    fs::set_permissions(at, fs::Permissions::from_mode(0o755)).expect("made a program");
}

async fn monitor_of(daemon: &Daemon, container: &Container) -> i32 {
    let pid = container.pid().await.expect("a pid");
    let proc = daemon.yard.inside(format!("/proc/{pid}"));
    let parent = look::status_field(&proc, "PPid").and_then(|pid| pid.parse().ok());
    parent.expect("a parent")
}

/// A CNI program whose ADD fails and whose DEL hangs while the file is there.
fn outage() -> (TempDir, Setup) {
    let programs = tempfile::Builder::new().prefix(PREFIX).tempdir();
    let programs = programs.expect("a temporary directory");
    let gate = programs.path().join("outage");
    fs::write(&gate, "").expect("written");
    let text = format!(
        "#!/bin/sh\ncase $CNI_COMMAND in\n\
         ADD) echo '{{\"code\":11,\"msg\":\"no agent\"}}'; exit 1 ;;\n\
         DEL) while [ -e {} ]; do sleep 0.1; done ;;\nesac\n",
        gate.display()
    );
    script(&programs.path().join("agent"), &text);
    let list =
        r#"{ "cniVersion": "1.0.0", "name": "testnet", "plugins": [ { "type": "agent" } ] }"#;
    let setup = Setup {
        cni_programs: Some(programs.path().into()),
        ..Setup::default().cni(list)
    };
    (programs, setup)
}

#[tokio::test]
async fn networks_of_an_outage_do_not_hold_up_a_start_and_go_when_it_is_over() {
    let (programs, setup) = outage();
    let mut daemon = Daemon::with(setup).await;
    let cri = daemon.cri();
    let mut pods = tokio::task::JoinSet::new();
    for n in 0..20 {
        let cri = cri.clone();
        pods.spawn(async move { cri.try_pod(cri.pod_config(&format!("p{n}"))).await });
    }
    let attachments = daemon.path("root/network/attachments");
    until("all have begun", || async {
        (look::tree(&attachments).len() >= 20).then_some(())
    })
    .await;
    daemon.kill().await;
    pods.shutdown().await;
    served_at_once(&mut daemon, "20 DELs that hang").await;
    let host = {
        let cri = daemon.cri();
        let mut config = cri.pod_config("host");
        host_network(&mut config);
        cri.try_pod(config).await.expect("RunPodSandbox")
    };
    host.end().await;
    ends_at_once(&mut daemon).await;
    fs::remove_file(programs.path().join("outage")).expect("it was there");
    daemon.serve().await;
    until("no network is left", || async {
        look::tree(&attachments).is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_launched_plugin_that_never_registers_holds_up_only_those_who_need_it() {
    let mut daemon = Daemon::start().await;
    let pod = daemon.cri().pod("before").await;
    let stays = pod.sleeper("stays").await;
    let mut ended = Vec::new();
    for n in 0..20 {
        let wait = "while [ ! -e /dev/shm/die ]; do sleep 0.05; done; exit 42";
        ended.push(pod.run(&format!("c{n}"), &["sh", "-c", wait]).await);
    }
    let stays_pid = stays.pid().await.expect("a pid");
    let mut pids = Vec::new();
    for container in &ended {
        pids.push(container.pid().await.expect("a pid"));
    }
    daemon.kill().await;
    let die = format!("/proc/{stays_pid}/root/dev/shm/die");
    fs::write(daemon.yard.inside(die), "").expect("written");
    until("all have ended", || async {
        let runs = |pid| daemon.yard.inside(format!("/proc/{pid}/root/bin")).exists();
        (!pids.iter().any(runs)).then_some(())
    })
    .await;
    let file = daemon.path("plugins/10-silent");
    script(&file, "#!/bin/sh\nexec sleep 1000\n");
    served_at_once(&mut daemon, "a silent plugin and 20 exits").await;
    let gave_up = "the start goes on without it";
    assert!(!daemon.log().contains(gave_up), "it waited for the plugin");
    let cri = daemon.cri();
    for container in &ended {
        let container = cri.container_by_id(&container.id, container.log.clone());
        assert_eq!(container.exited().await.exit_code, 42);
    }
    let stays = cri.container_by_id(&stays.id, stays.log.clone());
    assert_eq!(stays.state().await, ContainerState::ContainerRunning);
    assert_eq!(stays.exec(&["echo", "here"]).await, "here");
    // A new pod is held up for as long as plugins may take.
    cri.pod("new").await.end().await;
    let log = daemon.log();
    assert!(log.contains(gave_up), "{log}");
    ends_at_once(&mut daemon).await;
    fs::remove_file(file).expect("it was there");
    daemon.serve().await;
    daemon.cri().pod_by_id(&pod.id, "before").end().await;
}

#[tokio::test]
async fn monitors_that_do_not_answer_hold_up_no_start() {
    let mut daemon = Daemon::start().await;
    let mut config = daemon.cri().pod_config("stuck");
    pod_namespaces(&mut config).pid = cri::NamespaceMode::Pod.into();
    let pod = daemon.cri().try_pod(config).await.expect("RunPodSandbox");
    let mut containers = Vec::new();
    for n in 0..5 {
        containers.push(pod.sleeper(&format!("c{n}")).await);
    }
    let mut monitors = Vec::new();
    for container in &containers {
        monitors.push(monitor_of(&daemon, container).await);
    }
    for monitor in &monitors {
        daemon.yard.kill(*monitor, SIGSTOP).await;
    }
    daemon.kill().await;
    served_at_once(&mut daemon, "5 monitors that are stopped").await;
    let other = daemon.cri().pod("other").await;
    other.sleeper("c").await;
    other.end().await;
    for monitor in &monitors {
        daemon.yard.kill(*monitor, SIGCONT).await;
    }
    for container in &containers {
        let container = daemon
            .cri()
            .container_by_id(&container.id, container.log.clone());
        until("its monitor answers", || async {
            let ran = container.try_exec(&["true"], 2).await;
            ran.is_ok().then_some(())
        })
        .await;
    }
    daemon.cri().pod_by_id(&pod.id, "stuck").end().await;
}

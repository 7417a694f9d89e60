//! Clients that disconnect during a call, and reconnect.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use cairn_tests::{
    Daemon,
    client::Client,
    client::Cri,
    cri,
    daemon::Setup,
    plugin::{Behavior, Plugin},
    until,
};
use nri::proto::Event;
use tonic::Code;

/// A client with its own connection, which can be closed.
async fn another(daemon: &Daemon) -> Cri {
    let client = Client::connect(&daemon.socket()).await.expect("it serves");
    Cri::new(client, &daemon.path(""), daemon.cgroup_parent())
}

/// Waits until the daemon has detected the end of the other client's connection.
async fn is_noticed(daemon: &Daemon) {
    until("the daemon has noticed", || async {
        let links = daemon.lines(&["ss", "-xH", "state", "established"]).await;
        let socket = daemon.socket().display().to_string();
        let clients = links.iter().filter(|line| line.contains(&socket));
        (clients.count() <= 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_client_that_vanished_in_run_pod_sandbox_gets_its_pod_when_it_comes_back() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "slow").await;
    let gate = plugin.blocks(Event::RunPodSandbox);
    let first = another(&daemon).await;
    let config = first.pod_config("mine");
    let call = tokio::spawn({
        let (first, config) = (first.clone(), config.clone());
        async move { first.try_pod(config).await.map(|pod| pod.id) }
    });
    plugin.sees(Event::RunPodSandbox, "mine").await;
    call.abort();
    let _aborted = call.await;
    drop(first);
    is_noticed(&daemon).await;
    gate.open();
    let cri = daemon.cri();
    let listed = until("the pod is there", || async { cri.pods().await.pop() }).await;
    let pod = cri.try_pod(config.clone()).await.expect("its own call");
    assert_eq!(pod.id, listed.id);
    assert_eq!(
        plugin
            .events()
            .iter()
            .filter(|e| **e == Event::RunPodSandbox)
            .count(),
        1
    );
    let again = cri.try_pod(config.clone()).await;
    assert_eq!(
        again.expect("that answer may be lost too").id,
        listed.id,
        "no client has used its id yet"
    );
    cri.pod_status(&pod.id).await.expect("its status");
    let again = cri.try_pod(config).await.expect_err("now it knows");
    assert_eq!(again.code(), Code::AlreadyExists);
    pod.end().await;
}

#[tokio::test]
async fn another_request_for_a_name_does_not_get_the_pod_that_is_being_made() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "slow").await;
    let gate = plugin.blocks(Event::RunPodSandbox);
    let cri = daemon.cri();
    let config = cri.pod_config("mine");
    let mut other = config.clone();
    other.labels.insert("other".into(), "1".into());
    let first = cri.clone();
    let first = tokio::spawn(async move { first.try_pod(config).await });
    plugin.sees(Event::RunPodSandbox, "mine").await;
    let second = cri.try_pod(other);
    tokio::pin!(second);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut second).await;
    assert!(early.is_err(), "nothing is decided yet");
    gate.open();
    let pod = first.await.expect("it ran").expect("RunPodSandbox");
    let refused = second.await.expect_err("it asked for something else");
    assert_eq!(refused.code(), Code::AlreadyExists);
    pod.end().await;
}

#[tokio::test]
async fn a_pod_that_has_ended_is_nobodys_answer() {
    let mut daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "looks").await;
    let cri = daemon.cri();
    let mut config = cri.pod_config("mine");
    let linux = config.linux.as_mut().expect("set by pod_config");
    let security = linux.security_context.as_mut().expect("set by pod_config");
    let options = security.namespace_options.as_mut().expect("set");
    options.pid = cri::NamespaceMode::Pod.into();
    let pod = cri.try_pod(config.clone()).await.expect("RunPodSandbox");
    let pause = plugin.sees(Event::RunPodSandbox, "mine").await.pod.pid;
    let pause = i32::try_from(pause).expect("a pid");
    daemon.yard.kill(pause, 9).await;
    until("the pod is not ready", || async {
        let listed = cri.pods().await.pop()?;
        (listed.state() == cri::PodSandboxState::SandboxNotready).then_some(())
    })
    .await;
    let again = cri.try_pod(config).await.expect_err("it has ended");
    assert_eq!(again.code(), Code::AlreadyExists, "{again}");
    pod.end().await;
}

#[tokio::test]
async fn a_client_whose_daemon_died_before_the_answer_gets_its_pod_and_its_container() {
    let mut daemon = Daemon::start().await;
    let pod = daemon.cri().pod("mine").await;
    daemon.kill_and_restart().await;
    let cri = daemon.cri();
    let again = cri
        .try_pod(cri.pod_config("mine"))
        .await
        .expect("its own call");
    assert_eq!(again.id, pod.id);
    let container = again.create("c", &["true"]).await;
    daemon.kill_and_restart().await;
    let pod = daemon.cri().pod_by_id(&pod.id, "mine");
    let same = pod.create("c", &["true"]).await;
    assert_eq!(same.id, container.id);
    let cri = daemon.cri();
    let other = cri
        .try_pod(cri.pod_config("mine"))
        .await
        .expect_err("it was used");
    assert_eq!(other.code(), Code::AlreadyExists);
    pod.end().await;
}

/// A CNI program whose ADD waits for the file `go`, and fails if the file `refuse` exists. Its DEL
/// fails until the file `heal` exists.
const BROKEN: &str = r#"#!/bin/sh
here=${0%/*}
fail() { echo '{"cniVersion":"1.0.0","code":100,"msg":"broken on purpose"}'; exit 1; }
case $CNI_COMMAND in
ADD) : >"$here/begun"; until [ -e "$here/go" ]; do sleep 0.02; done
    [ ! -e "$here/refuse" ] || fail
    echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"'"$CNI_NETNS"'"}],"ips":[{"address":"10.9.0.9/24","interface":0}]}' ;;
DEL) [ -e "$here/heal" ] || fail ;;
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
esac
"#;

async fn with_broken_network() -> (tempfile::TempDir, Daemon) {
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("broken");
    fs::write(&program, BROKEN).expect("the program is written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is made one");
    let conflist = r#"{"cniVersion":"1.0.0","name":"broken","plugins":[{"type":"broken"}]}"#;
    let mut setup = Setup::default().cni(conflist);
    setup.cni_programs = Some(dir.path().to_owned());
    (dir, Daemon::with(setup).await)
}

#[tokio::test]
async fn a_pod_whose_network_never_came_up_goes_though_it_cannot_be_undone_and_the_rest_is_collected()
 {
    let (dir, mut daemon) = with_broken_network().await;
    let before = daemon.inventory().await;
    for file in ["go", "refuse"] {
        fs::write(dir.path().join(file), "").expect("a file");
    }
    let cri = daemon.cri();
    for _ in 0..2 {
        let error = cri.try_pod(cri.pod_config("mine")).await;
        let error = error.expect_err("ADD fails");
        assert!(error.message().contains("broken on purpose"), "{error}");
        assert!(cri.pods().await.is_empty());
    }
    let log = daemon.log();
    let warnings = log
        .lines()
        .filter(|line| line.contains("a network that never came up"));
    assert_eq!(warnings.count(), 2, "one round of DEL for each: {log}");
    fs::write(dir.path().join("heal"), "").expect("DEL works again");
    daemon.kill_and_restart().await;
    daemon.leaves_only(&before).await;
}

#[tokio::test]
async fn a_client_that_vanished_is_not_given_a_pod_whose_creation_failed() {
    let (dir, mut daemon) = with_broken_network().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "veto").await;
    plugin.does(Event::RunPodSandbox, Behavior::Error("no".into()));
    // The directory remains after the first successful ADD.
    fs::create_dir_all(daemon.path("root/cni/results")).expect("a directory");
    let before = daemon.inventory().await;
    let first = another(&daemon).await;
    let config = first.pod_config("mine");
    let call = tokio::spawn({
        let (first, config) = (first.clone(), config.clone());
        async move { first.try_pod(config).await.map(|pod| pod.id) }
    });
    until("ADD has begun", || async {
        dir.path().join("begun").exists().then_some(())
    })
    .await;
    call.abort();
    let _aborted = call.await;
    drop(first);
    is_noticed(&daemon).await;
    let cri = daemon.cri();
    fs::write(dir.path().join("go"), "").expect("ADD goes on");
    let left = until("the creation has failed", || async {
        let pod = cri.pods().await.pop()?;
        (cri.pod_status(&pod.id).await.ok()?.status?.state() != cri::PodSandboxState::SandboxReady)
            .then_some(pod)
    })
    .await;
    let again = cri.try_pod(config).await.expect_err("it has failed");
    assert_eq!(again.code(), Code::AlreadyExists, "{again}");
    let says = ["creation failed", "network", "remove it first"];
    assert!(
        says.iter().all(|word| again.message().contains(word)),
        "{again}"
    );
    // The next daemon has the record, and retries the undo.
    daemon.kill_and_restart().await;
    let cri = daemon.cri();
    let listed = cri.pods().await.pop().expect("it is listed still");
    assert_eq!(listed.id, left.id);
    fs::write(dir.path().join("heal"), "").expect("DEL works again");
    cri.pod_by_id(&left.id, "mine").end().await;
    daemon.leaves_only(&before).await;
}

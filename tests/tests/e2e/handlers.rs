//! Runtime handlers: `[handlers.<name>]` in cairn.toml (CRI-209); the features that Status reports
//! work (CRI-105, CRI-106).

use std::collections::BTreeSet;

use cairn_tests::{
    Daemon, Setup, cri,
    pod::{host_network, id_mapping, pod_security, security, user_namespace},
};
use tonic::{Code, Status};

const HANDLERS: &str = "[container]\nulimits = [\"nofile=512:512\"]\n\
    [handlers.hardened]\nunset_seccomp_profile = \"runtime-default\"\nulimits = [\"nofile=64:128\"]\n\
    [handlers.plain]\n";

async fn run(daemon: &Daemon, name: &str, handler: &str) -> Result<String, Status> {
    let request = cri::RunPodSandboxRequest {
        config: Some(daemon.cri().pod_config(name)),
        runtime_handler: handler.to_owned(),
    };
    let mut runtime = daemon.cri().client.runtime;
    let answer = runtime.run_pod_sandbox(request).await?;
    Ok(answer.into_inner().pod_sandbox_id)
}

#[tokio::test]
async fn a_handler_has_defaults_of_its_own_and_an_unknown_one_is_refused_by_name() {
    let mut daemon = Daemon::with(Setup::default().toml(HANDLERS)).await;
    let cri = daemon.cri();
    let before = daemon.inventory().await;
    let unknown = run(&daemon, "unknown", "gvisor").await;
    let unknown = unknown.expect_err("there is no such handler");
    assert_eq!(unknown.code(), Code::InvalidArgument);
    for named in [
        "\"gvisor\"",
        "\"hardened\"",
        "\"plain\"",
        "[handlers.gvisor]",
    ] {
        assert!(unknown.message().contains(named), "{unknown}");
    }
    let left: Vec<_> = daemon
        .inventory()
        .await
        .difference(&before)
        .cloned()
        .collect();
    assert!(left.is_empty(), "{left:?}");

    // The limits of open files, and the seccomp filter (0: none, 2: a filter).
    let look = "ulimit -Sn; ulimit -Hn; grep -w Seccomp: /proc/self/status | cut -f2";
    for (handler, expected) in [
        ("", "512\n512\n0"),
        ("plain", "512\n512\n0"),
        ("hardened", "64\n128\n2"),
    ] {
        let name = format!("pod-{handler}");
        let id = run(&daemon, &name, handler).await.expect("RunPodSandbox");
        let pod = cri.pod_by_id(&id, &name);
        let container = pod.sleeper("c").await;
        assert_eq!(container.sh(look).await, expected, "{handler:?}");
        assert_eq!(pod.status().await.runtime_handler, handler);
        let listed = cri.pods().await;
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].runtime_handler, handler);
        pod.end().await;
    }

    let id = run(&daemon, "kept", "hardened")
        .await
        .expect("RunPodSandbox");
    let container = cri.pod_by_id(&id, "kept").sleeper("first").await.id;
    let file = daemon.path("cairn.toml");
    let text = std::fs::read_to_string(&file).expect("the daemon's");
    let without = text.replace("[handlers.hardened]", "[handlers.other]");
    std::fs::write(&file, without).expect("a file");
    daemon.kill_and_restart().await;
    // The pod continues, and its defaults are not silently replaced by others.
    let pod = daemon.cri().pod_by_id(&id, "kept");
    let first = daemon
        .cri()
        .container_by_id(&container, daemon.path("none"));
    assert_eq!(first.exec(&["echo", "alive"]).await, "alive");
    let config = pod.cri.container_config("second", &["true"]);
    let second = pod.try_create(config).await.expect_err("no such handler");
    assert_eq!(second.code(), Code::FailedPrecondition, "{second}");
    assert!(second.message().contains("\"hardened\""), "{second}");
    pod.end().await;
}

#[tokio::test]
async fn status_tells_of_each_handler_what_it_can() {
    let daemon = Daemon::with(Setup::default().toml(HANDLERS)).await;
    let mut newer = daemon.cri().client.newer;
    let status = newer.status(proto_cri::v1::StatusRequest { verbose: true });
    let status = status.await.expect("Status").into_inner();
    let reported: Vec<_> = status.runtime_handlers.iter().map(|h| &h.name).collect();
    assert_eq!(reported, ["", "hardened", "plain"]);
    let features: Vec<_> = status.runtime_handlers.iter().map(|h| h.features).collect();
    assert!(features[0].is_some() && features.iter().all(|f| *f == features[0]));
    assert_eq!(status.info["pulls"], "[]", "nothing is being pulled");
}

#[tokio::test]
async fn what_is_asked_for_and_cannot_be_had_is_refused_by_its_field() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("refused").await;
    let container = pod.sleeper("c").await;
    let newer = &daemon.cri().client.newer;
    let update = proto_cri::v1::UpdateContainerResourcesRequest {
        container_id: container.id.clone(),
        linux: Some(proto_cri::v1::LinuxContainerResources::default()),
        annotations: [("experimental".to_owned(), "1".to_owned())].into(),
        ..Default::default()
    };
    let update = newer.clone().update_container_resources(update).await;
    let update = update.expect_err("no annotation changes a resource");
    assert_eq!(update.code(), Code::InvalidArgument);
    assert!(update.message().contains("annotations"), "{update}");
    let checkpoint = proto_cri::v1::CheckpointContainerRequest {
        container_id: container.id.clone(),
        ..Default::default()
    };
    let checkpoint = newer.clone().checkpoint_container(checkpoint).await;
    let checkpoint = checkpoint.expect_err("there is no CRIU");
    assert_eq!(checkpoint.code(), Code::Unimplemented);
    assert!(checkpoint.message().contains("CRIU"), "{checkpoint}");
    pod.end().await;
}

async fn features(daemon: &Daemon) -> (proto_cri::v1::RuntimeFeatures, bool) {
    let mut newer = daemon.cri().client.newer;
    let status = newer.status(proto_cri::v1::StatusRequest::default()).await;
    let status = status.expect("Status").into_inner();
    let handler = status.runtime_handlers.first().and_then(|h| h.features);
    let users = handler.is_some_and(|features| features.user_namespaces);
    (status.features.expect("features"), users)
}

#[tokio::test]
async fn mount_options_are_told_and_had() {
    let daemon = Daemon::start().await;
    assert!(features(&daemon).await.0.mount_options);
    let source = daemon.path("optional");
    std::fs::create_dir(&source).expect("a directory");
    let pod = daemon.cri().pod("options").await;
    let create = |name: &'static str, options: &[&str]| {
        let mut config = pod.cri.newer_config(name, &["sleep", "1000"]);
        config.mounts = vec![proto_cri::v1::Mount {
            host_path: source.display().to_string(),
            container_path: "/optional".to_owned(),
            mount_options: options.iter().map(ToString::to_string).collect(),
            ..Default::default()
        }];
        pod.try_create_newer(config)
    };
    let container = create("c", &["noexec", "nodev"]).await;
    let container = container.expect("CreateContainer");
    container.start().await.expect("StartContainer");
    let mounts = container.sh("grep ' /optional ' /proc/self/mounts").await;
    assert!(
        mounts.contains("noexec") && mounts.contains("nodev"),
        "{mounts}"
    );
    assert!(!mounts.contains("nosuid"), "{mounts}");
    let refused = create("d", &["suid"]).await.expect_err("no such option");
    assert!(refused.message().contains("\"suid\""), "{refused}");
    pod.end().await;
}

#[tokio::test]
async fn a_user_namespace_on_the_hosts_network_is_told_and_had() {
    let daemon = Daemon::start().await;
    let (reported, users) = features(&daemon).await;
    assert_eq!(reported.user_namespaces_host_network, users);
    if !users {
        return;
    }
    let ids = vec![id_mapping()];
    let options = cri::NamespaceOption {
        network: cri::NamespaceMode::Node.into(),
        pid: cri::NamespaceMode::Container.into(),
        userns_options: Some(user_namespace()),
        ..Default::default()
    };
    let cri = daemon.cri();
    let mut config = cri.pod_config("mapped");
    host_network(&mut config);
    pod_security(&mut config).namespace_options = Some(options.clone());
    let pod = cri.try_pod(config).await.expect("RunPodSandbox");
    // As each pod of a kubelet has at least one.
    let volume = daemon.path("volume");
    std::fs::create_dir(&volume).expect("a directory");
    let mut config = cri.container_config("c", &["sleep", "1000"]);
    config.mounts = vec![cri::Mount {
        host_path: volume.display().to_string(),
        container_path: "/volume".to_owned(),
        uid_mappings: ids.clone(),
        gid_mappings: ids,
        ..Default::default()
    }];
    security(&mut config).namespace_options = Some(options);
    let container = pod.started(config).await;
    let written = container
        .sh("touch /volume/file; stat -c %u /volume/file; \
             touch /sys/fs/cgroup/cairn-test || touch /sys/cairn-test || echo read-only")
        .await;
    assert_eq!(written, "0\nread-only", "the host's /sys cannot be written");
    let owner = std::os::unix::fs::MetadataExt::uid(
        &std::fs::metadata(volume.join("file")).expect("the file of the container"),
    );
    assert_eq!(owner, 0, "the owner on the host");
    let seen = container
        .sh("awk '{print $2}' /proc/self/uid_map; ls /sys/class/net")
        .await;
    assert!(seen.starts_with("100000\n"), "{seen}");
    let yard = daemon.lines(&["ls", "/sys/class/net"]).await;
    let inside: BTreeSet<_> = seen.lines().skip(1).map(str::to_owned).collect();
    assert_eq!(inside, yard, "the links of the host");
    let net = container.sh("ip link set lo down; echo $?").await;
    assert_ne!(
        net.lines().last(),
        Some("0"),
        "it owns nothing of the host's network"
    );
    pod.end().await;
}

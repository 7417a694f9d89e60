//! A pod's complete life, and the leftovers of each step: CRI-100…145.

use std::time::Duration;

use cairn_tests::{
    Daemon,
    cri::{self, ContainerState, PodSandboxState},
    look,
};

#[tokio::test]
async fn a_pod_lives_from_run_to_remove_and_leaves_nothing() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    // One-time resources (the bridge, a first directory) are in both inventories.
    whole_life(&daemon, "first").await;
    let before = daemon.inventory().await;
    whole_life(&daemon, "second").await;
    daemon.leaves_only(&before).await;
    assert!(cri.pods().await.is_empty() && cri.containers().await.is_empty());
}

async fn whole_life(daemon: &Daemon, name: &str) {
    let pod = daemon.cri().pod(name).await;
    let status = pod.status().await;
    assert_eq!(status.state(), PodSandboxState::SandboxReady);
    assert!(status.created_at > 0);
    let container = pod
        .create("one", &["sh", "-c", "echo up; exec sleep 1000"])
        .await;
    assert_eq!(container.state().await, ContainerState::ContainerCreated);
    assert!(
        container.lines().is_empty(),
        "nothing runs before StartContainer"
    );
    container.start().await.expect("StartContainer");
    container.says("up").await;
    let status = container.status().await;
    assert_eq!(status.state(), ContainerState::ContainerRunning);
    assert!(status.started_at >= status.created_at && status.finished_at == 0);
    let second = pod.sleeper("two").await;
    assert_eq!(
        container.exec(&["hostname"]).await,
        name,
        "UTS is the pod's"
    );
    container.stop(Duration::ZERO).await.expect("StopContainer");
    let status = container.status().await;
    assert_eq!(
        (status.state(), status.exit_code),
        (ContainerState::ContainerExited, 137)
    );
    assert!(status.finished_at >= status.started_at);
    container.remove().await.expect("RemoveContainer");
    pod.stop().await.expect("StopPodSandbox");
    assert_eq!(pod.status().await.state(), PodSandboxState::SandboxNotready);
    assert_eq!(second.state().await, ContainerState::ContainerExited);
    assert!(
        look::cgroup_pids(daemon.cgroup_parent()).is_empty(),
        "all processes have ended"
    );
    pod.remove().await.expect("RemovePodSandbox");
    assert!(
        second.try_status().await.is_err(),
        "containers go with their pod"
    );
}

#[tokio::test]
async fn a_container_that_ends_by_itself_reports_its_exit_code() {
    let mut daemon = Daemon::start().await;
    let pod = daemon.cri().pod("codes").await;
    for (name, script, code, reason) in [
        ("zero", "exit 0", 0, "Completed"),
        ("seven", "exit 7", 7, "Error"),
    ] {
        let container = pod.run(name, &["sh", "-c", script]).await;
        let status = container.exited().await;
        assert_eq!(
            (status.exit_code, status.reason.as_str()),
            (code, reason),
            "{name}"
        );
    }
    // Killed from outside: process 1 of a PID namespace does not die of its own SIGKILL.
    let killed = pod.sleeper("killed").await;
    let pid = killed.pid().await.expect("a pid");
    daemon
        .yard
        .kill(i32::try_from(pid).expect("a pid"), 9)
        .await;
    let status = killed.exited().await;
    assert_eq!((status.exit_code, status.reason.as_str()), (137, "Error"));
    pod.end().await;
}

#[tokio::test]
async fn metadata_labels_and_annotations_come_back_verbatim() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut config = cri.pod_config("verbatim");
    config.labels = [
        ("a.b/c".into(), "d".into()),
        ("empty".into(), String::new()),
    ]
    .into();
    config.annotations = [("long".into(), "x\n\"ü".repeat(500))].into();
    let pod = cri.try_pod(config.clone()).await.expect("RunPodSandbox");
    let status = pod.status().await;
    assert_eq!(status.metadata, config.metadata);
    assert_eq!(
        (status.labels, status.annotations),
        (config.labels, config.annotations)
    );
    let mut config = cri.container_config("c", &["sleep", "1000"]);
    config.labels = [("k".into(), "v".into())].into();
    config.annotations = [("io.x/y".into(), "{\"json\":1}".into())].into();
    let container = pod
        .try_create(config.clone())
        .await
        .expect("CreateContainer");
    let status = container.status().await;
    assert_eq!(status.metadata, config.metadata);
    assert_eq!(
        (status.labels, status.annotations),
        (config.labels, config.annotations)
    );
    pod.end().await;
}

#[tokio::test]
async fn ids_may_be_shortened_and_lists_filtered() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let (one, two) = (cri.pod("one").await, cri.pod("two").await);
    assert!(one.id.len() == 64 && one.id.bytes().all(|b| b.is_ascii_hexdigit()));
    let container = one.sleeper("c").await;
    let found = cri
        .pod_status(&one.id[..13])
        .await
        .expect("a unique prefix is enough");
    assert_eq!(found.status.map(|s| s.id), Some(one.id.clone()));
    let mut runtime = cri.client.runtime.clone();
    let filter = cri::PodSandboxFilter {
        label_selector: [("app".to_owned(), "two".to_owned())].into(),
        ..Default::default()
    };
    let request = cri::ListPodSandboxRequest {
        filter: Some(filter),
    };
    let pods = runtime
        .list_pod_sandbox(request)
        .await
        .expect("ListPodSandbox")
        .into_inner();
    assert_eq!(
        pods.items.iter().map(|p| &p.id).collect::<Vec<_>>(),
        [&two.id]
    );
    for (pod, expected) in [(&one, 1), (&two, 0)] {
        let filter = cri::ContainerFilter {
            pod_sandbox_id: pod.id.clone(),
            ..Default::default()
        };
        let request = cri::ListContainersRequest {
            filter: Some(filter),
        };
        let list = runtime
            .list_containers(request)
            .await
            .expect("ListContainers")
            .into_inner();
        assert_eq!(list.containers.len(), expected);
    }
    let listed = &cri.containers().await[0];
    assert_eq!(
        (&listed.id, &listed.pod_sandbox_id),
        (&container.id, &one.id)
    );
    assert!(!listed.image_ref.is_empty() && !listed.image_id.is_empty());
    assert!(listed.image.as_ref().is_some_and(|i| !i.image.is_empty()));
    one.end().await;
    two.end().await;
}

#[tokio::test]
async fn a_container_out_of_memory_is_reported_oom_killed() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("oom").await;
    let mut config = pod.cri.container_config(
        "c",
        &["sh", "-c", "exec dd if=/dev/zero of=/dev/null bs=64M"],
    );
    let linux = config.linux.as_mut().expect("set by container_config");
    linux.resources = Some(cri::LinuxContainerResources {
        memory_limit_in_bytes: 15 << 20,
        ..Default::default()
    });
    let container = pod.started(config).await;
    let status = container.exited().await;
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (137, "OOMKilled")
    );
    assert!(status.message.contains("memory limit"), "{status:?}");
    pod.end().await;
}

#[tokio::test]
async fn resources_are_in_the_cgroup_and_can_be_updated() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("limits").await;
    let mut config = pod.cri.container_config("c", &["sleep", "1000"]);
    let mut resources = cri::LinuxContainerResources {
        memory_limit_in_bytes: 64 << 20,
        cpu_period: 100_000,
        cpu_quota: 20_000,
        cpu_shares: 512,
        ..Default::default()
    };
    config.linux.as_mut().expect("set").resources = Some(resources.clone());
    let container = pod.started(config).await;
    let limit = |daemon: &Daemon| look::memory_limit_below(daemon.cgroup_parent());
    assert_eq!(limit(&daemon), Some(64 << 20));
    resources.memory_limit_in_bytes = 96 << 20;
    container
        .limit_memory(96 << 20)
        .await
        .expect("UpdateContainerResources");
    assert_eq!(limit(&daemon), Some(96 << 20));
    let shown = container
        .status()
        .await
        .resources
        .and_then(|r| r.linux)
        .expect("the status has resources");
    assert_eq!(shown.memory_limit_in_bytes, 96 << 20);
    assert_eq!(
        (shown.cpu_quota, shown.cpu_shares),
        (20_000, 512),
        "zero means unchanged"
    );
    pod.end().await;
}

#[tokio::test]
async fn a_hundred_short_containers_all_end_with_their_own_code() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("many").await;
    let mut set = tokio::task::JoinSet::new();
    for n in 0..100 {
        let pod = pod.clone();
        set.spawn(async move {
            let script = format!("exit {n}");
            let container = pod.run(&format!("c{n}"), &["sh", "-c", &script]).await;
            assert_eq!(container.exited().await.exit_code, n);
            container.remove().await.expect("RemoveContainer");
        });
    }
    while let Some(done) = set.join_next().await {
        done.expect("each container went its way");
    }
    assert!(daemon.cri().containers().await.is_empty());
    pod.end().await;
}

#[tokio::test]
async fn the_version_and_the_status_are_what_a_kubelet_needs() {
    let daemon = Daemon::start().await;
    let mut runtime = daemon.cri().client.runtime;
    let version = runtime
        .version(cri::VersionRequest::default())
        .await
        .expect("Version")
        .into_inner();
    assert_eq!(
        (
            version.version.as_str(),
            version.runtime_api_version.as_str()
        ),
        ("0.1.0", "v1")
    );
    assert_eq!(version.runtime_name, "cairn");
    assert!(
        version
            .runtime_version
            .starts_with(|c: char| c.is_ascii_digit())
    );
    let status = runtime
        .status(cri::StatusRequest { verbose: true })
        .await
        .expect("Status")
        .into_inner();
    let conditions = status.status.expect("a status").conditions;
    for kind in ["RuntimeReady", "NetworkReady"] {
        let condition = conditions.iter().find(|c| c.r#type == kind);
        assert!(condition.is_some_and(|c| c.status), "{kind}: {condition:?}");
    }
    assert!(status.runtime_handlers.iter().any(|h| h.name.is_empty()));
    let config: serde_json::Value =
        serde_json::from_str(&status.info["config"]).expect("info.config is JSON");
    assert!(config["stateDir"].is_string());
    assert!(config["cni"]["confDir"].is_string());
    assert_eq!(config["maxContainerLogLineSize"], 16384);
    let driver = runtime
        .runtime_config(cri::RuntimeConfigRequest {})
        .await
        .expect("RuntimeConfig");
    assert!(driver.into_inner().linux.is_some());
}

#[tokio::test]
async fn verbose_information_on_a_pod_has_containerds_form() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut config = cri.pod_config("verbose");
    let memory = |memory_limit_in_bytes| {
        Some(cri::LinuxContainerResources {
            memory_limit_in_bytes,
            ..Default::default()
        })
    };
    let linux = config.linux.as_mut().expect("set by pod_config");
    (linux.overhead, linux.resources) = (memory(1 << 20), memory(1 << 25));
    let pod = cri.try_pod(config).await.expect("RunPodSandbox");
    let request = cri::PodSandboxStatusRequest {
        pod_sandbox_id: pod.id.clone(),
        verbose: true,
    };
    let verbose = async || {
        let request = request.clone();
        let status = cri.client.runtime.clone().pod_sandbox_status(request).await;
        let info = &status.expect("PodSandboxStatus").into_inner().info["info"];
        serde_json::from_str::<serde_json::Value>(info).expect("JSON")
    };
    let info = verbose().await;
    let limit = |key: &str| info[key]["linux"]["memory_limit_in_bytes"].as_i64();
    assert_eq!(
        (limit("overhead"), limit("resources")),
        (Some(1 << 20), Some(1 << 25)),
        "{info}"
    );
    let interface = &info["cniResult"]["Interfaces"]["eth0"];
    assert_eq!(interface["IPConfigs"][0]["IP"], pod.ip().await, "{info}");
    assert!(info["cniResultRaw"]["ips"].is_array(), "{info}");
    assert_eq!(info["netNamespaceClosed"], false, "{info}");
    let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array();
    let network = namespaces.and_then(|all| all.iter().find(|one| one["type"] == "network"));
    let path = network
        .and_then(|one| one["path"].as_str())
        .expect("a path");
    daemon.lines(&["umount", path]).await;
    let info = verbose().await;
    assert_eq!(info["netNamespaceClosed"], true, "{info}");
    pod.end().await;
}

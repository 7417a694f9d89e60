//! Records that are unreadable, because the disk damaged them or a newer cairn wrote them: their
//! objects continue to run.

use std::{
    fs,
    path::{Path, PathBuf},
};

use cairn_tests::{
    Daemon, Setup,
    container::Container,
    cri::{ContainerState, ContainerStatus, PodSandboxState},
    look,
    output::shown,
    plugin::Plugin,
    pod::Pod,
    until,
};
use nri::proto::{ContainerUpdate, LinuxContainerUpdate, LinuxCpu, LinuxResources, OptionalUInt64};
use tonic::Code;

/// Changes the schema of a record to an unsupported one, or back.
fn set_schema(record: &Path, schema: u32) {
    let text = fs::read_to_string(record).expect("the record is there");
    let at = text.find("\"schema\": ").expect("it has a schema") + "\"schema\": ".len();
    let end = at + text[at..].find(',').expect("more follows");
    fs::write(record, format!("{}{schema}{}", &text[..at], &text[end..])).expect("written");
}

fn tear(record: &Path) {
    let text = fs::read(record).expect("the record is there");
    fs::write(record, &text[..20]).expect("written");
}

fn pod_record(daemon: &Daemon, id: &str) -> PathBuf {
    daemon.path("root/pods").join(format!("{id}.json"))
}

fn container_record(daemon: &Daemon, id: &str) -> PathBuf {
    daemon.path("root/containers").join(format!("{id}.json"))
}

const TICKING: [&str; 3] = [
    "sh",
    "-c",
    "i=0; while :; do echo $i; i=$((i+1)); sleep 0.1; done",
];

/// Checks that it still writes, in the same process.
async fn goes_on(daemon: &Daemon, container: &Container, pid: u32) {
    assert!(
        daemon.yard.inside(format!("/proc/{pid}/root")).exists(),
        "its process has ended"
    );
    let seen = container.lines().len();
    until("its log goes on", || async {
        (container.lines().len() > seen + 2).then_some(())
    })
    .await;
}

fn in_hand(daemon: &Daemon, pod: &Pod, container: &Container) -> (Pod, Container) {
    let cri = daemon.cri();
    let name = pod.config.hostname.clone();
    (
        cri.pod_by_id(&pod.id, &name),
        cri.container_by_id(&container.id, container.log.clone()),
    )
}

/// The checks of a status by Kubernetes' CRI client, before it reaches the kubelet.
fn passes_the_clients_checks(status: &ContainerStatus) {
    let image = status.image.clone().unwrap_or_default();
    for (what, there) in [
        ("id", !status.id.is_empty()),
        (
            "metadata.name",
            status.metadata.as_ref().is_some_and(|m| !m.name.is_empty()),
        ),
        ("created_at", status.created_at != 0),
        ("image.image", !image.image.is_empty()),
        ("image_ref", !status.image_ref.is_empty()),
    ] {
        assert!(there, "no {what}: {status:?}");
    }
}

/// Returns the records part of `cairn status`, and whether all records are readable.
async fn records(daemon: &Daemon) -> (bool, String) {
    let output = daemon.cairn(&["status", "--output", "json"]).await;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let findings = report["findings"].as_array().expect("findings");
    let records = findings.iter().find(|one| one["what"] == "records");
    let records = records.expect("a line about records");
    (records["state"] == "ok", records.to_string())
}

#[tokio::test]
async fn a_downgrade_and_an_upgrade_keep_every_running_container() {
    let mut daemon = Daemon::start().await;
    let pod = daemon.cri().pod("newer").await;
    let container = pod.run("c", &TICKING).await;
    let (address, pid) = (pod.ip().await, container.pid().await.expect("a pid"));
    let was = container.status().await;
    let records = [
        pod_record(&daemon, &pod.id),
        container_record(&daemon, &container.id),
    ];
    daemon.kill().await;
    records.iter().for_each(|record| set_schema(record, 99));
    // Twice: the second start uses the state that the first one leaves.
    for _ in 0..2 {
        daemon.serve().await;
        let (pod, container) = in_hand(&daemon, &pod, &container);
        goes_on(&daemon, &container, pid).await;
        assert_eq!(pod.status().await.state(), PodSandboxState::SandboxNotready);
        let status = container.status().await;
        assert_eq!(status.state(), ContainerState::ContainerUnknown);
        assert!(status.message.contains("schema 99"), "{}", status.message);
        passes_the_clients_checks(&status);
        assert_eq!(status.image_ref, was.image_ref);
        assert_eq!(status.created_at, was.created_at);
        // A kubelet identifies the objects by these.
        let listed = daemon.cri().pods().await.pop().expect("the pod is listed");
        assert_eq!(listed.labels, pod.config.labels);
        assert_eq!(listed.metadata, pod.config.metadata);
        for refused in [
            pod.stop().await,
            container.stop(std::time::Duration::ZERO).await,
        ] {
            let refused = refused.expect_err("it is held");
            assert_eq!(refused.code(), Code::FailedPrecondition);
            assert!(refused.message().contains("cairn rm"), "{refused}");
        }
        goes_on(&daemon, &container, pid).await;
        daemon.kill().await;
    }
    records.iter().for_each(|record| set_schema(record, 1));
    daemon.serve().await;
    let (pod, container) = in_hand(&daemon, &pod, &container);
    assert_eq!(pod.status().await.state(), PodSandboxState::SandboxReady);
    assert_eq!(pod.ip().await, address);
    assert_eq!(container.state().await, ContainerState::ContainerRunning);
    assert_eq!(container.pid().await, Some(pid));
    assert_eq!(container.exec(&["echo", "here"]).await, "here");
    goes_on(&daemon, &container, pid).await;
    pod.end().await;
}

#[tokio::test]
async fn a_torn_record_of_a_container_costs_it_nothing_until_somebody_gives_it_up() {
    let mut daemon = Daemon::start().await;
    daemon.cri().pod("warm-up").await.end().await;
    let before = daemon.inventory().await;
    let pod = daemon.cri().pod("torn").await;
    let container = pod.run("c", &TICKING).await;
    let neighbour = pod.run("n", &TICKING).await;
    let pid = container.pid().await.expect("a pid");
    daemon.kill().await;
    tear(&container_record(&daemon, &container.id));
    daemon.serve().await;
    let (pod, container) = in_hand(&daemon, &pod, &container);
    goes_on(&daemon, &container, pid).await;
    assert_eq!(container.state().await, ContainerState::ContainerUnknown);
    passes_the_clients_checks(&container.status().await);
    assert_eq!(pod.status().await.state(), PodSandboxState::SandboxReady);
    let neighbour = daemon
        .cri()
        .container_by_id(&neighbour.id, neighbour.log.clone());
    assert_eq!(neighbour.exec(&["echo", "ok"]).await, "ok");
    let (_, text) = records(&daemon).await;
    assert!(text.contains(&container.id[..12]), "{text}");
    let refused = pod
        .stop()
        .await
        .expect_err("the network would go from under it");
    assert!(refused.message().contains(&container.id), "{refused}");
    container.remove().await.expect("RemoveContainer");
    assert!(!daemon.yard.inside(format!("/proc/{pid}/root")).exists());
    pod.end().await;
    daemon.leaves_only(&before).await;
}

#[tokio::test]
async fn a_torn_record_of_a_pod_holds_its_network_and_its_containers() {
    let mut daemon = Daemon::start().await;
    daemon.cri().pod("warm-up").await.end().await;
    let before = daemon.inventory().await;
    let pod = daemon.cri().pod("torn").await;
    let container = pod.run("c", &TICKING).await;
    let (address, pid) = (pod.ip().await, container.pid().await.expect("a pid"));
    daemon.kill().await;
    tear(&pod_record(&daemon, &pod.id));
    daemon.serve().await;
    let (held_pod, container) = in_hand(&daemon, &pod, &container);
    goes_on(&daemon, &container, pid).await;
    passes_the_clients_checks(&container.status().await);
    let status = held_pod.status().await;
    assert!(
        status.created_at != 0 && status.metadata.is_some(),
        "{status:?}"
    );
    let other = daemon.cri().pod("other").await;
    assert_ne!(other.ip().await, address, "its address is still taken");
    let ping = ["ping", "-c", "1", "-W", "5", address.as_str()];
    let pinged = other.run("ping", &ping).await.exited().await;
    assert_eq!(pinged.exit_code, 0, "its network works");
    other.end().await;
    let (_, text) = records(&daemon).await;
    assert!(text.contains(&pod.id[..12]), "{text}");
    held_pod.remove().await.expect("RemovePodSandbox");
    assert!(daemon.cri().pods().await.is_empty() && daemon.cri().containers().await.is_empty());
    daemon.leaves_only(&before).await;
    assert!(records(&daemon).await.0);
}

#[tokio::test]
async fn a_pod_with_a_torn_record_is_removed_after_its_container_and_without_one() {
    let mut daemon = Daemon::start().await;
    daemon.cri().pod("warm-up").await.end().await;
    let before = daemon.inventory().await;
    let with = daemon.cri().pod("with").await;
    let container = with.run("c", &TICKING).await;
    let without = daemon.cri().pod("without").await;
    daemon.kill().await;
    for pod in [&with, &without] {
        tear(&pod_record(&daemon, &pod.id));
    }
    daemon.serve().await;
    let (with, container) = in_hand(&daemon, &with, &container);
    container.remove().await.expect("RemoveContainer");
    with.remove().await.expect("RemovePodSandbox");
    let without = daemon.cri().pod_by_id(&without.id, "without");
    // It has no pause process: nothing names its cgroup, and nothing is removed.
    let refused = without.remove().await.expect_err("its cgroup is unknown");
    assert!(refused.message().contains("cairn rm --force"), "{refused}");
    assert_eq!(daemon.cri().pods().await.len(), 1);
    let gone = daemon.cairn(&["rm", "--force", &without.id]).await;
    assert!(gone.status.success(), "{}", shown(&gone));
    assert!(shown(&gone).contains("skipped: cgroup"), "{}", shown(&gone));
    assert!(daemon.cri().pods().await.is_empty());
    // What was named as skipped, and nothing else, is left.
    let left = look::remove_cgroup(daemon.cgroup_parent());
    assert!(left.is_empty(), "{left:?}");
    daemon.leaves_only(&before).await;
}

#[tokio::test]
async fn a_torn_record_of_an_attachment_gives_its_address_to_nobody() {
    let mut daemon = Daemon::start().await;
    daemon.cri().pod("warm-up").await.end().await;
    let before = daemon.inventory().await;
    let pod = daemon.cri().pod("torn").await;
    let address = pod.ip().await;
    daemon.kill().await;
    let attachment = daemon
        .path("root/network/attachments")
        .join(format!("{}.json", pod.id));
    let text = fs::read_to_string(&attachment).expect("the record is there");
    let text = text.replace("\"schema\":1", "\"schema\":77");
    fs::write(&attachment, text).expect("written");
    daemon.serve().await;
    let pod = daemon.cri().pod_by_id(&pod.id, "torn");
    assert_eq!(pod.ip().await, address);
    let others = [daemon.cri().pod("a").await, daemon.cri().pod("b").await];
    for other in &others {
        assert_ne!(other.ip().await, address);
        other.end().await;
    }
    let refused = pod.stop().await.expect_err("what it holds is not known");
    assert!(refused.message().contains("schema 77"), "{refused}");
    let gone = daemon.cairn(&["rm", "--force", &pod.id]).await;
    assert!(gone.status.success(), "{}", shown(&gone));
    assert!(
        shown(&gone).contains("skipped: network"),
        "{}",
        shown(&gone)
    );
    daemon.leaves_only(&before).await;
}

#[tokio::test]
async fn a_torn_list_of_layers_in_use_costs_no_layer() {
    let mut daemon = Daemon::start().await;
    let pod = daemon.cri().pod("layers").await;
    let container = pod.create("c", &TICKING).await;
    daemon.kill().await;
    let list = daemon
        .path("root/roots")
        .join(&container.id)
        .join("rootfs/use.json");
    let whole = fs::read(&list).expect("it is there");
    fs::write(&list, b"{").expect("written");
    daemon.serve().await;
    let mut images = daemon.cri().client.image.clone();
    let image = cairn_tests::cri::ImageSpec {
        image: cairn_tests::image::BUSYBOX.to_owned(),
        ..Default::default()
    };
    let remove = cairn_tests::cri::RemoveImageRequest { image: Some(image) };
    images.remove_image(remove).await.expect("RemoveImage");
    daemon.kill().await;
    fs::write(&list, whole).expect("written");
    daemon.serve().await;
    let (pod, container) = in_hand(&daemon, &pod, &container);
    container.start().await.expect("its layers were kept");
    let pid = container.pid().await.expect("a pid");
    goes_on(&daemon, &container, pid).await;
    pod.end().await;
}

#[tokio::test]
async fn an_empty_record_is_held_and_goes_when_the_machine_has_rebooted() {
    let mut daemon = Daemon::start().await;
    daemon.cri().pod("warm-up").await.end().await;
    let before = daemon.inventory().await;
    let pod = daemon.cri().pod("empty").await;
    daemon.kill().await;
    fs::write(pod_record(&daemon, &pod.id), "").expect("written");
    daemon.serve().await;
    assert!(!records(&daemon).await.0);
    daemon.kill().await;
    let boot = daemon.path("root/boot-id");
    let here = fs::read_to_string(&boot).expect("the boot is on record");
    fs::write(&boot, "another boot").expect("written");
    // A reboot would have ended it.
    let left = look::remove_cgroup(daemon.cgroup_parent());
    assert!(left.is_empty(), "{left:?}");
    daemon.serve().await;
    assert!(records(&daemon).await.0);
    assert!(daemon.cri().pods().await.is_empty());
    assert_eq!(fs::read_to_string(&boot).expect("it is there"), here);
    daemon.leaves_only(&before).await;
}

/// A plugin's update blocks when it reads the container's spec, which is replaced by a pipe without
/// a writer.
#[tokio::test]
async fn a_container_that_is_removed_during_a_plugins_update_leaves_no_record() {
    let scratch = tempfile::tempdir().expect("a directory");
    let gate = scratch.path().join("gate");
    let fault = format!("container.update.read=gate:{}", gate.display());
    let daemon = Daemon::with(Setup::default().env("CAIRN_FAULT", &fault)).await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "updater").await;
    plugin.runtime().synchronized().await;
    let pod = daemon.cri().pod("ghost").await;
    let container = pod.create("c", &["true"]).await;
    let spec = daemon
        .path("root/specs")
        .join(format!("{}.json", container.id));
    fs::write(&gate, "").expect("a file");
    let update = ContainerUpdate {
        container_id: container.id.clone(),
        linux: Some(LinuxContainerUpdate {
            resources: Some(LinuxResources {
                cpu: Some(LinuxCpu {
                    shares: Some(OptionalUInt64 { value: 512 }),
                    ..Default::default()
                }),
                ..Default::default()
            }),
        }),
        ..Default::default()
    };
    let runtime = plugin.runtime();
    let asked = tokio::spawn(async move { runtime.update_containers(vec![update], vec![]).await });
    let reached = scratch.path().join("gate.reached");
    until("the update has read the spec", || async {
        reached.exists().then_some(())
    })
    .await;
    container.remove().await.expect("RemoveContainer");
    fs::remove_file(&gate).expect("removed");
    let failed = asked.await.expect("no panic").expect("an answer");
    let record = container_record(&daemon, &container.id);
    assert!(!record.exists() && !spec.exists(), "it is on record again");
    assert_eq!(failed.len(), 1, "the plugin learns that it was not updated");
    pod.end().await;
}

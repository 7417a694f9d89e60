//! Attempts of an image or a container to escape, one test per attempt.

mod archives;
mod bounds;
mod cgroups;
mod log;
mod memory;
mod mute;
mod occupied;
mod oci_hooks;
mod plugins;
mod processes;
mod registry;
mod reports;
mod roots;
mod slow;
mod systemd;
mod texts;
mod trees;

use std::time::Duration;

use cairn_tests::{
    Daemon,
    container::Container,
    image::Image,
    pod::{Pod, container_namespaces, pod_namespaces, user_namespace},
};
use serde_json::json;

pub(crate) use {bounds::noise, registry::pull};

/// Descriptors that one of our programs could have open while a container is made.
const DESCRIPTORS: std::ops::RangeInclusive<u32> = 3..=64;
/// Paths from a host directory to a root: from `/proc`, from a mount below `/`, from the directory
/// itself.
const SUFFIXES: [&str; 4] = ["", "/1/root", "/..", "/../../.."];

/// A pod whose containers run in a user namespace.
pub(crate) async fn mapped_pod(daemon: &Daemon, name: &str) -> Pod {
    let cri = daemon.cri();
    let mut config = cri.pod_config(name);
    pod_namespaces(&mut config).userns_options = Some(user_namespace());
    cri.try_pod(config).await.expect("RunPodSandbox")
}

/// Starts a container in this directory. If it starts, it must be in its own root with a working
/// directory below it; returns its output.
async fn start_in(pod: &Pod, name: &str, directory: &str, mapped: bool) -> Option<String> {
    let script = "pwd -P; cat /proc/self/mountinfo 2>/dev/null | wc -l; ls -d ../../../bin/busybox";
    let mut config = pod.cri.container_config(name, &["/bin/sh", "-c", script]);
    config.working_dir = directory.to_owned();
    if mapped {
        container_namespaces(&mut config).userns_options = Some(user_namespace());
    }
    let container = pod
        .try_create(config)
        .await
        .unwrap_or_else(|e| panic!("create with {directory}: {e}"));
    let started = container.start().await;
    let printed = match started {
        Ok(()) => {
            container.exited().await;
            Some(container.lines().join("\n"))
        }
        Err(_) => None,
    };
    container.remove().await.expect("RemoveContainer");
    printed
}

async fn no_descriptor_is_a_way_out(pod: &Pod, mapped: bool) {
    let mut outside = Vec::new();
    for n in DESCRIPTORS {
        for (at, suffix) in SUFFIXES.iter().enumerate() {
            let directory = format!("/proc/self/fd/{n}{suffix}");
            let printed = start_in(pod, &format!("c{n}-{at}"), &directory, mapped).await;
            outside
                .extend(printed.map(|printed| format!("{directory}: it started in {printed:?}")));
        }
    }
    assert!(outside.is_empty(), "{}", outside.join("\n"));
}

#[tokio::test]
async fn a_working_directory_through_a_leaked_descriptor_is_refused_for_init() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("cwd-init").await;
    no_descriptor_is_a_way_out(&pod, false).await;
    let here = start_in(&pod, "inside", "/made/for/it", false).await;
    assert!(
        here.is_some_and(|printed| printed.starts_with("/made/for/it\n")),
        "an ordinary directory still is made and entered"
    );
    pod.end().await;
}

#[tokio::test]
async fn a_working_directory_through_a_leaked_descriptor_is_refused_in_a_user_namespace() {
    let daemon = Daemon::start().await;
    let pod = mapped_pod(&daemon, "cwd-mapped").await;
    no_descriptor_is_a_way_out(&pod, true).await;
    pod.end().await;
}

#[tokio::test]
async fn a_link_of_the_image_to_a_leaked_descriptor_makes_nothing_outside() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("cwd-link").await;
    let mut outside = Vec::new();
    for n in DESCRIPTORS {
        let name = format!("localhost/cairn-test/link-{n}:1");
        let link =
            cairn_tests::image::Layer::default().symlink("work", &format!("/proc/self/fd/{n}"));
        let image = Image::busybox(&name)
            .layer(link)
            .config("WorkingDir", json!("/work/.."));
        daemon.import(&image).await;
        let mut config = pod.cri.container_config(&format!("c{n}"), &["/bin/pwd"]);
        config.image.as_mut().expect("set").image = name;
        let container = pod.try_create(config).await.expect("CreateContainer");
        if container.start().await.is_ok() {
            outside.push(format!("{n}: {:?}", container.exited().await.exit_code));
        }
        container.remove().await.expect("RemoveContainer");
    }
    assert!(
        outside.is_empty(),
        "started through descriptors {outside:?}"
    );
    pod.end().await;
}

/// An exec's working directory is in the container: a link that the container replaces after its
/// start.
#[tokio::test]
async fn a_working_directory_through_a_leaked_descriptor_is_refused_for_execs() {
    let daemon = Daemon::start().await;
    for mapped in [false, true] {
        let pod = if mapped {
            mapped_pod(&daemon, "cwd-exec-mapped").await
        } else {
            daemon.cri().pod("cwd-exec").await
        };
        let mut config = pod.cri.container_config("c", &["sleep", "1000"]);
        config.working_dir = "/tmp/work".to_owned();
        if mapped {
            container_namespaces(&mut config).userns_options = Some(user_namespace());
        }
        let container = pod.started(config).await;
        // The last command replaces the link under which this shell runs, before the shell ends.
        container
            .sh("mkdir /tmp/way && rmdir /tmp/work && ln -s way /tmp/work")
            .await;
        let mut outside = Vec::new();
        for n in DESCRIPTORS {
            for suffix in SUFFIXES {
                let to = format!("/proc/self/fd/{n}{suffix}");
                let aim = format!("rm /tmp/work; ln -s {to} /tmp/work");
                aim_from_inside(&daemon, &container, &aim).await;
                if let Ok(ran) = container.try_exec(&["pwd", "-P"], 20).await {
                    outside.push(format!("{to}: {:?}", ran.out));
                }
                aim_from_inside(&daemon, &container, "rm /tmp/work; ln -s way /tmp/work").await;
            }
        }
        assert!(outside.is_empty(), "{}", outside.join("\n"));
        assert_eq!(container.exec(&["pwd", "-P"]).await, "/tmp/way");
        pod.end().await;
    }
}

/// Changes the container's files as a process in it would, while execs are refused.
async fn aim_from_inside(daemon: &Daemon, container: &Container, script: &str) {
    let status = container.try_status().await.expect("ContainerStatus");
    let info = status.info.get("info").cloned().unwrap_or_default();
    let info: serde_json::Value = serde_json::from_str(&info).expect("it is JSON");
    let pid = info["pid"].as_u64().expect("a running container has a pid");
    let done = daemon
        .yard
        .command("nsenter")
        .arg(format!("--target={pid}"))
        .args(["--mount", "--root", "--", "/bin/sh", "-c", script])
        .output()
        .await
        .expect("nsenter runs");
    assert!(done.status.success(), "{script}: {done:?}");
}

/// A volume of logs is mounted in a container, which replaces its own log by a link to a host file
/// before the log is reopened.
#[tokio::test]
async fn a_link_in_place_of_a_log_is_not_followed() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("log").await;
    let victim = daemon.path("victim");
    std::fs::write(&victim, "before").expect("ours");
    let container = pod
        .run("c", &["sh", "-c", "while :; do echo evil; sleep 0.1; done"])
        .await;
    std::fs::remove_file(&container.log).expect("there is a log");
    std::os::unix::fs::symlink(&victim, &container.log).expect("a link");
    let reopened = container.reopen_log().await;
    reopened.expect_err("a link is rejected as a log");
    let log = container.log.clone();
    container.stop(Duration::ZERO).await.expect("StopContainer");
    assert_eq!(std::fs::read_to_string(&victim).expect("ours"), "before");
    std::fs::remove_file(log).expect("the link is ours");
    pod.end().await;
}

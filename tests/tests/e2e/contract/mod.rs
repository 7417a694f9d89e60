//! The contract points of CONTRACT.md, a file each: what must hold while a plugin blocks in the hook, what a veto leaves,
//! in which order it is undone, what is not told, and what of the answers is applied. Names carry the point.

mod c01_addresses;
mod c01_run_pod_sandbox;
mod c02_stop_pod_sandbox;
mod c03_remove_pod_sandbox;
mod c04_create_container;
mod c06_start_container;
mod c08_update_container;
mod c10_stop_container;
mod c12_update_pod_sandbox;
mod open_questions;

use std::path::PathBuf;

use cairn_tests::{
    Daemon, bins,
    container::Container,
    plugin::{Deed, Plugin},
};
use nri::{
    Handlers,
    adjust::{self, SetResources},
    proto::{ContainerUpdate, PodSandbox},
    stub::Stub,
};

/// A daemon with one plugin.
async fn with_plugin() -> (Daemon, Plugin) {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "blocker").await;
    (daemon, plugin)
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

const LIMIT: i64 = 40 << 20;

fn limit(container: &str) -> ContainerUpdate {
    let mut update = adjust::update(container, false);
    update.memory_limit(LIMIT);
    update
}

async fn memory_limit(container: &Container) -> i64 {
    let resources = container.status().await.resources.and_then(|r| r.linux);
    resources.map_or(0, |linux| linux.memory_limit_in_bytes)
}

fn refuses() -> Deed {
    Deed::Error("not here".into())
}

/// A plugin with handlers of its own, connected.
async fn connect(daemon: &Daemon, index: &str, handlers: Handlers) -> Stub {
    let stub = Stub::builder(handlers)
        .index(index)
        .name("updates")
        .socket(daemon.nri_socket());
    let mut stub = stub;
    let stub = stub.start().await.expect("it joins");
    let id = format!("{index}-updates");
    cairn_tests::until("it is active", || async {
        let plugins = daemon.plugins().await;
        let here = |p: &serde_json::Value| p["id"] == *id && p["state"] == "active";
        plugins.iter().any(here).then_some(())
    })
    .await;
    stub
}

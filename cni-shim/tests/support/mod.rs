//! Runs a test in a network and mount namespace of its own, as a child process: whatever it makes ends with it.

#![allow(dead_code)] // each test program uses a part

use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cni_shim::namespaces::{HelperCommand, PinSpec, Pinned, pin};
use cni_shim::{Attach, BridgeConfig, Config};

const INSIDE: &str = "CNI_SHIM_TEST_INSIDE";

/// Runs `body` isolated. `name` is the test's own name, by which the child finds it again. Needs root; without it
/// the test says so and does nothing.
pub fn isolated<F: Future<Output = ()>>(name: &str, body: impl FnOnce(PathBuf) -> F) {
    if std::env::var_os(INSIDE).is_some() {
        shell("ip link set lo up");
        let dir = tempfile::tempdir().expect("a directory");
        // A state directory is often on a shared mount; a private tmpfs shows that pins do not need more.
        shell(&format!("mount -t tmpfs none {}", dir.path().display()));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(body(dir.path().to_owned()));
        shell(&format!("umount -l {}", dir.path().display()));
        return;
    }
    if !rustix_is_root() {
        eprintln!("{name}: needs root, skipped");
        return;
    }
    let this = std::env::current_exe().expect("the test program");
    let output = Command::new("unshare")
        .args(["--net", "--mount", "--propagation", "private"])
        .arg(this)
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .output()
        .expect("unshare starts");
    let text = [output.stdout, output.stderr]
        .map(|out| String::from_utf8_lossy(&out).into_owned())
        .concat();
    assert!(
        output.status.success(),
        "signal {:?}\n{text}",
        output.status.signal()
    );
    assert!(text.contains("1 passed"), "the child ran no test: {text}");
    print!("{text}");
}

fn rustix_is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Runs a command that must succeed, and returns what it wrote.
pub fn shell(command: &str) -> String {
    let (ok, text) = try_shell(command);
    assert!(ok, "{command}: {text}");
    text
}

pub fn try_shell(command: &str) -> (bool, String) {
    let output = Command::new("sh")
        .args(["-c", command])
        .output()
        .expect("sh starts");
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

pub fn ping(ip: IpAddr) -> bool {
    try_shell(&format!("busybox ping -c 1 -W 2 {ip}")).0
}

/// Waits until `condition` holds, for at most five seconds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..500 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

pub fn helper() -> HelperCommand {
    let this = std::env::current_exe().expect("the test program");
    let target = this
        .parent()
        .and_then(Path::parent)
        .expect("the target directory");
    HelperCommand {
        program: target.join("examples/sandbox-helper"),
        args: Vec::new(),
    }
}

pub fn config(dir: &Path, subnets: &[&str]) -> Config {
    let subnets = subnets
        .iter()
        .map(|subnet| subnet.parse().expect("a subnet"))
        .collect();
    let bridge = BridgeConfig {
        name: "cairn0".into(),
        table: "cairn0".into(),
        subnets,
        masquerade: true,
        mtu: None,
    };
    Config {
        conf_dir: dir.join("net.d"),
        bin_dirs: vec![dir.join("bin")],
        cache_dir: dir.join("cache"),
        state_dir: dir.join("state"),
        bridge: Some(bridge),
        add_timeout: Duration::from_secs(30),
        parallel: 16,
    }
}

/// A sandbox's namespaces, and the request to attach it.
pub fn sandbox(dir: &Path, id: &str) -> (Pinned, Attach) {
    let spec = PinSpec {
        net: true,
        ipc: true,
        uts: true,
        hostname: Some(id.into()),
        ..PinSpec::default()
    };
    let pinned = pin(&spec, &pin_dir(dir, id), &helper()).expect("namespaces are made");
    let attach = Attach {
        sandbox_id: id.into(),
        netns: pinned.net.clone().expect("a network namespace"),
        pod_name: format!("pod-{id}"),
        pod_namespace: "default".into(),
        pod_uid: format!("uid-{id}"),
        ..Attach::default()
    };
    (pinned, attach)
}

pub fn pin_dir(dir: &Path, id: &str) -> PathBuf {
    dir.join("netns").join(id)
}

/// Runs a command in a pod's network namespace.
pub fn in_pod(pinned: &Pinned, command: &str) -> String {
    let netns = pinned
        .net
        .as_ref()
        .expect("a network namespace")
        .display()
        .to_string();
    shell(&format!("nsenter --net={netns} {command}"))
}

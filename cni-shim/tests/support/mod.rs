//! Runs a test in its own network and mount namespaces, as a child process: all objects that it
//! makes end with it.

#![allow(dead_code)] // each test program uses a part

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cni_shim::namespaces::{HelperCommand, PinSpec, Pinned, in_netns, pin};
use cni_shim::{Answers, Attach, BridgeConfig, Config, PortMapping, Protocol};
use serde_json::Value;

const INSIDE: &str = "CNI_SHIM_TEST_INSIDE";

/// Runs `body` isolated. `name` is the test's own name, by which the child selects it. Needs root;
/// without it the test prints a message and does nothing.
pub(crate) fn isolated<F: Future<Output = ()>>(name: &str, body: impl FnOnce(PathBuf) -> F) {
    if let Some(dir) = std::env::var_os(INSIDE).map(PathBuf::from) {
        shell("ip link set lo up");
        // For named namespaces and lock files of the tools; removed with the mount namespace.
        shell("mount -t tmpfs none /run");
        shell(&format!("mount -t tmpfs none {}", dir.display()));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        return runtime.block_on(body(dir));
    }
    if !is_root() {
        eprintln!("{name}: needs root, skipped");
        return;
    }
    // Made and removed out here: inside, it is a mount point until the end.
    let dir = tempfile::tempdir().expect("a directory");
    let this = std::env::current_exe().expect("the test program");
    let output = Command::new("unshare")
        // Also its own processes: several tests find theirs by the same names.
        .args(["--net", "--mount", "--propagation", "private"])
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(this)
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, dir.path())
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

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Runs a command that must succeed, and returns its output.
pub(crate) fn shell(command: &str) -> String {
    let (ok, text) = try_shell(command);
    assert!(ok, "{command}: {text}");
    text
}

pub(crate) fn try_shell(command: &str) -> (bool, String) {
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

pub(crate) fn ping(ip: IpAddr) -> bool {
    try_shell(&format!("busybox ping -c 1 -W 2 {ip}")).0
}

/// Waits until `condition` holds, for at most half a minute.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    until(what, async || condition()).await;
}

/// As [`eventually`], for an asynchronous condition.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < Duration::from_secs(30), "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) fn helper() -> HelperCommand {
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

pub(crate) fn config(dir: &Path, subnets: &[&str]) -> Config {
    let subnets = subnets
        .iter()
        .map(|subnet| subnet.parse().expect("a subnet"))
        .collect();
    let bridge = BridgeConfig {
        name: "cairn0".into(),
        table: "cairn0".into(),
        subnets,
        masquerade: true,
        non_masquerade_cidrs: Vec::new(),
        spoof_check: true,
        mtu: None,
    };
    Config {
        conf_dir: dir.join("net.d"),
        bin_dirs: vec![dir.join("bin")],
        cache_dir: dir.join("cache"),
        earlier_cache_dir: None,
        status_grace: Duration::ZERO,
        state_dir: dir.join("state"),
        bridge: Some(bridge),
        add_timeout: Duration::from_secs(30),
        ready_timeout: Duration::ZERO,
        parallel: 16,
        started: None,
        answers: Answers::default(),
    }
}

/// Writes a list where the network reads it.
pub(crate) fn write_list(config: &Config, list: &Value) {
    fs::create_dir_all(&config.conf_dir).expect("makes");
    fs::write(config.conf_dir.join("10-test.conflist"), list.to_string()).expect("writes");
}

/// Writes a plugin that is a shell script.
pub(crate) fn script(config: &Config, name: &str, body: &str) {
    fs::create_dir_all(&config.bin_dirs[0]).expect("makes");
    let path = config.bin_dirs[0].join(name);
    let new = path.with_extension("new");
    fs::write(&new, format!("#!/bin/sh\n{body}\n")).expect("writes");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).expect("sets");
    // Atomic: a network may be reading it.
    fs::rename(new, path).expect("renames");
}

/// A sandbox's namespaces, and the request to attach it.
pub(crate) fn sandbox(dir: &Path, id: &str) -> (Pinned, Attach) {
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

pub(crate) fn pin_dir(dir: &Path, id: &str) -> PathBuf {
    dir.join("netns").join(id)
}

/// Runs a command in a pod's network namespace.
pub(crate) fn in_pod(pinned: &Pinned, command: &str) -> String {
    let netns = pinned
        .net
        .as_ref()
        .expect("a network namespace")
        .display()
        .to_string();
    shell(&format!("nsenter --net={netns} {command}"))
}

/// Answers one connection to `port` in a pod: reads to the end, then writes the same bytes and the
/// peer's address.
pub(crate) fn echo_in_pod(pinned: &Pinned, address: &str) -> std::thread::JoinHandle<()> {
    echo_in(pinned.net.as_ref().expect("a network namespace"), address)
}

/// Answers the first client with its own bytes and its address.
pub(crate) fn echo_in(netns: &Path, address: &str) -> std::thread::JoinHandle<()> {
    let listener = in_netns(netns, || TcpListener::bind(address))
        .expect("enters")
        .expect("listens");
    std::thread::spawn(move || {
        let (mut stream, peer) = listener.accept().expect("accepts");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("reads");
        write!(stream, "{text} from {}", peer.ip()).expect("writes");
    })
}

/// Sends `text` to an echo and returns its answer.
pub(crate) fn say(address: &str, text: &str) -> std::io::Result<String> {
    let address = address.parse().expect("an address with a port");
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(3))?;
    stream.set_read_timeout(Some(Duration::from_secs(3)))?;
    stream.write_all(text.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The programs of github.com/containernetworking/plugins: in `$CNI_SHIM_PLUGINS`, or built beside
/// the tests by `tests/build-plugins.sh` (once; needs Go). Prints a message and returns `None` if
/// they are unavailable.
pub(crate) fn real_plugins() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("CNI_SHIM_PLUGINS") {
        return Some(dir.into());
    }
    let this = std::env::current_exe().expect("the test program");
    let target = this
        .ancestors()
        .nth(3)
        .expect("the target directory")
        .to_owned();
    let dir = target.join("cni-bin");
    if !dir.join("bridge").exists() {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/build-plugins.sh");
        let built = Command::new(script)
            .arg(&target)
            .output()
            .expect("the script starts");
        if !built.status.success() {
            eprintln!("skipped: {}", String::from_utf8_lossy(&built.stderr));
            return None;
        }
    }
    Some(dir)
}

/// A TCP port of the node that is forwarded to a pod.
pub(crate) fn port(host_port: u16, container_port: u16, host_ip: Option<&str>) -> PortMapping {
    let host_ip = host_ip.map(|ip| ip.parse().expect("an address"));
    PortMapping {
        host_port,
        container_port,
        protocol: Protocol::Tcp,
        host_ip,
    }
}

/// Returns the number of files in a directory.
pub(crate) fn files(dir: &Path) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}

//! Streams under load: much data through one, many concurrent ones, many in sequence.
//! `CAIRN_TEST_MEGABYTES=1024` transfers a gigabyte; the rates are printed.

use std::{process::Stdio, time::Instant};

use cairn_tests::{Daemon, container::Container, cri, look, until};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    process::Command,
};

use crate::streaming::{crictl, inside};

fn megabytes() -> usize {
    let asked = std::env::var("CAIRN_TEST_MEGABYTES").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(24)
}

/// Deterministic bytes without equal blocks: lost, duplicated or exchanged ones are detected.
struct Bytes(u64);

impl Bytes {
    fn fill(&mut self, block: &mut [u8]) {
        for word in block.chunks_exact_mut(8) {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            word.copy_from_slice(&(self.0 ^ (self.0 >> 29)).to_le_bytes());
        }
    }
}

const BLOCK: usize = 64 << 10;

async fn send(mut to: impl AsyncWrite + Unpin, blocks: usize, seed: u64) {
    let (mut bytes, mut block) = (Bytes(seed), vec![0; BLOCK]);
    for _ in 0..blocks {
        bytes.fill(&mut block);
        to.write_all(&block).await.expect("it is taken");
    }
    to.flush().await.expect("it is taken");
}

async fn check(mut from: impl AsyncRead + Unpin, blocks: usize, seed: u64) {
    let (mut bytes, mut block, mut came) = (Bytes(seed), vec![0; BLOCK], vec![0; BLOCK]);
    for number in 0..blocks {
        bytes.fill(&mut block);
        from.read_exact(&mut came)
            .await
            .unwrap_or_else(|e| panic!("block {number} of {blocks}: {e}"));
        assert!(came == block, "block {number} of {blocks} is another one");
    }
}

/// Sends blocks through a program and compares its output with them; the program may continue.
async fn echo(mut command: Command, blocks: usize, seed: u64) {
    let mut child = command
        .stdin(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("it runs");
    let to = child.stdin.take().expect("piped");
    let from = child.stdout.take().expect("piped");
    tokio::join!(send(to, blocks, seed), check(from, blocks, seed));
    let _ended = child.kill().await;
}

fn rate(what: &str, blocks: usize, start: Instant) {
    let (bytes, took) = (blocks * BLOCK, start.elapsed().as_secs_f64());
    let each = bytes as f64 / took / 1e6;
    println!(
        "{what}: {} MB each way in {took:.1} s, {each:.0} MB/s",
        bytes / 1_000_000
    );
}

#[tokio::test]
async fn what_goes_through_an_exec_comes_back_byte_for_byte() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("bulk").await;
    let container = pod.sleeper("c").await;
    let blocks = megabytes() * (1 << 20) / BLOCK;
    for transport in ["spdy", "websocket"] {
        let start = Instant::now();
        let command = crictl(
            &daemon,
            &["exec", "-r", transport, "-i", &container.id, "cat"],
        );
        echo(command, blocks, 7).await;
        rate(&format!("exec by {transport}"), blocks, start);
    }
    pod.end().await;
}

const CONNECTIONS: usize = 64;
/// The first of `CONNECTIONS` ports in the pod, and on the client's side.
const PORTS: (usize, usize) = (7000, 12300);

/// Runs crictl, which forwards each of the ports.
async fn forwarded(
    daemon: &Daemon,
    pod: &cairn_tests::pod::Pod,
    transport: &str,
) -> tokio::process::Child {
    let ports = (0..CONNECTIONS).map(|n| format!("{}:{}", PORTS.1 + n, PORTS.0 + n));
    let ports: Vec<String> = ports.collect();
    let mut args = vec!["port-forward", "-r", transport, &pod.id];
    args.extend(ports.iter().map(String::as_str));
    let forwarder = crictl(daemon, &args).spawn().expect("crictl runs");
    until("the last of the forwarded ports answers", || async {
        let mut command = inside(daemon, "bash");
        let port = PORTS.1 + CONNECTIONS - 1;
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && echo x >&3 && head -c 1 <&3");
        command.args(["-c", &script]);
        let output = command.output().await.expect("bash runs");
        (output.stdout == b"x").then_some(())
    })
    .await;
    forwarder
}

/// Opens one connection to the n-th forwarded port.
fn connected(daemon: &Daemon, n: usize, blocks: usize) -> Command {
    let mut command = inside(daemon, "bash");
    let (port, bytes) = (PORTS.1 + n, blocks * BLOCK);
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port} && {{ cat <&0 >&3 & head -c {bytes} <&3; kill $!; }}"
    );
    command.args(["-c", &script]);
    command
}

#[tokio::test]
async fn what_goes_through_forwarded_ports_comes_back_and_sixty_four_do_at_once() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("ports").await;
    let server = pod.sleeper("c").await;
    // One server each: busybox has a short queue.
    let (first, last) = (PORTS.0, PORTS.0 + CONNECTIONS - 1);
    let serve = format!(
        "for p in $(seq {first} {last}); do nc -ll -p $p -e cat </dev/null >/dev/null 2>&1 & done"
    );
    server.sh(&serve).await;
    // A refused connection ends crictl.
    until("all of them listen", || async {
        let count = "cat /proc/net/tcp /proc/net/tcp6 | grep -c ' 0A '; true";
        let listening = server.sh(count).await.trim().parse::<usize>();
        listening.is_ok_and(|n| n >= CONNECTIONS).then_some(())
    })
    .await;
    let blocks = megabytes() * (1 << 20) / BLOCK;
    for transport in ["spdy", "websocket"] {
        let mut forwarder = forwarded(&daemon, &pod, transport).await;
        let start = Instant::now();
        echo(connected(&daemon, 0, blocks), blocks, 11).await;
        rate(&format!("port-forward by {transport}"), blocks, start);
        let (start, each) = (Instant::now(), 8);
        let mut all = tokio::task::JoinSet::new();
        for n in 0..CONNECTIONS {
            all.spawn(echo(connected(&daemon, n, each), each, n as u64));
        }
        all.join_all().await;
        let what = format!("{CONNECTIONS} connections by {transport}");
        rate(&what, CONNECTIONS * each, start);
        forwarder.kill().await.expect("crictl is killed");
    }
    pod.end().await;
}

/// Returns the descriptors of the daemon and of a container's monitor, and the processes of the
/// pods.
fn held(daemon: &Daemon) -> (usize, usize) {
    let fds = daemon.yard.inside(format!("/proc/{}/fd", daemon.pid()));
    let open = std::fs::read_dir(fds).expect("it runs").count();
    (open, look::cgroup_pids(daemon.cgroup_parent()).len())
}

/// Returns name and state of each process that a container sees, from a shell that starts no
/// process for it.
async fn processes(container: &Container) -> Vec<String> {
    let each =
        "for p in /proc/[0-9]*; do read -r _ name state _ <$p/stat && echo $name $state; done";
    let mut all: Vec<_> = container
        .sh(each)
        .await
        .lines()
        .map(str::to_owned)
        .collect();
    // The listing is in the order of the pids as text.
    all.sort();
    all
}

#[tokio::test]
async fn a_thousand_execs_leave_nothing() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("execs").await;
    let container = pod.sleeper("c").await;
    assert_eq!(container.exec(&["echo", "warm"]).await, "warm");
    let before = held(&daemon);
    let inside_before = processes(&container).await;
    let start = Instant::now();
    for n in 0..900 {
        let ran = container.try_exec(&["echo", "x"], 20).await;
        let ran = ran.unwrap_or_else(|e| panic!("exec {n}: {e}"));
        assert_eq!((ran.code, ran.out.as_str()), (0, "x\n"), "exec {n}");
    }
    println!("900 ExecSync in {:.1} s", start.elapsed().as_secs_f64());
    for n in 0..100 {
        let transport = ["spdy", "websocket"][n % 2];
        let args = ["exec", "-r", transport, &container.id, "echo", "x"];
        let ran = crictl(&daemon, &args).output().await.expect("crictl runs");
        assert_eq!(ran.stdout, b"x\n", "exec {n}: {ran:?}");
    }
    // Unused URLs expire after a minute; each is a small record without a descriptor.
    let mut runtime = pod.cri.client.runtime.clone();
    for _ in 0..10 {
        let request = cri::ExecRequest {
            container_id: container.id.clone(),
            cmd: vec!["true".into()],
            stdout: true,
            ..Default::default()
        };
        runtime.exec(request).await.expect("a URL");
    }
    until("the daemon holds what it held", || async {
        let now = held(&daemon);
        (now.0 <= before.0 && now.1 == before.1).then_some(())
    })
    .await;
    let inside_now = processes(&container).await;
    assert_eq!(inside_now, inside_before, "processes in the container");
    pod.end().await;
}

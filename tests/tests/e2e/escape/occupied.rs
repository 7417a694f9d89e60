//! Resources that a host user or a client may occupy to block others: connections and sessions.

use std::{fs, time::Duration};

use cairn_tests::{Daemon, Setup, container::Container, cri, until};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout},
    time::timeout,
};

use crate::streaming::inside;

/// The deadline of a call that others may block.
const DEADLINE: Duration = Duration::from_secs(8);

/// Processes of other users in the daemon's network. Each keeps connections to the port open, and
/// reopens closed ones. They end with this value.
struct Occupiers(#[expect(dead_code, reason = "they end with it")] Vec<Child>);

impl Occupiers {
    /// Returns after they have opened `least` connections, whether these are served, queued by the
    /// kernel, or closed.
    async fn of(daemon: &Daemon, port: u16, least: usize) -> Self {
        let again = format!(
            "while :; do for n in {{10..1009}}; do eval \"exec $n<>/dev/tcp/127.0.0.1/{port}\"; done; done"
        );
        let start = |_| {
            let mut command = inside(daemon, "prlimit");
            command.args([
                "--nofile=2048:2048",
                "setpriv",
                "--reuid=65534",
                "--regid=65534",
            ]);
            command.args(["--clear-groups", "bash", "-c", &again]);
            command.stderr(std::process::Stdio::null());
            command.spawn().expect("util-linux and bash are there")
        };
        let occupiers = Self((0..3).map(start).collect());
        until("the port is occupied", || async {
            let table = format!("/proc/{}/net/tcp", daemon.yard.pid());
            let table = fs::read_to_string(table).expect("it is readable");
            let remote = format!("0100007F:{port:04X}");
            let remotes = table.lines().map(|line| line.split_whitespace().nth(2));
            let opened = remotes.filter(|one| *one == Some(remote.as_str())).count();
            (opened >= least).then_some(())
        })
        .await;
        occupiers
    }
}

/// Echoes a word through an exec by WebSocket; returns the output.
async fn exec(daemon: &Daemon, container: &Container, word: &str) -> String {
    let mut runtime = daemon.cri().client.runtime;
    let request = cri::ExecRequest {
        container_id: container.id.clone(),
        cmd: ["echo", word].map(String::from).into(),
        stdout: true,
        ..Default::default()
    };
    let url = runtime.exec(request).await.expect("a URL").into_inner().url;
    let rest = url.strip_prefix("http://127.0.0.1:").expect("loopback");
    let (port, path) = rest.split_once('/').expect("a path");
    let head = format!(
        "GET /{path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n\
         Sec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n\
         Sec-WebSocket-Protocol: v4.channel.k8s.io\\r\\n\\r\\n"
    );
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{head}' >&3; grep -a -m 1 -o {word} <&3"
    );
    let mut command = inside(daemon, "bash");
    let output = command.args(["-c", &script]).output().await;
    String::from_utf8_lossy(&output.expect("bash runs").stdout).into_owned()
}

#[tokio::test]
async fn a_user_of_the_host_who_holds_connections_keeps_nobody_from_an_exec() {
    let port = 9465;
    let daemon = Daemon::with(Setup::default().toml(&format!("[stream]\nport = {port}"))).await;
    let pod = daemon.cri().pod("streams").await;
    let container = pod.sleeper("c").await;
    let _occupiers = Occupiers::of(&daemon, port, 1100).await;
    for n in 0..3 {
        let ran = timeout(DEADLINE, exec(&daemon, &container, "through")).await;
        let ran = ran.unwrap_or_else(|_| panic!("exec {n}: not within {DEADLINE:?}"));
        assert_eq!(ran, "through\n", "exec {n}");
    }
    pod.end().await;
}

#[tokio::test]
async fn a_user_of_the_host_who_holds_connections_keeps_nobody_from_the_metrics() {
    let port = 9464;
    let toml = format!("[metrics]\nlisten = \"127.0.0.1:{port}\"");
    let daemon = Daemon::with(Setup::default().toml(&toml)).await;
    let _occupiers = Occupiers::of(&daemon, port, 100).await;
    for n in 0..3 {
        let scraped = timeout(DEADLINE, crate::metrics::scraped(&daemon)).await;
        let text = scraped.unwrap_or_else(|_| panic!("scrape {n}: not within {DEADLINE:?}"));
        assert!(text.contains("cairn_build_info"), "scrape {n}: {text}");
    }
}

/// Open sessions of a client; they end with the client.
struct Sessions {
    client: Child,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Sessions {
    /// Sends the header of a request for each URL.
    fn open(daemon: &Daemon, urls: &[String]) -> Self {
        let mut script = String::new();
        for (n, url) in urls.iter().enumerate() {
            let rest = url.strip_prefix("http://127.0.0.1:").expect("loopback");
            let (port, path) = rest.split_once('/').expect("a path");
            let head = format!(
                "POST /{path} HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: 0\\r\\nConnection: Upgrade\\r\\n\
                 Upgrade: SPDY/3.1\\r\\nX-Stream-Protocol-Version: portforward.k8s.io\\r\\n\\r\\n"
            );
            let fd = n + 10;
            script += &format!(
                "exec {fd}<>/dev/tcp/127.0.0.1/{port}; printf '{head}' >&{fd}; head -n 1 <&{fd}\n"
            );
        }
        let mut command = inside(daemon, "bash");
        command.args(["-c", &format!("{script}sleep 1000")]);
        let mut client = command.spawn().expect("bash runs");
        let answers = BufReader::new(client.stdout.take().expect("piped")).lines();
        Self { client, answers }
    }

    async fn next_status(&mut self) -> String {
        let line = timeout(Duration::from_secs(30), self.answers.next_line()).await;
        let line = line.expect("an answer in time").expect("it reads");
        line.expect("an answer").trim().to_owned()
    }
}

async fn forward_urls(pod: &cairn_tests::pod::Pod, count: usize) -> Vec<String> {
    let mut runtime = pod.cri.client.runtime.clone();
    let mut urls = Vec::new();
    for _ in 0..count {
        let request = cri::PortForwardRequest {
            pod_sandbox_id: pod.id.clone(),
            port: vec![80],
        };
        let answer = runtime.port_forward(request).await.expect("a URL");
        urls.push(answer.into_inner().url);
    }
    urls
}

#[tokio::test]
async fn a_pod_has_a_bounded_number_of_sessions_and_takes_none_from_another() {
    let daemon = Daemon::start().await;
    let (full, other) = (
        daemon.cri().pod("full").await,
        daemon.cri().pod("other").await,
    );
    let mut urls = forward_urls(&full, 65).await;
    urls.extend(forward_urls(&other, 1).await);
    let mut sessions = Sessions::open(&daemon, &urls);
    for n in 0..64 {
        let status = sessions.next_status().await;
        assert!(status.starts_with("HTTP/1.1 101"), "session {n}: {status}");
    }
    let status = sessions.next_status().await;
    assert!(status.starts_with("HTTP/1.1 429"), "one too many: {status}");
    let status = sessions.next_status().await;
    assert!(status.starts_with("HTTP/1.1 101"), "of another: {status}");
    sessions.client.kill().await.expect("it is killed");
    until("the pod has room again", || async {
        let urls = forward_urls(&full, 1).await;
        let mut again = Sessions::open(&daemon, &urls);
        let status = again.next_status().await;
        status.starts_with("HTTP/1.1 101").then_some(())
    })
    .await;
    full.end().await;
    other.end().await;
}

//! Exec, attach and port-forward, as crictl streams them by SPDY and by WebSocket.

use std::{
    ffi::OsStr,
    process::{Output, Stdio},
    time::Duration,
};

use cairn_tests::{Daemon, bins, cri, look};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::Command,
};
use tonic::Code;

/// Runs a program in the daemon's network, where its URLs are valid. It does not fork: a kill ends
/// the program itself.
pub(crate) fn inside(daemon: &Daemon, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--target={}", daemon.yard.pid()))
        .args(["--net", "--"])
        .arg(program)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

fn argv(daemon: &Daemon, args: &[&str]) -> Vec<String> {
    let endpoint = format!("unix://{}", daemon.socket().display());
    let program = bins::peer("crictl").display().to_string();
    let own = [
        &program,
        "--config",
        "/dev/null",
        "--timeout",
        "60s",
        "-r",
        &endpoint,
        "-i",
        &endpoint,
    ];
    let all = own.iter().chain(args);
    all.map(|word| (*word).to_owned()).collect()
}

pub(crate) fn crictl(daemon: &Daemon, args: &[&str]) -> Command {
    let argv = argv(daemon, args);
    let mut command = inside(daemon, &argv[0]);
    command.args(&argv[1..]);
    command
}

pub(crate) async fn run(daemon: &Daemon, args: &[&str], input: &[u8]) -> Output {
    ended(crictl(daemon, args), input).await
}

pub(crate) async fn ended(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.stdin(Stdio::piped()).spawn().expect("crictl runs");
    let mut stdin = child.stdin.take().expect("piped");
    let writing = async {
        // It may end before it has read all input.
        let _ended = stdin.write_all(input).await;
        drop(stdin);
    };
    let whole = async { tokio::join!(child.wait_with_output(), writing).0 };
    let ended = tokio::time::timeout(Duration::from_secs(60), whole).await;
    ended
        .expect("crictl ends in a minute")
        .expect("it is waited for")
}

#[tokio::test]
async fn crictl_execs_by_spdy_and_by_websocket() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("stream").await;
    let container = pod.sleeper("c").await;
    for transport in ["spdy", "websocket"] {
        let exec = ["exec", "-r", transport];
        let script = "echo out; echo err >&2; exit 7";
        let args = [&exec[..], &[&container.id, "sh", "-c", script]].concat();
        let ran = run(&daemon, &args, b"").await;
        assert_eq!(
            String::from_utf8_lossy(&ran.stdout),
            "out\n",
            "{transport}: {ran:?}"
        );
        let printed = String::from_utf8_lossy(&ran.stderr);
        assert!(
            printed.contains("err\n") && printed.contains("exit code 7"),
            "{transport}: {printed}"
        );
        let args = [&exec[..], &["-i", &container.id, "wc", "-c"]].concat();
        let ran = run(&daemon, &args, &vec![b'x'; 1_000_000]).await;
        assert_eq!(
            String::from_utf8_lossy(&ran.stdout).trim(),
            "1000000",
            "{transport}: {ran:?}"
        );
        let script = "head -c 20000000 /dev/zero";
        let args = [&exec[..], &[&container.id, "sh", "-c", script]].concat();
        let ran = run(&daemon, &args, b"").await;
        assert_eq!(ran.stdout.len(), 20_000_000, "{transport}");
        let args = [&exec[..], &[&container.id, "/no/such/program"]].concat();
        let ran = run(&daemon, &args, b"").await;
        let printed = String::from_utf8_lossy(&ran.stderr);
        assert!(
            !ran.status.success() && printed.contains("/no/such/program"),
            "{transport}: {printed}"
        );
    }
    pod.end().await;
}

#[tokio::test]
async fn a_terminal_of_an_exec_has_the_size_of_the_clients() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("terminal").await;
    let container = pod.sleeper("c").await;
    for transport in ["spdy", "websocket"] {
        let args = ["exec", "-r", transport, "-i", "-t", &container.id];
        let script =
            r#"'until stty size | grep -q "33 77"; do sleep 0.1; done; echo sized; exit 5'"#;
        // script(1) loses output that is in transit when a terminal ends: it stays open until all
        // output was seen.
        let exec = format!(
            "stty rows 33 cols 77; {} sh -c {script}; echo over; read _",
            argv(&daemon, &args).join(" ")
        );
        let mut command = inside(&daemon, "script");
        command.args(["-qec", &exec, "/dev/null"]);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("script runs");
        let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut printed = String::new();
        // crictl would consume input that it can still read.
        let all = async {
            while !printed.contains("over") {
                let mut some = [0; 4096];
                match stdout.read(&mut some).await.expect("it reads") {
                    0 => return false,
                    n => printed += &String::from_utf8_lossy(&some[..n]),
                }
            }
            true
        };
        let all = tokio::time::timeout(Duration::from_secs(60), all).await;
        assert!(
            all.unwrap_or(false)
                && printed.contains("sized\r\n")
                && printed.contains("exit code 5"),
            "{transport}: {printed}"
        );
        stdin.write_all(b"\n").await.expect("it hears");
        let end = tokio::time::timeout(Duration::from_secs(60), child.wait()).await;
        end.expect("it ends in a minute").expect("waited for");
    }
    pod.end().await;
}

#[tokio::test]
async fn an_attached_client_feeds_a_container_hears_it_and_ends_its_stdin() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("attach").await;
    for transport in ["spdy", "websocket"] {
        let script = "while read line; do echo got $line; done; echo over >&2";
        let mut config = pod.cri.container_config(transport, &["sh", "-c", script]);
        (config.stdin, config.stdin_once) = (true, true);
        let container = pod.started(config).await;
        let args = ["attach", "-r", transport, "-i", &container.id];
        let ran = run(&daemon, &args, b"one\ntwo\n").await;
        let printed = String::from_utf8_lossy(&ran.stdout);
        assert_eq!(printed, "got one\ngot two\n", "{transport}: {ran:?}");
        let printed = String::from_utf8_lossy(&ran.stderr);
        assert!(printed.contains("over\n"), "{transport}: {ran:?}");
        assert!(ran.status.success(), "{transport}: {ran:?}");
        container.exited().await;
        assert_eq!(container.lines(), ["got one", "got two"], "{transport}");
    }
    pod.end().await;
}

#[tokio::test]
async fn a_forwarded_port_reaches_what_listens_at_the_pods_loopback() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("ports").await;
    let container = pod.sleeper("c").await;
    let serve = "mkdir /tmp/www && echo found > /tmp/www/it && httpd -p 127.0.0.1:8080 -h /tmp/www";
    container.sh(serve).await;
    for transport in ["spdy", "websocket"] {
        let args = [
            "port-forward",
            "-r",
            transport,
            &pod.id,
            "12345:8080",
            "12346:81",
        ];
        let mut forwarder = crictl(&daemon, &args).spawn().expect("crictl runs");
        let fetch = |port: u16| {
            let script = format!(
                "exec 3<>/dev/tcp/127.0.0.1/{port} && printf 'GET /it HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
            );
            let mut command = inside(&daemon, "bash");
            command.args(["-c", &script]);
            async move { ended(command, b"").await.stdout }
        };
        // Several requests on one connection.
        for _ in 0..3 {
            cairn_tests::until("the forwarded port answers", || async {
                let printed = String::from_utf8_lossy(&fetch(12345).await).into_owned();
                printed.ends_with("found\n").then_some(())
            })
            .await;
        }
        assert_eq!(fetch(12346).await, b"", "no process listens at port 81");
        forwarder.kill().await.expect("crictl is killed");
    }
    pod.end().await;
}

#[tokio::test]
async fn an_exec_whose_client_leaves_is_gone_and_so_is_its_group() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("left").await;
    let container = pod.sleeper("c").await;
    let before = look::cgroup_pids(daemon.cgroup_parent()).len();
    let mut child = crictl(&daemon, &["exec", &container.id, "sleep", "1234"])
        .spawn()
        .expect("crictl runs");
    let count = || look::cgroup_pids(daemon.cgroup_parent()).len();
    cairn_tests::until("the exec runs", || async {
        (count() > before).then_some(())
    })
    .await;
    child.kill().await.expect("crictl is killed");
    cairn_tests::until("the exec has ended", || async {
        (count() == before).then_some(())
    })
    .await;
    assert_eq!(container.exec(&["echo", "alive"]).await, "alive");
    pod.end().await;
}

#[tokio::test]
async fn requests_that_cannot_be_streamed_are_refused_by_their_reason() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("refused").await;
    let container = pod.sleeper("c").await;
    let mut runtime = pod.cri.client.runtime.clone();
    let exec = |id: &str, stdout, stderr, tty| cri::ExecRequest {
        container_id: id.into(),
        cmd: vec!["true".into()],
        stdout,
        stderr,
        tty,
        ..Default::default()
    };
    for (request, code) in [
        (exec("", true, false, false), Code::InvalidArgument),
        (
            exec(&container.id, false, false, false),
            Code::InvalidArgument,
        ),
        (exec(&container.id, true, true, true), Code::InvalidArgument),
        (exec("0123456789", true, false, false), Code::NotFound),
    ] {
        let error = runtime.exec(request).await.expect_err("refused");
        assert_eq!(error.code(), code, "{error}");
    }
    let url = runtime.exec(exec(&container.id, true, false, false)).await;
    let url = url.expect("a URL").into_inner().url;
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    container
        .stop(Duration::from_secs(5))
        .await
        .expect("StopContainer");
    let error = runtime
        .exec(exec(&container.id, true, false, false))
        .await
        .expect_err("it is not running");
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    pod.end().await;
}

#[tokio::test]
async fn a_url_is_good_for_one_request_of_a_client_that_goes_on_by_a_protocol_of_ours() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("urls").await;
    let mut runtime = pod.cri.client.runtime.clone();
    let websocket = "GET URL HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
        Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n";
    let spdy = "POST URL HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: Upgrade\r\n\
        Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n";
    let plain = "GET URL HTTP/1.1\r\nHost: x\r\n\r\n";
    for (ports, heads) in [
        (40, &[(websocket, "400", "40 ports were asked for")][..]),
        (0, &[(websocket, "400", "1 to 39")]),
        (40, &[(spdy, "101", "SPDY/3.1"), (spdy, "404", "not found")]),
        (39, &[(plain, "400", "Connection"), (websocket, "101", "")]),
    ] {
        let request = cri::PortForwardRequest {
            pod_sandbox_id: pod.id.clone(),
            port: (1..=ports).collect(),
        };
        let url = runtime.port_forward(request).await.expect("a URL");
        let url = url.into_inner().url;
        let rest = url.strip_prefix("http://127.0.0.1:").expect("loopback");
        let (port, path) = rest.split_once('/').expect("a path");
        for (head, code, word) in heads {
            let mut command = inside(&daemon, "bash");
            // A refused connection is closed; otherwise its header ends with an empty line.
            let read = if *code == "101" {
                r"sed '/^\r$/q'"
            } else {
                "cat"
            };
            let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && cat >&3 && {read} <&3");
            command.args(["-c", &connect]);
            let head = head.replace("URL", &format!("/{path}"));
            let printed = ended(command, head.as_bytes()).await.stdout;
            let printed = String::from_utf8_lossy(&printed);
            let status = format!("HTTP/1.1 {code} ");
            assert!(
                printed.starts_with(&status) && printed.contains(word),
                "{ports}: {printed}"
            );
        }
    }
    pod.end().await;
}

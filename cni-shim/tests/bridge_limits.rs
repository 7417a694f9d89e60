//! The built-in bridge: bandwidth, and host ports at `::1`.

mod support;

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use cni_shim::namespaces::{Pinned, in_netns};
use cni_shim::{Attach, Network, PortMapping, Protocol};
use support::{config, echo_in_pod, in_pod, isolated, sandbox, say, shell};

const BOTH: [&str; 2] = ["10.77.0.0/24", "fd77::/64"];
const ANSWERS_LOST: &str = "net.bridge.bridge-nf-call-ip6tables";

fn web(host_port: u16, host_ip: Option<&str>) -> PortMapping {
    PortMapping {
        host_port,
        container_port: 80,
        protocol: Protocol::Tcp,
        host_ip: host_ip.map(|ip| ip.parse().expect("an address")),
    }
}

fn limit(attach: &mut Attach, direction: &str, rate: &str) {
    let key = format!("kubernetes.io/{direction}-bandwidth");
    attach.annotations.insert(key, rate.into());
}

/// Returns the time of a transfer of a megabyte and a half.
fn transfer(listener: TcpListener, connect: impl FnOnce() -> TcpStream) -> Duration {
    let start = Instant::now();
    let receiver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accepts");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("reads");
        assert_eq!(all.len(), 1_500_000);
        start.elapsed()
    });
    let mut sender = connect();
    sender.write_all(&vec![7; 1_500_000]).expect("writes");
    drop(sender);
    receiver.join().expect("no panic")
}

fn to_pod(pod: &Pinned, ip: IpAddr) -> Duration {
    let netns = pod.net.clone().expect("a network namespace");
    let listener = in_netns(&netns, || TcpListener::bind((ip, 80))).expect("enters");
    transfer(listener.expect("listens"), || {
        TcpStream::connect((ip, 80)).expect("connects")
    })
}

fn from_pod(pod: &Pinned, node: &str) -> Duration {
    let netns = pod.net.clone().expect("a network namespace");
    let listener = TcpListener::bind((node, 0)).expect("listens");
    let to = listener.local_addr().expect("has one");
    transfer(listener, || {
        let stream = in_netns(&netns, || TcpStream::connect(to)).expect("enters");
        stream.expect("connects")
    })
}

#[test]
fn a_pod_gets_and_sends_no_more_than_its_annotations_allow_and_leaves_no_device() {
    isolated(
        "a_pod_gets_and_sends_no_more_than_its_annotations_allow_and_leaves_no_device",
        async |dir| {
            let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
            let (free, attach) = sandbox(&dir, "free");
            let free_ip = network.attach(attach).await.expect("attaches").ips[0];
            let (slow, mut attach) = sandbox(&dir, "slow");
            // A megabyte per second: with the initial burst, well over a second for all.
            limit(&mut attach, "ingress", "8M");
            limit(&mut attach, "egress", "8M");
            let attached = network.attach(attach).await.expect("attaches");
            assert_eq!(attached.warnings, [""; 0]);

            let limited = Duration::from_millis(1200);
            let (got, sent) = (to_pod(&slow, attached.ips[0]), from_pod(&slow, "10.77.0.1"));
            assert!(got > limited && got < limited * 5, "{got:?}");
            assert!(sent > limited && sent < limited * 5, "{sent:?}");
            // At the machine's speed.
            assert!(to_pod(&free, free_ip) < got);
            assert!(from_pod(&free, "10.77.0.1") < sent);

            network.detach("slow").await.expect("detaches");
            network.detach("free").await.expect("detaches");
            let left = shell("ip -br link");
            assert!(!left.contains("ifb") && !left.contains("veth"), "{left}");
        },
    );
}

#[test]
fn devices_of_a_limited_pod_go_with_it_when_its_daemon_died() {
    isolated(
        "devices_of_a_limited_pod_go_with_it_when_its_daemon_died",
        async |dir| {
            for (id, tear) in [("whole", false), ("torn", true)] {
                let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
                let (_pod, mut attach) = sandbox(&dir, id);
                limit(&mut attach, "egress", "1G");
                network.attach(attach).await.expect("attaches");
                drop(network);
                assert!(shell("ip -br link").contains("ifb"));
                if tear {
                    let record = dir.join(format!("state/attachments/{id}.json"));
                    std::fs::write(record, "{\"schema\":").expect("writes");
                }
                let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
                network.gc(HashSet::new).await.expect("collects");
                let left = shell("ip -br link");
                assert!(!left.contains("ifb") && !left.contains("veth"), "{left}");
            }
        },
    );
}

#[test]
fn a_limit_that_is_no_quantity_is_refused_and_one_of_the_other_direction_alone_is_kept() {
    isolated(
        "a_limit_that_is_no_quantity_is_refused_and_one_of_the_other_direction_alone_is_kept",
        async |dir| {
            let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
            let (_pod, mut attach) = sandbox(&dir, "one");
            limit(&mut attach, "ingress", "8 megabits");
            let error = network.attach(attach.clone()).await.expect_err("is none");
            assert_eq!(
                error.to_string(),
                "annotation kubernetes.io/ingress-bandwidth: invalid quantity \"8 megabits\" (must be 1k to 1P)"
            );
            attach.annotations.clear();
            limit(&mut attach, "ingress", "100G");
            let attached = network.attach(attach).await.expect("attaches");
            assert_eq!(attached.warnings, [""; 0]);
            assert!(!shell("ip -br link").contains("ifb"));
            assert!(shell("tc qdisc").contains("tbf"));
        },
    );
}

#[test]
fn a_host_port_is_served_at_the_ipv6_loopback_and_the_loopback_is_not_open_to_pods() {
    isolated(
        "a_host_port_is_served_at_the_ipv6_loopback_and_the_loopback_is_not_open_to_pods",
        async |dir| {
            support::try_shell(&format!("sysctl -qw {ANSWERS_LOST}=0"));
            let network = Network::new(config(&dir, &BOTH)).expect("opens");
            let (pod, mut attach) = sandbox(&dir, "web");
            attach.port_mappings = vec![web(8080, None), web(8081, Some("::1"))];
            let attached = network.attach(attach).await.expect("attaches");
            assert_eq!(attached.warnings, [""; 0]);
            for (address, from) in [
                ("[::1]:8080", "fd77::1"),
                ("[::1]:8081", "fd77::1"),
                ("127.0.0.1:8080", "10.77.0.1"),
            ] {
                let echo = echo_in_pod(&pod, "[::]:80");
                let answer = say(address, "hello").expect("is answered");
                echo.join().expect("ends");
                assert!(answer.ends_with(from), "{address}: {answer}");
            }
            say("127.0.0.1:8081", "x").expect_err("is at ::1 alone");

            // Packets that a pod sends to ::1 over the wire do not arrive; packets to the gateway
            // do.
            let listener = UdpSocket::bind("[::]:9999").expect("listens");
            let patience = Some(Duration::from_secs(2));
            listener.set_read_timeout(patience).expect("is set");
            let frames = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/loopback_frames.py");
            let bridge = shell("ip -br link show cairn0");
            let bridge = bridge.split_whitespace().nth(2).expect("an address");
            in_pod(
                &pod,
                &format!("python3 {frames} {} fd77::2 ::1 fd77::1", bridge),
            );
            let mut heard = [0; 64];
            let (length, _) = listener.recv_from(&mut heard).expect("one arrives");
            assert_eq!(&heard[..length], b"to fd77::1");
            listener.set_nonblocking(true).expect("is set");
            let none = listener
                .recv_from(&mut heard)
                .expect_err("it was the only one");
            assert_eq!(none.kind(), ErrorKind::WouldBlock);

            network.detach("web").await.expect("detaches");
            say("[::1]:8080", "x").expect_err("is closed");
        },
    );
}

#[test]
fn where_bridges_show_their_frames_to_ip6_rules_ports_at_the_ipv6_loopback_are_refused() {
    isolated(
        "where_bridges_show_their_frames_to_ip6_rules_ports_at_the_ipv6_loopback_are_refused",
        async |dir| {
            if !support::try_shell(&format!("sysctl -qw {ANSWERS_LOST}=1")).0 {
                return eprintln!("skipped: no br_netfilter here");
            }
            let network = Network::new(config(&dir, &BOTH)).expect("opens");
            let (pod, mut attach) = sandbox(&dir, "web");
            attach.port_mappings = vec![web(8080, Some("::1"))];
            let error = network
                .attach(attach.clone())
                .await
                .expect_err("cannot work");
            assert!(
                error
                    .to_string()
                    .starts_with("host port 8080/tcp at ::1: answers"),
                "{error}"
            );

            // A port at all addresses fails at ::1 at once, so that a client continues with the
            // other loopback address.
            attach.port_mappings = vec![web(8080, None)];
            network.attach(attach).await.expect("attaches");
            let start = Instant::now();
            let refused = say("[::1]:8080", "x").expect_err("is not served");
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            assert!(start.elapsed() < Duration::from_secs(1));
            let echo = echo_in_pod(&pod, "[::]:80");
            say("127.0.0.1:8080", "x").expect("is answered");
            echo.join().expect("ends");

            // Reported by the next check of the node's state.
            shell(&format!("sysctl -qw {ANSWERS_LOST}=0"));
            network.status().await.expect("is ready");
            let echo = echo_in_pod(&pod, "[::]:80");
            say("[::1]:8080", "x").expect("is answered");
            echo.join().expect("ends");
        },
    );
}

#[test]
fn a_host_port_of_a_family_that_pods_do_not_have_is_a_warning() {
    isolated(
        "a_host_port_of_a_family_that_pods_do_not_have_is_a_warning",
        async |dir| {
            support::try_shell(&format!("sysctl -qw {ANSWERS_LOST}=0"));
            let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
            let (_pod, mut attach) = sandbox(&dir, "web");
            attach.port_mappings = vec![web(8080, Some("::1")), web(8081, None)];
            let attached = network.attach(attach).await.expect("attaches");
            assert_eq!(
                attached.warnings,
                ["host port 8080/tcp at ::1 is not published: pods have no address of that family"]
            );
        },
    );
}

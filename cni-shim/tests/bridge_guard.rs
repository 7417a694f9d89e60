//! Protection of the node and of other pods from pods on the built-in bridge.

mod support;

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use cni_shim::Network;
use cni_shim::namespaces::Pinned;
use support::{config, in_pod, isolated, ping, sandbox, shell};

#[test]
fn a_pod_cannot_reach_the_nodes_loopback() {
    isolated("a_pod_cannot_reach_the_nodes_loopback", async |dir| {
        let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
        let (pod, attach) = sandbox(&dir, "one");
        network.attach(attach).await.expect("attaches");
        // A pod with NET_ADMIN may route 127.0.0.1 to the gateway; with route_localnet the node
        // would accept it.
        in_pod(&pod, "ip addr del 127.0.0.1/8 dev lo");
        in_pod(
            &pod,
            "ip route add 127.0.0.1/32 via 10.77.0.1 src 10.77.0.2",
        );
        in_pod(
            &pod,
            "sh -c 'echo 1 > /proc/sys/net/ipv4/conf/eth0/route_localnet'",
        );
        let netns = pod.net.clone().expect("a network namespace");
        let attempt = || {
            let node = std::net::TcpListener::bind("127.0.0.1:0").expect("listens");
            let address = node.local_addr().expect("has an address");
            let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok();
            cni_shim::namespaces::in_netns(&netns, connect).expect("enters")
        };
        assert!(!attempt());
        // The same attempt succeeds without the guard, so the guard prevented it.
        shell("nft flush chain ip cairn0 guard");
        assert!(attempt());
    });
}

#[test]
fn a_pod_cannot_pass_for_another_or_for_a_router() {
    isolated(
        "a_pod_cannot_pass_for_another_or_for_a_router",
        async |dir| {
            let subnets = ["10.77.0.0/24", "fd77::/64"];
            let network = Network::new(config(&dir, &subnets)).expect("opens");
            let (mallory, attach) = sandbox(&dir, "mallory");
            let attached = network.attach(attach).await.expect("attaches");
            let (victim, attach) = sandbox(&dir, "victim");
            let victims = network.attach(attach).await.expect("attaches").ips;
            let mac = attached.result["interfaces"][2]["mac"].as_str();
            let mac = mac.expect("a hardware address");
            let own = [
                "own-ip",
                "own-arp",
                "own-ip6",
                "own-neighbour",
                "unspecified-solicitation",
            ];
            let heard = || heard_frames(&mallory, &victim, mac, &attached.ips);

            assert_eq!(heard(), [&own[..], &["end"]].concat());
            for ip in &victims {
                in_pod(&mallory, &format!("busybox ping -c 1 -W 2 {ip}"));
                assert!(ping(*ip), "the node reaches the pods as before");
            }
            let accepts = in_pod(&victim, "cat /proc/sys/net/ipv6/conf/eth0/accept_ra");
            assert_eq!(accepts.trim(), "0");

            // The check survives a restart with existing pods, and a flush.
            drop(network);
            let network = Network::new(config(&dir, &subnets)).expect("opens");
            network.status().await.expect("is ready");
            assert_eq!(heard(), [&own[..], &["end"]].concat());
            shell("nft flush ruleset");
            network.status().await.expect("is ready");
            assert_eq!(heard(), [&own[..], &["end"]].concat());

            // Without the check all frames arrive, so the check dropped them.
            shell("nft flush chain bridge cairn0 spoof_check");
            assert_eq!(heard().len(), 16);

            network.detach("mallory").await.expect("detaches");
            network.detach("victim").await.expect("detaches");
            let left = shell("nft list table bridge cairn0");
            assert!(!left.contains("elements"), "{left}");
        },
    );
}

/// Returns the names of `tests/frames.py` that reach `victim` when `mallory` sends all of them.
fn heard_frames(mallory: &Pinned, victim: &Pinned, mac: &str, ips: &[IpAddr]) -> Vec<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/frames.py");
    let netns = victim.net.as_ref().expect("a network namespace");
    let mut listener = Command::new("nsenter")
        .arg(format!("--net={}", netns.display()))
        .args(["python3", script, "hear"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the listener starts");
    let output = listener.stdout.take().expect("its output");
    let mut lines = BufReader::new(output)
        .lines()
        .map(|line| line.expect("a line"));
    assert_eq!(lines.next().as_deref(), Some("ready"));
    in_pod(
        mallory,
        &format!("python3 {script} send {mac} {} {}", ips[0], ips[1]),
    );
    let names = lines.collect();
    assert!(listener.wait().expect("ends").success());
    names
}

#[test]
fn without_the_spoof_check_there_is_no_table_for_it() {
    isolated(
        "without_the_spoof_check_there_is_no_table_for_it",
        async |dir| {
            let mut open = config(&dir, &["10.77.0.0/24"]);
            open.bridge.as_mut().expect("a bridge").spoof_check = false;
            let network = Network::new(open).expect("opens");
            let (_pod, attach) = sandbox(&dir, "one");
            let attached = network.attach(attach).await.expect("attaches");
            assert!(ping(attached.ips[0]));
            assert!(!shell("nft list tables").contains("bridge"));
            // After it is enabled, it applies to existing pods.
            drop(network);
            let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
            network.status().await.expect("is ready");
            assert!(shell("nft list set bridge cairn0 addresses4").contains("10.77.0.2"));
            drop(network);
            // After it is disabled, its table is removed.
            let mut open = config(&dir, &["10.77.0.0/24"]);
            open.bridge.as_mut().expect("a bridge").spoof_check = false;
            let network = Network::new(open).expect("opens");
            network.status().await.expect("is ready");
            assert!(!shell("nft list tables").contains("bridge"));
            assert!(ping(attached.ips[0]));
        },
    );
}

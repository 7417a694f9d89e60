//! Host ports of the built-in bridge, also after its rules were flushed.

mod support;

use std::net::UdpSocket;
use std::time::Duration;

use cni_shim::{Network, PortMapping, Protocol};
use support::{config, echo_in_pod, isolated, port, sandbox, say, shell};

#[test]
fn a_host_port_leads_to_the_pod_from_the_loopback_the_node_and_the_pod_itself() {
    isolated(
        "a_host_port_leads_to_the_pod_from_the_loopback_the_node_and_the_pod_itself",
        async |dir| {
            shell(
                "ip link add up0 type veth peer name up1; ip addr add 192.0.2.1/24 dev up0; ip link set up0 up; ip link set up1 up",
            );
            let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
            let (pod, mut attach) = sandbox(&dir, "web");
            attach.port_mappings = vec![
                port(8080, 80, None),
                port(8081, 80, Some("192.0.2.1")),
                port(0, 99, None),
            ];
            network.attach(attach).await.expect("attaches");

            for address in ["127.0.0.1:8080", "192.0.2.1:8080", "192.0.2.1:8081"] {
                let echo = echo_in_pod(&pod, "0.0.0.0:80");
                let answer = say(address, address).expect("is answered");
                assert!(answer.starts_with(address), "{answer}");
                echo.join().expect("ends");
            }
            assert!(
                say("127.0.0.1:8081", "x").is_err(),
                "a port bound to one address answers at another"
            );

            let echo = echo_in_pod(&pod, "0.0.0.0:80");
            let netns = pod.net.clone().expect("a network namespace");
            let hairpin = cni_shim::namespaces::in_netns(&netns, || say("192.0.2.1:8080", "self"))
                .expect("enters");
            assert_eq!(hairpin.expect("is answered"), "self from 10.77.0.1");
            echo.join().expect("ends");

            network.detach("web").await.expect("detaches");
            assert!(
                !shell("nft list ruleset").contains("10.77.0.2"),
                "an element was left"
            );
            assert!(say("127.0.0.1:8080", "x").is_err());
        },
    );
}

#[test]
fn rules_flushed_by_somebody_else_come_back_with_all_host_ports() {
    isolated(
        "rules_flushed_by_somebody_else_come_back_with_all_host_ports",
        async |dir| {
            let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
            let (pod, mut attach) = sandbox(&dir, "first");
            attach.port_mappings = vec![port(8080, 80, None)];
            network.attach(attach).await.expect("attaches");
            let answers = |text: &str| {
                let echo = echo_in_pod(&pod, "0.0.0.0:80");
                assert!(
                    say("127.0.0.1:8080", text)
                        .expect("is answered")
                        .starts_with(text)
                );
                echo.join().expect("ends");
            };
            shell("nft flush ruleset");
            network.status().await.expect("is ready");
            answers("after a look at the status");

            shell("nft flush ruleset");
            let (_pod, mut attach) = sandbox(&dir, "second");
            attach.port_mappings = vec![port(8081, 80, None)];
            network.attach(attach).await.expect("attaches");
            answers("after the next pod");

            shell("nft flush ruleset");
            network.detach("first").await.expect("detaches");
            network.detach("second").await.expect("detaches");
        },
    );
}

#[test]
fn more_host_ports_than_one_transaction_holds_survive_a_restart() {
    isolated(
        "more_host_ports_than_one_transaction_holds_survive_a_restart",
        async |dir| {
            let first = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
            let (_pod, mut attach) = sandbox(&dir, "many");
            attach.port_mappings = (1..=1_200)
                .map(|number| port(10_000 + number, number, None))
                .collect();
            first.attach(attach).await.expect("attaches");
            drop(first);
            shell("nft flush ruleset");
            let second = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
            second.status().await.expect("is ready");
            let rules = shell("nft list map ip cairn0 hostports");
            assert_eq!(rules.matches("10.77.0.2").count(), 1_200);
            second.detach("many").await.expect("detaches");
            assert_eq!(
                shell("nft list map ip cairn0 hostports")
                    .matches("10.77.0.2")
                    .count(),
                0
            );
        },
    );
}

#[test]
fn a_udp_flow_that_began_before_its_host_port_was_open_finds_the_pod() {
    isolated(
        "a_udp_flow_that_began_before_its_host_port_was_open_finds_the_pod",
        async |dir| {
            shell("ip link add up0 type veth peer name up1; ip addr add 192.0.2.1/24 dev up0");
            shell("ip link set up0 up; ip link set up1 up");
            let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
            network.status().await.expect("is ready");
            let client = UdpSocket::bind("192.0.2.1:0").expect("binds");
            client
                .set_read_timeout(Some(Duration::from_secs(3)))
                .expect("sets");
            client.connect("192.0.2.1:5353").expect("connects");
            let other = UdpSocket::bind("192.0.2.1:0").expect("binds");
            // Received by the node itself, so that the flow is recorded without any rewriting.
            let node = UdpSocket::bind("192.0.2.1:5353").expect("binds");
            client.send(b"early").expect("sends");
            assert_eq!(node.recv(&mut [0; 16]).expect("receives"), 5);
            other.send_to(b"other", "192.0.2.1:5454").expect("sends");
            drop(node);

            let (pod, mut attach) = sandbox(&dir, "dns");
            attach.port_mappings = vec![PortMapping {
                protocol: Protocol::Udp,
                ..port(5353, 53, None)
            }];
            network.attach(attach).await.expect("attaches");
            let netns = pod.net.clone().expect("a network namespace");
            let server = cni_shim::namespaces::in_netns(&netns, || UdpSocket::bind("0.0.0.0:53"));
            let server = server.expect("enters").expect("binds");
            server
                .set_read_timeout(Some(Duration::from_secs(3)))
                .expect("sets");
            client.send(b"late").expect("sends");
            assert_eq!(server.recv(&mut [0; 16]).expect("the pod receives"), 4);
            let flows = shell("cat /proc/net/nf_conntrack");
            assert!(
                flows.contains("dport=5454"),
                "flows to other ports are left alone: {flows}"
            );
            network.detach("dns").await.expect("detaches");
        },
    );
}

//! The source address that others see of a pod on the built-in bridge.

mod support;

use std::net::SocketAddr;
use std::path::Path;

use cni_shim::Network;
use cni_shim::namespaces::in_netns;
use support::{config, echo_in, in_pod, isolated, sandbox, say, shell};

#[test]
fn pods_reach_each_other_and_the_outside_sees_the_nodes_address() {
    isolated(
        "pods_reach_each_other_and_the_outside_sees_the_nodes_address",
        async |dir| {
            let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
            let (one, attach) = sandbox(&dir, "one");
            network.attach(attach).await.expect("attaches");
            let (_two, attach) = sandbox(&dir, "two");
            let two_ip = network.attach(attach).await.expect("attaches").ips[0];
            in_pod(&one, &format!("busybox ping -c 1 -W 2 {two_ip}"));

            // A neighbour of the node without a route to the pods: only a masqueraded packet gets
            // an answer.
            shell("ip netns add outside");
            shell("ip link add up0 type veth peer name down0 netns outside");
            shell("ip addr add 192.0.2.1/24 dev up0; ip link set up0 up");
            shell("ip -n outside addr add 192.0.2.2/24 dev down0; ip -n outside link set down0 up");
            in_pod(&one, "busybox ping -c 1 -W 2 192.0.2.2");
            shell("ip netns del outside");
        },
    );
}

#[test]
fn subnets_that_are_not_masqueraded_see_the_pods_address_and_others_the_nodes() {
    isolated(
        "subnets_that_are_not_masqueraded_see_the_pods_address_and_others_the_nodes",
        async |dir| {
            let mut config = config(&dir, &["10.77.0.0/24", "fd77::/64"]);
            if let Some(bridge) = &mut config.bridge {
                let cidrs = ["10.78.0.9/24", "fd78::/64"];
                bridge.non_masquerade_cidrs =
                    cidrs.map(|cidr| cidr.parse().expect("a subnet")).into();
            }
            let network = Network::new(config).expect("opens");
            let (pod, attach) = sandbox(&dir, "one");
            let own = network.attach(attach).await.expect("attaches").ips;

            // Another node, with addresses of its pods and others. Its route to pods here leads
            // through this node's address.
            shell("ip netns add outside");
            shell("ip link add up0 type veth peer name down0 netns outside");
            shell(
                "ip addr add 192.0.2.1/24 dev up0; ip addr add 2001:db8::1/64 dev up0 nodad; ip link set up0 up",
            );
            shell(
                "ip -n outside addr add 192.0.2.2/24 dev down0; ip -n outside addr add 2001:db8::2/64 dev down0 nodad",
            );
            shell(
                "ip -n outside addr add 10.78.0.2/32 dev down0; ip -n outside addr add fd78::2/128 dev down0 nodad",
            );
            shell("ip -n outside link set down0 up");
            shell(
                "ip route add 10.78.0.0/24 via 192.0.2.2; ip route add fd78::/64 via 2001:db8::2",
            );
            shell(
                "ip -n outside route add 10.77.0.0/24 via 192.0.2.1; ip -n outside route add fd77::/64 via 2001:db8::1",
            );
            let seen_by = |at: &str| {
                let at = at.parse().expect("an address");
                let at = SocketAddr::new(at, 7000).to_string();
                let echo = echo_in(Path::new("/run/netns/outside"), &at);
                let answer = in_netns(pod.net.as_ref().expect("a network namespace"), || {
                    say(&at, "I am")
                });
                echo.join().expect("ends");
                answer.expect("enters").expect("is answered")
            };
            assert_eq!(seen_by("10.78.0.2"), format!("I am from {}", own[0]));
            assert_eq!(seen_by("fd78::2"), format!("I am from {}", own[1]));
            assert_eq!(seen_by("192.0.2.2"), "I am from 192.0.2.1");
            assert_eq!(seen_by("2001:db8::2"), "I am from 2001:db8::1");
            shell("ip netns del outside");
        },
    );
}

//! The built-in bridge against the kernel, looked at with `ip`, `nft` and `ping`.

mod support;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use cni_shim::namespaces::unpin;
use cni_shim::{Network, NetworkError, PortMapping, Protocol};
use support::{config, eventually, in_pod, isolated, pin_dir, ping, sandbox, shell, try_shell};

#[test]
fn a_pod_is_reached_by_ping_and_leaves_nothing() {
    isolated("a_pod_is_reached_by_ping_and_leaves_nothing", async |dir| {
        let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
        network.status().await.expect("is ready");
        let (pinned, attach) = sandbox(&dir, "one");

        let attached = network.attach(attach).await.expect("attaches");

        assert_eq!(
            attached.ips,
            ["10.77.0.2".parse::<std::net::IpAddr>().expect("an address")]
        );
        assert!(ping(attached.ips[0]));
        let inside = in_pod(&pinned, "ip -o addr");
        assert!(inside.contains("10.77.0.2/24 brd 10.77.0.255"), "{inside}");
        assert!(inside.contains("127.0.0.1/8"), "{inside}");
        assert!(in_pod(&pinned, "ip route").contains("default via 10.77.0.1 dev eth0"));
        assert!(in_pod(&pinned, "busybox ping -c 1 -W 2 10.77.0.1").contains("1 packets received"));
        assert_eq!(shell("ip -o link show type veth").lines().count(), 1);

        network.detach("one").await.expect("detaches");
        network.detach("one").await.expect("again is no error");
        unpin(&pin_dir(&dir, "one")).expect("unpins");
        unpin(&pin_dir(&dir, "one")).expect("again is no error");

        assert_eq!(shell("ip -o link show type veth"), "");
        assert_eq!(
            std::fs::read_dir(dir.join("state/attachments"))
                .expect("lists")
                .count(),
            0
        );
        assert!(!pin_dir(&dir, "one").exists());
        assert!(!shell("cat /proc/self/mounts").contains("/one"));
    });
}

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

            // A neighbour of the node that has no route to the pods: only a masqueraded packet is answered.
            shell("ip netns add outside");
            shell("ip link add up0 type veth peer name down0 netns outside");
            shell("ip addr add 192.0.2.1/24 dev up0; ip link set up0 up");
            shell("ip -n outside addr add 192.0.2.2/24 dev down0; ip -n outside link set down0 up");
            in_pod(&one, "busybox ping -c 1 -W 2 192.0.2.2");
            shell("ip netns del outside");
        },
    );
}

//! The built-in bridge against the kernel, looked at with `ip`, `nft` and `ping`.

mod support;

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use cni_shim::namespaces::{Pinned, unpin};
use cni_shim::{Network, NetworkError, PortMapping, Protocol};
use support::{
    config, echo_in_pod, helper, in_pod, isolated, pin_dir, ping, sandbox, say, shell, try_shell,
};

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

fn port(host_port: u16, container_port: u16, host_ip: Option<&str>) -> PortMapping {
    let host_ip = host_ip.map(|ip| ip.parse().expect("an address"));
    PortMapping {
        host_port,
        container_port,
        protocol: Protocol::Tcp,
        host_ip,
    }
}

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
fn a_pod_cannot_reach_the_nodes_loopback() {
    isolated("a_pod_cannot_reach_the_nodes_loopback", async |dir| {
        let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
        let (pod, attach) = sandbox(&dir, "one");
        network.attach(attach).await.expect("attaches");
        // A pod with NET_ADMIN may route 127.0.0.1 to the gateway; the node would take it, route_localnet being on.
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
        // The same attempt succeeds once the guard is gone, so it was the guard that stopped it.
        shell("nft flush chain ip cairn0 guard");
        assert!(attempt());
    });
}

#[test]
fn two_families_give_two_addresses_with_the_first_subnets_first() {
    isolated(
        "two_families_give_two_addresses_with_the_first_subnets_first",
        async |dir| {
            let network =
                Network::new(config(&dir, &["10.77.0.0/24", "fd77::/64"])).expect("opens");
            let (pod, mut attach) = sandbox(&dir, "one");
            attach.port_mappings = vec![port(8080, 80, None)];
            let attached = network.attach(attach).await.expect("attaches");
            let expected: [IpAddr; 2] =
                ["10.77.0.2", "fd77::2"].map(|ip| ip.parse().expect("an address"));
            assert_eq!(attached.ips, expected);
            assert!(
                ping(expected[0]) && ping(expected[1]),
                "at once: no duplicate address detection"
            );
            assert!(in_pod(&pod, "ip -6 route").contains("default via fd77::1"));

            shell(
                "ip link add up0 type veth peer name up1; ip addr add 2001:db8::1/64 dev up0 nodad; ip link set up0 up; ip link set up1 up",
            );
            let echo = echo_in_pod(&pod, "[::]:80");
            assert!(
                say("[2001:db8::1]:8080", "six")
                    .expect("is answered")
                    .starts_with("six")
            );
            echo.join().expect("ends");
            network.detach("one").await.expect("detaches");
            assert!(!shell("nft list ruleset").contains("fd77::2 "));
        },
    );
}

#[test]
fn a_new_daemon_keeps_the_pods_it_is_told_of_and_collects_the_others() {
    isolated(
        "a_new_daemon_keeps_the_pods_it_is_told_of_and_collects_the_others",
        async |dir| {
            let first = Network::new(config(&dir, &["10.77.0.0/29"])).expect("opens");
            let (pod, mut attach) = sandbox(&dir, "kept");
            attach.port_mappings = vec![port(8080, 80, None)];
            let kept = first.attach(attach).await.expect("attaches");
            let (_orphan, attach) = sandbox(&dir, "orphan");
            first.attach(attach).await.expect("attaches");
            // As after a kill between the record and the links.
            let (_half, attach) = sandbox(&dir, "half");
            first.attach(attach).await.expect("attaches");
            let half_veth = shell("ip -o link show type veth")
                .lines()
                .last()
                .map(str::to_owned)
                .expect("a link");
            let half_veth = half_veth
                .split([' ', '@', ':'])
                .find(|word| word.starts_with("veth"))
                .expect("a name");
            shell(&format!("ip link del {half_veth}"));
            drop(first);

            let second = Network::new(config(&dir, &["10.77.0.0/29"])).expect("opens");
            second.status().await.expect("is ready");
            second
                .gc(&HashSet::from(["kept".to_owned()]))
                .await
                .expect("collects");
            assert_eq!(shell("ip -o link show type veth").lines().count(), 1);
            assert!(ping(kept.ips[0]));
            let echo = echo_in_pod(&pod, "0.0.0.0:80");
            say("127.0.0.1:8080", "still").expect("the host port is there again");
            echo.join().expect("ends");

            // 8 addresses: network, gateway, broadcast, kept; four are free.
            for id in ["a", "b", "c", "d"] {
                let (_pod, attach) = sandbox(&dir, id);
                let got = second.attach(attach).await.expect("attaches");
                assert_ne!(got.ips, kept.ips);
            }
            let (_pod, attach) = sandbox(&dir, "e");
            let full = second.attach(attach).await.expect_err("is full");
            assert_eq!(
                full.to_string(),
                "subnet 10.77.0.0/29: all 5 addresses are in use"
            );
            assert_eq!(shell("ip -o link show type veth").lines().count(), 5);
        },
    );
}

#[test]
fn an_attach_that_fails_half_way_leaves_nothing() {
    isolated(
        "an_attach_that_fails_half_way_leaves_nothing",
        async |dir| {
            let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
            // An interface of that name makes the second half fail, a path that is no namespace the first.
            let (pod, attach) = sandbox(&dir, "one");
            in_pod(&pod, "ip link add eth0 type veth peer name eth1");
            let error = network
                .attach(attach.clone())
                .await
                .expect_err("fails")
                .to_string();
            assert!(error.starts_with("create veth pair veth"), "{error}");
            let missing = dir.join("missing");
            let gone = cni_shim::Attach {
                sandbox_id: "two".into(),
                netns: missing,
                ..attach.clone()
            };
            assert!(network.attach(gone).await.is_err());

            assert_eq!(shell("ip -o link show type veth"), "");
            assert_eq!(
                std::fs::read_dir(dir.join("state/attachments"))
                    .expect("lists")
                    .count(),
                0
            );
            in_pod(&pod, "ip link del eth0");
            network
                .attach(attach.clone())
                .await
                .expect("attaches after all");
            let twice = network.attach(attach).await.expect_err("is attached");
            assert!(matches!(twice, NetworkError::AlreadyAttached(_)));
        },
    );
}

#[test]
fn a_bridge_deleted_by_hand_is_made_again_and_a_foreign_one_is_refused() {
    isolated(
        "a_bridge_deleted_by_hand_is_made_again_and_a_foreign_one_is_refused",
        async |dir| {
            let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
            network.status().await.expect("is ready");
            shell("ip link del cairn0");
            let (_pod, attach) = sandbox(&dir, "one");
            let attached = network.attach(attach).await.expect("attaches");
            assert!(ping(attached.ips[0]));

            let other = Network::new(config(&dir.join("other"), &["10.88.0.0/24"])).expect("opens");
            let refused = other
                .status()
                .await
                .expect_err("the bridge has another subnet");
            assert_eq!(refused.reason, "BridgeInUse");
            shell("ip link del cairn0; ip link add cairn0 type veth peer name up1");
            let refused = network.status().await.expect_err("is not a bridge");
            assert_eq!(refused.reason, "BridgeNameTaken");
        },
    );
}

#[test]
fn two_daemons_on_one_machine_do_not_touch_each_other() {
    isolated(
        "two_daemons_on_one_machine_do_not_touch_each_other",
        async |dir| {
            let one = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
            let mut theirs = config(&dir.join("two"), &["10.78.0.0/24"]);
            let bridge = theirs.bridge.as_mut().expect("a bridge");
            (bridge.name, bridge.table) = ("cairn1".into(), "cairn1".into());
            let (_pod, attach) = sandbox(&dir, "a");
            let first = one.attach(attach).await.expect("attaches");
            let two = Network::new(theirs).expect("opens");
            let (_pod, attach) = sandbox(&dir, "b");
            let second = two.attach(attach).await.expect("attaches");
            two.gc(&HashSet::new()).await.expect("collects its own");
            assert!(
                ping(first.ips[0])
                    && !try_shell(&format!("busybox ping -c 1 -W 1 {}", second.ips[0])).0
            );
            assert!(shell("nft list tables").contains("cairn0"));
        },
    );
}

#[test]
fn many_pods_at_once_get_different_addresses() {
    isolated("many_pods_at_once_get_different_addresses", async |dir| {
        let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
        let tasks: Vec<_> = (0..24)
            .map(|number| {
                let (_pod, attach) = sandbox(&dir, &format!("pod-{number}"));
                let network = network.clone();
                tokio::spawn(async move { network.attach(attach).await })
            })
            .collect();
        let mut ips = HashSet::new();
        for task in tasks {
            let attached = task.await.expect("no panic").expect("attaches");
            assert!(ips.insert(attached.ips[0]) && ping(attached.ips[0]));
        }
        network.gc(&HashSet::new()).await.expect("collects");
        assert_eq!(shell("ip -o link show type veth"), "");
    });
}

#[test]
fn a_daemon_killed_at_any_moment_leaves_nothing_that_its_successor_does_not_collect() {
    isolated(
        "a_daemon_killed_at_any_moment_leaves_nothing_that_its_successor_does_not_collect",
        async |dir| {
            let mut config = config(&dir, &["10.99.0.0/16"]);
            let bridge = config.bridge.as_mut().expect("a bridge");
            (bridge.name, bridge.table) = ("bench0".into(), "bench0".into());
            let program = helper().program.with_file_name("bench");
            let mut interrupted = 0;
            let mount_points = || {
                let table = shell("cat /proc/self/mountinfo");
                let points = table.lines().filter_map(|line| line.split(' ').nth(4));
                points.map(str::to_owned).collect::<HashSet<String>>()
            };
            let before = mount_points();
            for moment in 0..40 {
                let mut daemon = Command::new(&program)
                    .arg("1000")
                    .arg(&dir)
                    .stdout(Stdio::null())
                    .spawn()
                    .expect("starts");
                let records =
                    || std::fs::read_dir(dir.join("state/attachments")).map_or(0, Iterator::count);
                // From its first pod on it works without a pause; how long it takes to get there
                // is the machine's affair.
                support::eventually("the daemon has a pod", || records() > 0).await;
                // Not waiting for anything: the moment of death is what is varied.
                tokio::time::sleep(Duration::from_micros(moment * 700)).await;
                daemon.kill().expect("kills");
                daemon.wait().expect("reaps");

                interrupted += records();
                let successor = Network::new(config.clone()).expect("opens");
                successor.status().await.expect("is ready");
                successor.gc(&HashSet::new()).await.expect("collects");
                for pins in std::fs::read_dir(dir.join("netns")).into_iter().flatten() {
                    unpin(&pins.expect("lists").path()).expect("unpins");
                }
                support::eventually("no link is left", || {
                    shell("ip -o link show type veth").is_empty()
                })
                .await;
                assert_eq!(
                    std::fs::read_dir(dir.join("state/attachments"))
                        .expect("lists")
                        .count(),
                    0
                );
                // The machine's own, such as other runtimes' namespaces, came along with this test's copy of its mounts.
                let now = mount_points();
                let left: Vec<_> = now.difference(&before).collect();
                assert!(left.is_empty(), "still mounted: {left:?}");
            }
            assert!(
                interrupted > 0,
                "no kill met a pod half-way: the moments are badly chosen"
            );
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
            // Received by the node itself: the flow is now known without any rewriting.
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

#[test]
fn parameters_of_the_interface_are_set_once_it_exists_and_its_traffic_is_counted() {
    isolated(
        "parameters_of_the_interface_are_set_once_it_exists_and_its_traffic_is_counted",
        async |dir| {
            let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
            let (pod, mut attach) = sandbox(&dir, "one");
            attach.sysctls = vec![("net.ipv4.conf.eth0.log_martians".into(), "1".into())];
            let attached = network.attach(attach.clone()).await.expect("attaches");
            assert_eq!(
                in_pod(&pod, "cat /proc/sys/net/ipv4/conf/eth0/log_martians").trim(),
                "1"
            );

            assert!(ping(attached.ips[0]));
            let links = cni_shim::namespaces::interfaces(&attach.netns).expect("lists");
            let eth0 = links
                .iter()
                .find(|link| link.name == "eth0")
                .expect("has eth0");
            assert!(
                eth0.up && eth0.counters.rx_packets > 0 && eth0.counters.tx_bytes > 0,
                "{links:?}"
            );
            network.detach("one").await.expect("detaches");

            attach.sysctls[0].1 = "many".into();
            let error = network
                .attach(attach)
                .await
                .expect_err("no such value")
                .to_string();
            assert!(
                error.starts_with("sysctl net.ipv4.conf.eth0.log_martians"),
                "{error}"
            );
            assert_eq!(shell("ip -o link show type veth"), "");
            assert_eq!(
                std::fs::read_dir(dir.join("state/attachments"))
                    .expect("lists")
                    .count(),
                0
            );
        },
    );
}

#[test]
fn the_bridge_can_be_taken_off_the_node_but_not_from_under_a_pod() {
    isolated(
        "the_bridge_can_be_taken_off_the_node_but_not_from_under_a_pod",
        async |dir| {
            let network =
                Network::new(config(&dir, &["10.77.0.0/24", "fd77::/64"])).expect("opens");
            let (_pod, attach) = sandbox(&dir, "one");
            network.attach(attach.clone()).await.expect("attaches");
            let refused = network
                .remove_bridge()
                .await
                .expect_err("is in use")
                .to_string();
            assert_eq!(refused, "the bridge is in use by 1 sandboxes");
            network.detach("one").await.expect("detaches");
            network.remove_bridge().await.expect("removes");
            network.remove_bridge().await.expect("again is no error");
            assert_eq!(shell("nft list ruleset; ip -o link show type bridge"), "");
            let again = network.attach(attach).await.expect("attaches");
            assert!(ping(again.ips[0]));
        },
    );
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
            let mac = attached.mac.expect("a hardware address");
            let own = [
                "own-ip",
                "own-arp",
                "own-ip6",
                "own-neighbour",
                "unspecified-solicitation",
            ];
            let heard = || heard_frames(&mallory, &victim, &mac, &attached.ips);

            assert_eq!(heard(), [&own[..], &["end"]].concat());
            for ip in &victims {
                in_pod(&mallory, &format!("busybox ping -c 1 -W 2 {ip}"));
                assert!(ping(*ip), "the node reaches the pods as before");
            }
            let accepts = in_pod(&victim, "cat /proc/sys/net/ipv6/conf/eth0/accept_ra");
            assert_eq!(accepts.trim(), "0");

            // The check survives a restart with other pods there, and a flush.
            drop(network);
            let network = Network::new(config(&dir, &subnets)).expect("opens");
            network.status().await.expect("is ready");
            assert_eq!(heard(), [&own[..], &["end"]].concat());
            shell("nft flush ruleset");
            network.status().await.expect("is ready");
            assert_eq!(heard(), [&own[..], &["end"]].concat());

            // Without the check every one of them arrives: it was the check that stopped them.
            shell("nft flush chain bridge cairn0 spoof_check");
            assert_eq!(heard().len(), 16);

            network.detach("mallory").await.expect("detaches");
            network.detach("victim").await.expect("detaches");
            let left = shell("nft list table bridge cairn0");
            assert!(!left.contains("elements"), "{left}");
        },
    );
}

/// The names of `tests/frames.py` that reach `victim` when `mallory` sends all of them.
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
            // Switched on, it holds for the pods that are there.
            drop(network);
            let network = Network::new(config(&dir, &["10.77.0.0/24"])).expect("opens");
            network.status().await.expect("is ready");
            assert!(shell("nft list set bridge cairn0 addresses4").contains("10.77.0.2"));
            drop(network);
            // Switched off again, its table goes.
            let mut open = config(&dir, &["10.77.0.0/24"]);
            open.bridge.as_mut().expect("a bridge").spoof_check = false;
            let network = Network::new(open).expect("opens");
            network.status().await.expect("is ready");
            assert!(!shell("nft list tables").contains("bridge"));
            assert!(ping(attached.ips[0]));
        },
    );
}

//! The built-in bridge on the kernel, checked with `ip`, `nft` and `ping`.

mod support;

use std::collections::HashSet;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use cni_shim::namespaces::unpin;
use cni_shim::{Network, NetworkError};
use support::{
    config, echo_in_pod, helper, in_pod, isolated, pin_dir, ping, port, sandbox, say, shell,
    try_shell,
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
            // The state after a kill between the record and the links.
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
                .gc(|| HashSet::from(["kept".to_owned()]))
                .await
                .expect("collects");
            assert_eq!(shell("ip -o link show type veth").lines().count(), 1);
            assert!(ping(kept.ips[0]));
            let echo = echo_in_pod(&pod, "0.0.0.0:80");
            say("127.0.0.1:8080", "still").expect("the host port is there again");
            echo.join().expect("ends");

            // 8 addresses: network, gateway, broadcast, one kept; four are free.
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
            // An interface of that name makes the second half fail; a path that is not a namespace
            // makes the first half fail.
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
            two.gc(HashSet::new).await.expect("collects its own");
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
        network.gc(HashSet::new).await.expect("collects");
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
                // From the first pod on the daemon works without a pause; the time to that point
                // depends on the machine.
                support::eventually("the daemon has a pod", || records() > 0).await;
                // Not a wait for a condition: the moment of the kill varies.
                tokio::time::sleep(Duration::from_micros(moment * 700)).await;
                daemon.kill().expect("kills");
                daemon.wait().expect("reaps");

                interrupted += records();
                let successor = Network::new(config.clone()).expect("opens");
                successor.status().await.expect("is ready");
                successor.gc(HashSet::new).await.expect("collects");
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
                // The machine's own mounts, such as other runtimes' namespaces, are in this test's
                // copy of its mounts.
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
            let eth0 = links.iter().find(|(name, _)| name == "eth0");
            let (_, traffic) = eth0.expect("has eth0");
            assert!(traffic.rx_packets > 0 && traffic.tx_bytes > 0, "{links:?}");
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

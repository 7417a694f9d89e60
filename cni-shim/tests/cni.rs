//! CNI with the programs of containernetworking/plugins, and with programs that misbehave.

mod support;

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use cni_shim::namespaces::{in_netns, unpin};
use cni_shim::{Config, Network, PortMapping, Protocol};
use serde_json::{Value, json};
use support::{
    config, echo_in_pod, files, in_pod, isolated, pin_dir, ping, real_plugins, sandbox, say,
    script, shell, write_list,
};

/// bridge, host-local, portmap and firewall, as on a node.
fn real_list(dir: &Path, version: &str) -> Value {
    let mut list = json!({
        "cniVersion": version,
        "name": "real",
        "plugins": [
            {
                "type": "bridge", "bridge": "cnibr0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
                "ipam": {
                    "type": "host-local", "dataDir": dir.join("host-local"),
                    "ranges": [[{"subnet": "10.66.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]
                }
            },
            { "type": "portmap", "capabilities": {"portMappings": true}, "snat": true, "backend": "nftables" },
        ]
    });
    if version != "0.3.1" {
        // This plugin supports no older version.
        list["plugins"]
            .as_array_mut()
            .expect("a list")
            .push(json!({ "type": "firewall" }));
    }
    list
}

#[test]
fn real_plugins_of_every_version_give_an_address_and_a_host_port_and_take_them_back() {
    isolated(
        "real_plugins_of_every_version_give_an_address_and_a_host_port_and_take_them_back",
        async |dir| {
            let Some(plugins) = real_plugins() else {
                return;
            };
            for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
                let config = Config {
                    bin_dirs: vec![plugins.clone()],
                    ..config(&dir, &[])
                };
                let config = Config {
                    bridge: None,
                    ..config
                };
                write_list(&config, &real_list(&dir, version));
                let network = Network::new(config).expect("opens");
                network.status().await.expect("is ready");
                let (pod, mut attach) = sandbox(&dir, "one");
                let web = PortMapping {
                    host_port: 8080,
                    container_port: 80,
                    protocol: Protocol::Tcp,
                    host_ip: None,
                };
                attach.port_mappings = vec![web];

                let attached = network.attach(attach).await.expect("attaches");
                assert_eq!(attached.result["cniVersion"], version);
                assert!(attached.warnings.is_empty());
                assert!(ping(attached.ips[0]), "{version}");
                let echo = echo_in_pod(&pod, "0.0.0.0:80");
                assert!(
                    say("127.0.0.1:8080", "hello")
                        .expect("is answered")
                        .starts_with("hello")
                );
                echo.join().expect("ends");
                let cached = fs::read(dir.join("cache/results/real-one-eth0")).expect("is cached");
                let cached: Value = serde_json::from_slice(&cached).expect("is JSON");
                assert_eq!(cached["kind"], "cniCacheV1");
                assert_eq!(cached["result"], attached.result);

                network.detach("one").await.expect("detaches");
                network.detach("one").await.expect("again is no error");
                unpin(&pin_dir(&dir, "one")).expect("unpins");
                let leases = fs::read_dir(dir.join("host-local/real")).expect("lists");
                let leases = leases.filter(|file| {
                    file.as_ref()
                        .is_ok_and(|f| f.file_name().to_string_lossy().starts_with("10."))
                });
                assert_eq!(leases.count(), 0, "{version}: a lease was left");
                assert_eq!(
                    files(&dir.join("cache/results")) + files(&dir.join("state/attachments")),
                    0
                );
                assert!(!shell("nft list ruleset").contains("10.66.0."));
            }
        },
    );
}

#[test]
fn a_sandbox_whose_namespace_and_record_are_gone_is_still_taken_off_the_network() {
    isolated(
        "a_sandbox_whose_namespace_and_record_are_gone_is_still_taken_off_the_network",
        async |dir| {
            let Some(plugins) = real_plugins() else {
                return;
            };
            let config = Config {
                bin_dirs: vec![plugins],
                bridge: None,
                ..config(&dir, &[])
            };
            write_list(&config, &real_list(&dir, "1.1.0"));
            let network = Network::new(config.clone()).expect("opens");
            for id in ["rebooted", "orphan", "kept"] {
                let (_pod, attach) = sandbox(&dir, id);
                network.attach(attach).await.expect("attaches");
            }
            let leases = || {
                let all = fs::read_dir(dir.join("host-local/real")).expect("lists");
                all.filter(|file| {
                    file.as_ref()
                        .is_ok_and(|f| f.file_name().to_string_lossy().starts_with("10."))
                })
                .count()
            };
            assert_eq!(leases(), 3);
            // A reboot: namespaces and the volatile state are removed, a plain file may remain; the
            // configuration has changed.
            drop(network);
            for id in ["rebooted", "orphan"] {
                unpin(&pin_dir(&dir, id)).expect("unpins");
                fs::remove_file(dir.join(format!("state/attachments/{id}.json"))).expect("removes");
            }
            fs::create_dir_all(pin_dir(&dir, "rebooted")).expect("makes");
            fs::write(pin_dir(&dir, "rebooted").join("net"), "").expect("writes");
            let network = Network::new(config).expect("opens");
            network
                .detach("rebooted")
                .await
                .expect("detaches from the cache");
            assert_eq!(leases(), 2);
            network
                .gc(|| HashSet::from(["kept".to_owned()]))
                .await
                .expect("collects");
            assert_eq!(leases(), 1);
            assert!(dir.join("cache/results/real-kept-eth0").exists());
        },
    );
}

#[test]
fn a_pod_keeps_the_configuration_it_was_added_with() {
    isolated(
        "a_pod_keeps_the_configuration_it_was_added_with",
        async |dir| {
            let config = config(&dir, &["10.77.0.0/24"]);
            let deleted = dir.join("deleted");
            let result = r#"{"ips":[{"address":"10.5.0.2/24"}]}"#;
            let old = format!(
                "[ $CNI_COMMAND = DEL ] && cat > {}; echo '{result}'",
                deleted.display()
            );
            script(&config, "old", &old);
            write_list(
                &config,
                &json!({"cniVersion": "1.0.0", "name": "old", "plugins": [{"type": "old", "k": 1}]}),
            );
            let network = Network::new(config.clone()).expect("opens");
            let (_pod, attach) = sandbox(&dir, "one");
            assert_eq!(
                network.attach(attach).await.expect("attaches").network,
                "old"
            );

            // Without the configuration, the built-in bridge serves the next pod at once.
            fs::remove_dir_all(&config.conf_dir).expect("removes");
            let (_pod, attach) = sandbox(&dir, "two");
            assert_eq!(
                network.attach(attach).await.expect("attaches").network,
                "cairn0"
            );

            network.detach("one").await.expect("detaches");
            let input: Value =
                serde_json::from_slice(&fs::read(deleted).expect("was called")).expect("is JSON");
            assert_eq!((&input["name"], &input["k"]), (&json!("old"), &json!(1)));
            assert_eq!(input["prevResult"]["ips"][0]["address"], "10.5.0.2/24");
        },
    );
}

#[test]
fn readiness_follows_the_configuration_the_programs_and_their_status() {
    isolated(
        "readiness_follows_the_configuration_the_programs_and_their_status",
        async |dir| {
            let config = Config {
                bridge: None,
                ..config(&dir, &[])
            };
            let network = Network::new(config.clone()).expect("opens");
            let reason = async || {
                network
                    .status()
                    .await
                    .map_err(|why| (why.reason, why.message))
            };
            assert_eq!(
                reason().await.expect_err("nothing is there").0,
                "NetworkNotConfigured"
            );

            fs::create_dir_all(&config.conf_dir).expect("makes");
            fs::write(config.conf_dir.join("10-a.conflist"), "{").expect("writes");
            let (word, message) = reason().await.expect_err("invalid");
            assert!(
                word == "InvalidCniConfiguration" && message.contains("10-a.conflist"),
                "{message}"
            );

            let plugins = json!([{"type": "p", "ipam": {"type": "pool"}}]);
            write_list(
                &config,
                &json!({"cniVersion": "1.1.0", "name": "n", "plugins": plugins}),
            );
            script(
                &config,
                "p",
                r#"[ -e "$0.sick" ] || exit 0; echo '{"code":50,"msg":"no daemon"}'; exit 1"#,
            );
            let (_, message) = reason().await.expect_err("a program is missing");
            assert!(
                message.starts_with("CNI plugin pool: not found in"),
                "{message}"
            );

            script(&config, "pool", "exit 0");
            let sick = config.bin_dirs[0].join("p.sick");
            fs::write(&sick, "").expect("writes");
            let (_, message) = reason().await.expect_err("STATUS fails");
            assert!(message.contains("code 50: no daemon"), "{message}");

            fs::remove_file(&sick).expect("removes");
            eventually_ready(&network).await;
        },
    );
}

#[test]
fn sockets_opened_in_a_pods_namespace_stay_there() {
    isolated(
        "sockets_opened_in_a_pods_namespace_stay_there",
        async |dir| {
            let (pod, attach) = sandbox(&dir, "one");
            let listener = in_netns(&attach.netns, || std::net::TcpListener::bind("127.0.0.1:0"));
            let address = listener
                .expect("enters")
                .expect("listens")
                .local_addr()
                .expect("an address");
            assert!(std::net::TcpStream::connect(address).is_err());
            assert!(in_pod(&pod, "cat /proc/net/dev").contains("lo:"));
        },
    );
}

#[test]
fn one_sandbox_has_one_operation_at_a_time_and_others_do_not_wait_for_it() {
    isolated(
        "one_sandbox_has_one_operation_at_a_time_and_others_do_not_wait_for_it",
        async |dir| {
            let config = config(&dir, &["10.77.0.0/24"]);
            let (log, gate) = (dir.join("log"), dir.join("gate"));
            let result = r#"{"ips":[{"address":"10.5.0.2/24"}]}"#;
            // The plugin of "held" ends only after the gate exists.
            let body = format!(
                "cat > /dev/null; echo start $CNI_CONTAINERID >> {log}; \
             while [ $CNI_CONTAINERID = held ] && [ ! -e {gate} ]; do busybox usleep 5000; done; \
             echo end $CNI_CONTAINERID >> {log}; [ $CNI_COMMAND = DEL ] || echo '{result}'",
                log = log.display(),
                gate = gate.display()
            );
            script(&config, "slow", &body);
            write_list(
                &config,
                &json!({"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "slow"}]}),
            );
            let network = Network::new(config).expect("opens");
            let (_pod, held) = sandbox(&dir, "held");
            let attach = tokio::spawn({
                let network = network.clone();
                async move { network.attach(held).await }
            });
            support::eventually("the plugin runs", || log.exists()).await;
            let detaches: Vec<_> = (0..3)
                .map(|_| {
                    let network = network.clone();
                    tokio::spawn(async move { network.detach("held").await })
                })
                .collect();
            let (_pod, other) = sandbox(&dir, "other");
            network
                .attach(other)
                .await
                .expect("does not wait for the held one");

            fs::write(&gate, "").expect("writes");
            attach.await.expect("no panic").expect("attaches");
            for detach in detaches {
                detach.await.expect("no panic").expect("detaches");
            }
            let log = fs::read_to_string(&log).expect("was called");
            let held: Vec<&str> = log.lines().filter(|line| line.ends_with("held")).collect();
            // One ADD and one DEL: the later detaches have no work left.
            assert_eq!(held, ["start held", "end held", "start held", "end held"]);
        },
    );
}

/// Waits for a ready network: a failed STATUS is cached for a moment.
async fn eventually_ready(network: &Network) {
    for _ in 0..200 {
        if network.status().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never ready: {:?}", network.status().await);
}

#[test]
fn a_pod_waits_for_a_configuration_while_there_is_none() {
    isolated(
        "a_pod_waits_for_a_configuration_while_there_is_none",
        async |dir| {
            let mut config = config(&dir, &[]);
            config.bridge = None;
            let (_pod, attach) = sandbox(&dir, "early");
            let refused = Network::new(config.clone()).expect("opens");
            let refused = refused.attach(attach.clone()).await.expect_err("no wait");
            assert_eq!(
                refused.to_string(),
                format!(
                    "NetworkNotConfigured: no CNI configuration in {} and no built-in bridge",
                    config.conf_dir.display()
                )
            );

            config.ready_timeout = Duration::from_secs(30);
            let network = Network::new(config.clone()).expect("opens");
            let waiting = tokio::spawn(async move { network.attach(attach).await });
            script(
                &config,
                "p",
                r#"echo '{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.2/24"}]}'"#,
            );
            write_list(
                &config,
                &json!({"cniVersion": "1.0.0", "name": "late", "plugins": [{"type": "p"}]}),
            );
            let attached = waiting.await.expect("no panic").expect("attaches");
            assert_eq!(attached.network, "late");
        },
    );
}

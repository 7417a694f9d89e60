//! STATUS and GC, capability arguments, and plugins that request a retry: with programs that print
//! their input.

mod support;

use std::collections::HashSet;
use std::fs;
use std::time::{Duration, Instant};

use cni_shim::namespaces::unpin;
use cni_shim::{Config, Dns, Network};
use serde_json::{Value, json};
use support::{config, isolated, pin_dir, sandbox, script, write_list};

const RESULT: &str = r#"{"cniVersion":"1.1.0","ips":[{"address":"10.5.0.2/24"}]}"#;

/// Makes a script succeed at STATUS; other commands are left to the script.
const WELL: &str = r#"case $CNI_COMMAND in STATUS) exit 0;; esac"#;

fn no_bridge(dir: &std::path::Path) -> Config {
    Config {
        bridge: None,
        ..config(dir, &[])
    }
}

fn list(plugins: &Value) -> Value {
    json!({"cniVersion": "1.1.0", "name": "net", "plugins": plugins})
}

#[test]
fn a_plugin_that_says_try_again_later_is_tried_again_with_a_del_between() {
    isolated(
        "a_plugin_that_says_try_again_later_is_tried_again_with_a_del_between",
        async |dir| {
            let config = no_bridge(&dir);
            let calls = dir.join("calls");
            let calls = calls.display();
            let again = r#"{ echo '{"code":11,"msg":"no lease yet"}'; exit 1; }"#;
            let first = format!(
                "{WELL}; echo $CNI_COMMAND >> {calls}; [ $CNI_COMMAND = ADD ] && echo '{RESULT}'; exit 0"
            );
            script(&config, "first", &first);
            let second = format!(
                "{WELL}; cat >/dev/null; echo second-$CNI_COMMAND >> {calls}
                 [ $(grep -c second-$CNI_COMMAND {calls}) -ge 3 ] || {again}
                 [ $CNI_COMMAND = ADD ] && echo '{RESULT}'; exit 0"
            );
            script(&config, "second", &second);
            write_list(
                &config,
                &list(&json!([{"type": "first"}, {"type": "second"}])),
            );
            let network = Network::new(config).expect("opens");
            let (_pod, attach) = sandbox(&dir, "one");
            network
                .attach(attach)
                .await
                .expect("the third try succeeds");
            let printed = fs::read_to_string(dir.join("calls")).expect("was called");
            let printed: Vec<_> = printed.lines().collect();
            // The DELs of the second plugin request a retry twice, too.
            let attempt = ["ADD", "second-ADD"];
            let undo = ["second-DEL", "second-DEL", "second-DEL", "DEL"];
            let short = ["second-DEL", "DEL"];
            let expected = [&attempt[..], &undo, &attempt, &short, &attempt].concat();
            assert_eq!(printed, expected);
            network.detach("one").await.expect("detaches");
        },
    );
}

#[test]
fn a_plugin_that_never_stops_saying_later_fails_the_pod_by_its_name_and_in_time() {
    isolated(
        "a_plugin_that_never_stops_saying_later_fails_the_pod_by_its_name_and_in_time",
        async |dir| {
            let config = Config {
                // Four attempts and the pauses between them; the next pause would exceed the
                // remaining time.
                add_timeout: Duration::from_secs(3),
                ..no_bridge(&dir)
            };
            script(
                &config,
                "p",
                r#"[ $CNI_COMMAND = ADD ] || exit 0; echo '{"code":11,"msg":"busy"}'; exit 1"#,
            );
            write_list(&config, &list(&json!([{"type": "p"}])));
            let network = Network::new(config).expect("opens");
            let (_pod, attach) = sandbox(&dir, "one");
            let start = Instant::now();
            let error = network.attach(attach).await.expect_err("fails").to_string();
            assert_eq!(error, "CNI plugin p ADD: code 11: busy");
            assert!(start.elapsed() < Duration::from_secs(20));
            let left = fs::read_dir(dir.join("state/attachments")).expect("lists");
            assert_eq!(left.count(), 0);
        },
    );
}

#[test]
fn a_network_that_never_came_up_lets_its_pod_go_though_its_del_fails_and_is_left_to_collection() {
    isolated(
        "a_network_that_never_came_up_lets_its_pod_go_though_its_del_fails_and_is_left_to_collection",
        async |dir| {
            let config = no_bridge(&dir);
            let body = format!(
                r#"case $CNI_COMMAND in STATUS|GC) exit 0;; esac; cd {}; echo $CNI_COMMAND >> calls; [ -e $CNI_COMMAND ] || {{ echo '{{"code":100,"msg":"no agent"}}'; exit 1; }}
                 [ $CNI_COMMAND = ADD ] && echo '{RESULT}'; exit 0"#,
                dir.display()
            );
            script(&config, "p", &body);
            write_list(&config, &list(&json!([{"type": "p"}])));
            let calls = || fs::read_to_string(dir.join("calls")).expect("was called");
            let records = || {
                let left = fs::read_dir(dir.join("state/attachments"));
                left.expect("lists").count()
            };
            let network = Network::new(config.clone()).expect("opens");
            let (_pod, attach) = sandbox(&dir, "one");
            network.attach(attach).await.expect_err("no ADD");
            network.detach("one").await.expect("the pod goes");
            assert_eq!(calls(), "ADD\nDEL\n", "one round of DEL");
            let left = network.collect(HashSet::new, false).await;
            assert!(
                left[0].sandbox_id == "one" && left[0].outcome.is_err(),
                "{left:?}"
            );
            // Another daemon does not know that the DEL failed.
            let network = Network::new(config.clone()).expect("opens");
            network.detach("one").await.expect("the pod goes");
            assert_eq!(calls(), "ADD\nDEL\nDEL\nDEL\n");
            assert_eq!(records(), 1);
            fs::write(dir.join("ADD"), "").expect("a file");
            let (_pod, attach) = sandbox(&dir, "two");
            network.attach(attach).await.expect("comes up");
            // A network that came up is recorded: the result cache may lose it.
            let cached = fs::read_dir(dir.join("cache/results")).expect("lists");
            for entry in cached {
                fs::remove_file(entry.expect("an entry").path()).expect("removes");
            }
            let error = network.detach("two").await.expect_err("it was added");
            assert_eq!(error.to_string(), "CNI plugin p DEL: code 100: no agent");
            fs::write(dir.join("DEL"), "").expect("a file");
            network.detach("two").await.expect("detaches");
            // A record that cannot be removed is an error, although no ADD succeeded.
            let other = Network::new(config).expect("opens");
            let record = dir.join("state/attachments/one.json");
            let text = fs::read(&record).expect("reads");
            fs::remove_file(&record).expect("removes");
            fs::create_dir(&record).expect("a directory");
            other.detach("one").await.expect_err("the record stays");
            fs::remove_dir(&record).expect("removes");
            fs::write(&record, text).expect("writes");
            let left = network.collect(HashSet::new, false).await;
            assert!(
                left[0].sandbox_id == "one" && left[0].outcome.is_ok(),
                "{left:?}"
            );
            assert_eq!(records(), 0);
        },
    );
}

#[test]
fn plugins_that_were_ready_get_a_grace_and_others_none() {
    isolated(
        "plugins_that_were_ready_get_a_grace_and_others_none",
        async |dir| {
            let config = Config {
                status_grace: Duration::from_secs(2),
                ..no_bridge(&dir)
            };
            let sick = dir.join("sick");
            let body = format!(
                r#"[ -e {0} ] || exit 0; echo "{{\"code\":$(cat {0}),\"msg\":\"no daemon\"}}"; exit 1"#,
                sick.display()
            );
            script(&config, "p", &body);
            write_list(&config, &list(&json!([{"type": "p"}])));
            fs::write(&sick, "50").expect("writes");
            let network = Network::new(config.clone()).expect("opens");
            network.status().await.expect_err("was never ready");
            fs::remove_file(&sick).expect("removes");
            support::until("ready", async || network.status().await.is_ok()).await;

            // The next STATUS follows after five seconds, and its failure counts two seconds later.
            fs::write(&sick, "51").expect("writes");
            let ready = Instant::now();
            support::until("not ready", async || network.status().await.is_err()).await;
            assert!(ready.elapsed() >= Duration::from_secs(2));
            let why = network.status().await.expect_err("is not ready");
            assert_eq!(
                why.message,
                "CNI plugin p STATUS: code 51: no daemon; pods that run may have limited \
                 connectivity"
            );

            // Another list was not ready before.
            fs::remove_file(&sick).expect("removes");
            support::until("ready", async || network.status().await.is_ok()).await;
            fs::write(&sick, "50").expect("writes");
            let mut other = list(&json!([{"type": "p"}]));
            other["name"] = "other".into();
            write_list(&config, &other);
            network.status().await.expect_err("is another list");
        },
    );
}

#[test]
fn a_pod_waits_for_programs_that_are_not_there_yet_and_is_told_what_it_waited_for() {
    isolated(
        "a_pod_waits_for_programs_that_are_not_there_yet_and_is_told_what_it_waited_for",
        async |dir| {
            let config = Config {
                ready_timeout: Duration::from_millis(300),
                ..no_bridge(&dir)
            };
            write_list(&config, &list(&json!([{"type": "p"}])));
            let (_pod, attach) = sandbox(&dir, "one");
            let network = Network::new(config.clone()).expect("opens");
            let error = network.attach(attach.clone()).await.expect_err("fails");
            assert!(error.is_not_ready());
            let text = error.to_string();
            assert!(
                text.starts_with("NetworkPluginNotReady: ") && text.contains("p: not found in"),
                "{text}"
            );

            let network = Network::new(Config {
                ready_timeout: Duration::from_secs(30),
                ..config.clone()
            });
            let network = network.expect("opens");
            let waiting = tokio::spawn(async move { network.attach(attach).await });
            script(&config, "p", &format!("{WELL}; echo '{RESULT}'"));
            waiting.await.expect("no panic").expect("attaches");
        },
    );
}

#[test]
fn garbage_collection_names_whoever_is_to_keep_what_it_has_and_nobody_else() {
    isolated(
        "garbage_collection_names_whoever_is_to_keep_what_it_has_and_nobody_else",
        async |dir| {
            let config = no_bridge(&dir);
            let seen = dir.join("gc");
            let body = format!(
                "case $CNI_COMMAND in ADD) echo '{RESULT}';; GC) cat > {};; DEL) echo $CNI_CONTAINERID >> {};; esac",
                seen.display(),
                dir.join("dels").display()
            );
            script(&config, "p", &body);
            write_list(&config, &list(&json!([{"type": "p"}])));
            let network = Network::new(config.clone()).expect("opens");
            let mut pods = Vec::new();
            for id in ["kept", "held", "gone", "lost"] {
                let (pod, attach) = sandbox(&dir, id);
                network.attach(attach).await.expect("attaches");
                pods.push(pod);
            }
            drop(network);
            let records = dir.join("state/attachments");
            // An unreadable record, one lost with its pod, and a pod of another runtime.
            fs::write(records.join("held.json"), "{").expect("writes");
            fs::remove_file(records.join("lost.json")).expect("removes");
            unpin(&pin_dir(&dir, "lost")).expect("unpins");
            let cache = dir.join("cache/results");
            let entry = fs::read_to_string(cache.join("net-kept-eth0")).expect("is cached");
            let mut theirs: Value = serde_json::from_str(&entry).expect("is JSON");
            theirs["containerId"] = "theirs".into();
            theirs["ifName"] = "net1".into();
            fs::write(cache.join("net-theirs-net1"), theirs.to_string()).expect("writes");

            let network = Network::new(config).expect("opens");
            let valid: HashSet<String> = ["kept", "held"].map(str::to_owned).into();
            network.gc(|| valid.clone()).await.expect("collects");

            let asked: Value =
                serde_json::from_slice(&fs::read(&seen).expect("was asked")).expect("is JSON");
            let mut named: Vec<String> = asked["cni.dev/valid-attachments"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|one| format!("{}/{}", one["containerID"], one["ifname"]).replace('"', ""))
                .collect();
            named.sort();
            assert_eq!(named, ["held/eth0", "kept/eth0", "theirs/net1"]);
            assert_eq!(
                asked["cni.dev/valid-attachments"],
                asked["cni.dev/attachments"]
            );
            let mut deleted: Vec<_> = fs::read_to_string(dir.join("dels"))
                .expect("some were deleted")
                .lines()
                .map(str::to_owned)
                .collect();
            deleted.sort();
            assert_eq!(deleted, ["gone", "lost"]);
            assert!(records.join("held.json").exists() && records.join("kept.json").exists());
        },
    );
}

#[test]
fn every_capability_goes_to_the_plugin_that_declares_it_and_files_beside_a_list_are_read_unless_it_forbids_them()
 {
    isolated(
        "every_capability_goes_to_the_plugin_that_declares_it_and_files_beside_a_list_are_read_unless_it_forbids_them",
        async |dir| {
            let config = no_bridge(&dir);
            let seen = dir.join("seen");
            let body = format!(
                "{WELL}; cat > {}.$CNI_COMMAND; [ $CNI_COMMAND = DEL ] || echo '{RESULT}'",
                seen.display()
            );
            script(&config, "p", &body);
            let beside = config.conf_dir.join("net");
            fs::create_dir_all(&beside).expect("makes");
            let more = format!(
                "{WELL}; [ $CNI_COMMAND = DEL ] || echo '{RESULT}' | tee {}.more",
                seen.display()
            );
            script(&config, "more", &more);
            fs::write(beside.join("50-more.conf"), r#"{"type":"more"}"#).expect("writes");
            let all = json!({"portMappings": true, "bandwidth": true, "dns": true, "cgroupPath": true,
                "io.kubernetes.cri.pod-annotations": true, "mac": true});
            let mut net = list(&json!([{"type": "p", "capabilities": all}]));
            net["loadOnlyInlinedPlugins"] = true.into();
            write_list(&config, &net);
            let network = Network::new(config.clone()).expect("opens");
            let (_pod, mut attach) = sandbox(&dir, "one");
            attach.cgroup_parent = Some("/kubepods/pod1".into());
            attach.dns = Some(Dns {
                servers: vec!["10.0.0.10".into()],
                searches: vec!["svc.local".into()],
                options: vec!["ndots:5".into()],
            });
            attach.annotations = [
                ("kubernetes.io/ingress-bandwidth", "1M"),
                ("kubernetes.io/egress-bandwidth", "2Mi"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
            network.attach(attach.clone()).await.expect("attaches");

            let input = |verb: &str| {
                let text = fs::read(format!("{}.{verb}", seen.display())).expect("was called");
                serde_json::from_slice::<Value>(&text).expect("is JSON")
            };
            let offered = json!({
                "bandwidth": {"ingressRate": 1_000_000, "ingressBurst": u32::MAX,
                    "egressRate": 2_097_152, "egressBurst": u32::MAX},
                "dns": {"servers": ["10.0.0.10"], "searches": ["svc.local"], "options": ["ndots:5"]},
                "cgroupPath": "/kubepods/pod1",
                "io.kubernetes.cri.pod-annotations": attach.annotations,
            });
            assert_eq!(input("ADD")["runtimeConfig"], offered);
            assert!(!dir.join("seen.more").exists(), "the list forbids it");
            network.detach("one").await.expect("detaches");
            assert_eq!(input("DEL")["runtimeConfig"], offered);
            assert_eq!(
                input("DEL")["prevResult"]["ips"][0]["address"],
                "10.5.0.2/24"
            );

            net["loadOnlyInlinedPlugins"] = false.into();
            write_list(&config, &net);
            network.attach(attach.clone()).await.expect("attaches");
            assert!(dir.join("seen.more").exists());
            network.detach("one").await.expect("detaches");

            let limit = "kubernetes.io/egress-bandwidth".to_owned();
            attach.annotations.insert(limit, "fast".into());
            let error = network.attach(attach).await.expect_err("is no quantity");
            assert!(
                error
                    .to_string()
                    .contains("kubernetes.io/egress-bandwidth: invalid quantity \"fast\""),
                "{error}"
            );
            assert_eq!(
                fs::read_dir(dir.join("state/attachments"))
                    .expect("lists")
                    .count(),
                0
            );
        },
    );
}

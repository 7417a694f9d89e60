//! `cairn-bridge`, as a runtime calls it: by `cnitool`, the specification's own program, and by its environment and
//! standard input.

mod support;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use support::{echo_in_pod, in_pod, isolated, ping, real_plugins, sandbox, say, shell, try_shell};

fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_cairn-bridge").into()
}

fn config(dir: &Path) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net", "type": "cairn-bridge", "dataDir": dir.join("data"),
        "subnets": ["10.91.0.0/24", "fd91::/64"],
    })
}

/// One call, for a container of this id, at the namespace.
fn call(verb: &str, config: &Value, id: &str, netns: &str) -> Output {
    let mut child = Command::new(program())
        .env_clear()
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", id)
        .env("CNI_NETNS", netns)
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", "/opt/cni/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut input = child.stdin.take().expect("a pipe");
    input
        .write_all(config.to_string().as_bytes())
        .expect("is read");
    drop(input);
    child.wait_with_output().expect("it ends")
}

fn well(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    if text.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(&text).expect("is JSON")
    }
}

/// The code and message of a failure.
fn fault(output: &Output) -> (u64, String) {
    assert_eq!(output.status.code(), Some(1));
    let told: Value = serde_json::from_slice(&output.stdout).expect("is JSON");
    assert!(told["cniVersion"].is_string());
    let message = told["msg"].as_str().expect("a message").to_owned();
    (told["code"].as_u64().expect("a code"), message)
}

fn left(dir: &Path) -> usize {
    fs::read_dir(dir.join("data/net/attachments")).map_or(0, Iterator::count)
}

#[test]
fn cnitool_adds_checks_and_deletes_by_a_list_of_it_alone() {
    isolated(
        "cnitool_adds_checks_and_deletes_by_a_list_of_it_alone",
        async |dir| {
            let Some(tools) = real_plugins() else {
                return;
            };
            if !tools.join("cnitool").exists() {
                return eprintln!("skipped: no cnitool");
            }
            // Its result cache lies at a fixed place.
            shell("mount -t tmpfs none /var/lib");
            try_shell("sysctl -qw net.bridge.bridge-nf-call-ip6tables=0");
            let (lists, programs) = (dir.join("net.d"), dir.join("bin"));
            fs::create_dir_all(&lists).expect("is made");
            fs::create_dir_all(&programs).expect("is made");
            fs::copy(program(), programs.join("cairn-bridge")).expect("is copied");
            let mut plugin = config(&dir);
            plugin["capabilities"] = json!({"portMappings": true, "bandwidth": true});
            let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [plugin]});
            fs::write(lists.join("10-net.conflist"), list.to_string()).expect("is written");
            let (pod, _) = sandbox(&dir, "one");
            let netns = pod
                .net
                .clone()
                .expect("a network namespace")
                .display()
                .to_string();
            let cnitool = |verb: &str| {
                let capabilities = json!({
                    "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "TCP", "hostIP": ""}],
                    "bandwidth": {"ingressRate": 800_000_000, "ingressBurst": 4_294_967_295_u64},
                });
                let output = Command::new(tools.join("cnitool"))
                    .args([verb, "net", &netns])
                    .env("CNI_PATH", &programs)
                    .env("NETCONFPATH", &lists)
                    .env("CAP_ARGS", capabilities.to_string())
                    .output()
                    .expect("cnitool starts");
                let text = [&output.stdout[..], &output.stderr[..]].concat();
                (
                    output.status.success(),
                    String::from_utf8_lossy(&text).into_owned(),
                )
            };
            let works = |verb: &str| {
                let (well, text) = cnitool(verb);
                assert!(well, "{verb}: {text}");
                text
            };

            works("status");
            let result: Value = serde_json::from_str(&works("add")).expect("a result");
            assert_eq!(result["cniVersion"], "1.1.0");
            assert_eq!(result["ips"][0]["address"], "10.91.0.2/24");
            assert_eq!(result["ips"][1]["address"], "fd91::2/64");
            assert_eq!(result["interfaces"][2]["sandbox"], netns);
            assert!(ping("10.91.0.2".parse().expect("an address")));
            for address in ["127.0.0.1:8080", "[::1]:8080"] {
                let echo = echo_in_pod(&pod, "[::]:80");
                say(address, "hello").expect("is answered");
                echo.join().expect("ends");
            }
            assert!(shell("tc qdisc").contains("tbf"));
            works("check");
            in_pod(&pod, "ip route del default");
            let (well, text) = cnitool("check");
            assert!(
                !well && text.contains("no default route via 10.91.0.1"),
                "{text}"
            );
            works("del");
            works("del");
            assert_eq!(left(&dir), 0);
            assert!(!shell("ip -br link").contains("veth"));
            assert!(!shell("nft list ruleset").contains("10.91.0.2"));
            let (well, _) = cnitool("check");
            assert!(!well, "there is nothing to check");

            // It deletes what its cache has, and then names to the plugin nobody at all, which is not the same as none.
            works("add");
            let (well, text) = cnitool("gc");
            assert!(
                !well && text.contains("valid-attachments is missing"),
                "{text}"
            );
            assert_eq!(left(&dir), 0);
        },
    );
}

#[test]
fn calls_at_once_get_different_addresses_and_gc_leaves_those_it_is_told_of() {
    isolated(
        "calls_at_once_get_different_addresses_and_gc_leaves_those_it_is_told_of",
        async |dir| {
            let config = config(&dir);
            let pods: Vec<_> = (0..12)
                .map(|n| sandbox(&dir, &format!("pod{n}")).0)
                .collect();
            let mut addresses: Vec<String> = std::thread::scope(|scope| {
                let calls: Vec<_> = pods
                    .iter()
                    .enumerate()
                    .map(|(n, pod)| {
                        let netns = pod.net.as_ref().expect("a namespace").display().to_string();
                        let config = &config;
                        scope.spawn(move || well(&call("ADD", config, &format!("pod{n}"), &netns)))
                    })
                    .collect();
                let results = calls.into_iter().map(|call| call.join().expect("no panic"));
                results
                    .map(|one| one["ips"][0]["address"].to_string())
                    .collect()
            });
            addresses.sort();
            addresses.dedup();
            assert_eq!((addresses.len(), left(&dir)), (12, 12));

            let mut gc = config.clone();
            let nobody = call("GC", &gc, "", "");
            assert_eq!(fault(&nobody).0, 7, "no list is not an empty one");
            gc["cni.dev/valid-attachments"] = json!([
                {"containerID": "pod3", "ifname": "eth0"},
                {"containerID": "pod4", "ifname": "net1"},
            ]);
            well(&call("GC", &gc, "", ""));
            assert_eq!(left(&dir), 1);
            let links = shell("ip -br link show type veth");
            assert_eq!(links.lines().count(), 1, "{links}");
            let netns = pods[3]
                .net
                .as_ref()
                .expect("a namespace")
                .display()
                .to_string();
            well(&call("CHECK", &config, "pod3", &netns));
            assert_eq!(fault(&call("CHECK", &config, "pod4", &netns)).0, 3);
        },
    );
}

#[test]
fn a_call_that_died_and_a_bridge_that_is_gone_are_made_up_for_by_the_next() {
    isolated(
        "a_call_that_died_and_a_bridge_that_is_gone_are_made_up_for_by_the_next",
        async |dir| {
            let mut config = config(&dir);
            config["subnets"] = json!(["10.91.0.0/29"]);
            let pods: Vec<_> = ["a", "b", "c", "d", "e", "f"]
                .map(|id| (id, sandbox(&dir, id).0))
                .into();
            let netns = |n: usize| {
                pods[n]
                    .1
                    .net
                    .as_ref()
                    .expect("a namespace")
                    .display()
                    .to_string()
            };
            let add = |n: usize| call("ADD", &config, pods[n].0, &netns(n));
            for n in 0..5 {
                well(&add(n));
            }
            let (code, text) = fault(&add(5));
            assert_eq!(
                (code, text.as_str()),
                (102, "subnet 10.91.0.0/29: all 5 addresses are in use")
            );
            let (code, text) = fault(&call("STATUS", &config, "", ""));
            assert_eq!(code, 50, "{text}");
            assert_eq!(fault(&add(0)).0, 7, "it is attached already");

            // A record without a link: its call was killed, or the node rebooted.
            let veth = shell("ip -br link show type veth");
            let veth = veth.split('@').next().expect("a link").to_owned();
            shell(&format!("ip link del {veth}"));
            well(&add(5));

            // A record that cannot be read keeps its address, and goes by DEL.
            let torn = dir.join("data/net/attachments/f@eth0.json");
            let text = fs::read(&torn).expect("is there");
            fs::write(&torn, &text[..text.len() / 2]).expect("is torn");
            well(&call("DEL", &config, "f", &netns(5)));
            assert!(!torn.exists());
            well(&call("STATUS", &config, "", ""));
            well(&add(5));

            shell("ip link del cni-cairn0; nft flush ruleset");
            well(&call("DEL", &config, "f", ""));
            well(&add(5));
            well(&call("CHECK", &config, "f", &netns(5)));
            for (id, _) in &pods {
                well(&call("DEL", &config, id, ""));
            }
            assert_eq!(left(&dir), 0);
        },
    );
}

#[test]
fn what_cannot_be_served_is_refused_with_its_code_and_leaves_nothing() {
    isolated(
        "what_cannot_be_served_is_refused_with_its_code_and_leaves_nothing",
        async |dir| {
            let good = config(&dir);
            let (pod, _) = sandbox(&dir, "one");
            let netns = pod.net.as_ref().expect("a namespace").display().to_string();
            let with = |key: &str, value: Value| {
                let mut config = good.clone();
                config[key] = value;
                config
            };
            for (config, netns, code, words) in [
                (good.clone(), "/dev/null", 4, "is no network namespace"),
                (good.clone(), "", 4, "is no network namespace"),
                (
                    with("bridge", json!("lo")),
                    netns.as_str(),
                    100,
                    "lo exists and is not a bridge",
                ),
                (with("subnets", json!([])), &netns, 7, "expected one subnet"),
                (
                    with(
                        "runtimeConfig",
                        json!({"portMappings": [{"hostPort": 70_000, "containerPort": 1}]}),
                    ),
                    &netns,
                    7,
                    "70000 is no port",
                ),
                (
                    with("prevResult", json!({"ips": []})),
                    &netns,
                    7,
                    "must be the first of its list",
                ),
            ] {
                let (got, text) = fault(&call("ADD", &config, "one", netns));
                assert!(got == code && text.contains(words), "{got}: {text}");
                assert_eq!(left(&dir), 0);
            }
            // As containerd writes them.
            let ports = json!({"portMappings": [{"HostPort": 8080, "ContainerPort": 80, "Protocol": "udp", "HostIP": ""}]});
            let ported = with("runtimeConfig", ports);
            well(&call("ADD", &ported, "one", &netns));
            let (code, text) = fault(&call("ADD", &with("name", json!("net2")), "one", &netns));
            assert!(
                code == 7 && text.starts_with("bridge cni-cairn0 is that of network net"),
                "{text}"
            );
            let (other, _) = sandbox(&dir, "two");
            let other = other
                .net
                .as_ref()
                .expect("a namespace")
                .display()
                .to_string();
            let (code, text) = fault(&call("ADD", &ported, "two", &other));
            assert_eq!(
                (code, text.as_str()),
                (101, "host port 8080/udp is taken by another sandbox")
            );
            assert_eq!(left(&dir), 1);
            // What it said it had is compared, too.
            let lying = with("prevResult", json!({"ips": [{"address": "10.91.0.77/24"}]}));
            let (code, text) = fault(&call("CHECK", &lying, "one", &netns));
            assert!(
                code == 103 && text.contains("prevResult has not address 10.91.0.2/24"),
                "{text}"
            );
            well(&call("DEL", &with("unknown", json!(1)), "one", &netns));
            assert_eq!(left(&dir), 0);
            // Nobody uses it any more.
            well(&call("ADD", &with("name", json!("net2")), "one", &netns));
        },
    );
}

#[test]
fn an_older_runtime_gets_its_own_form_of_result_and_two_interfaces_of_a_pod_are_two() {
    isolated(
        "an_older_runtime_gets_its_own_form_of_result_and_two_interfaces_of_a_pod_are_two",
        async |dir| {
            let mut config = config(&dir);
            config["cniVersion"] = "0.4.0".into();
            config["dns"] = json!({"nameservers": ["10.0.0.10"]});
            let (pod, _) = sandbox(&dir, "one");
            let netns = pod.net.as_ref().expect("a namespace").display().to_string();
            let result = well(&call("ADD", &config, "one", &netns));
            assert_eq!(result["cniVersion"], "0.4.0");
            assert_eq!(result["ips"][0]["version"], "4");
            assert_eq!(result["dns"]["nameservers"][0], "10.0.0.10");

            let second = || {
                let mut other = config.clone();
                other["name"] = "net2".into();
                other["bridge"] = "cni-cairn1".into();
                other["subnets"] = json!(["10.92.0.0/24"]);
                other
            };
            let output = Command::new("sh")
                .args([
                    "-c",
                    &format!("CNI_IFNAME=net1 exec {}", program().display()),
                ])
                .env("CNI_COMMAND", "ADD")
                .env("CNI_CONTAINERID", "one")
                .env("CNI_NETNS", &netns)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .and_then(|mut child| {
                    let mut input = child.stdin.take().expect("a pipe");
                    input.write_all(second().to_string().as_bytes())?;
                    drop(input);
                    child.wait_with_output()
                })
                .expect("runs");
            let told = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{told}");
            let links = in_pod(&pod, "ip -br addr");
            assert!(
                links.contains("10.91.0.2/24") && links.contains("10.92.0.2/24"),
                "{links}"
            );
            // The way out is the first one's.
            let routes = in_pod(&pod, "ip route show default");
            assert!(
                routes.starts_with("default via 10.91.0.1 dev eth0") && routes.lines().count() == 1,
                "{routes}"
            );
        },
    );
}

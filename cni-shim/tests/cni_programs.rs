//! The input of a CNI program, and the handling of one that fails, hangs, writes too much or is
//! left behind.

mod support;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cni_shim::namespaces::unpin;
use cni_shim::{Config, Network, PortMapping, Protocol};
use serde_json::{Value, json};
use support::{config, files, isolated, pin_dir, sandbox, script, write_list};

#[test]
fn a_failing_plugin_is_named_and_the_ones_before_it_are_undone() {
    isolated(
        "a_failing_plugin_is_named_and_the_ones_before_it_are_undone",
        async |dir| {
            let config = config(&dir, &["10.77.0.0/24"]);
            let log = dir.join("log");
            let note = format!("echo $CNI_COMMAND $0 >> {}; ", log.display());
            let result = r#"{"cniVersion":"1.0.0","ips":[{"address":"10.5.0.2/24"}]}"#;
            script(
                &config,
                "first",
                &format!("{note} [ $CNI_COMMAND = ADD ] && echo '{result}'; exit 0"),
            );
            let error =
                r#"{"cniVersion":"1.0.0","code":7,"msg":"no such range","details":"range0"}"#;
            script(
                &config,
                "second",
                &format!("{note} [ $CNI_COMMAND = DEL ] && exit 0; echo '{error}'; exit 1"),
            );
            let plugins = json!([{"type": "first"}, {"type": "second"}]);
            write_list(
                &config,
                &json!({"cniVersion": "1.0.0", "name": "n", "plugins": plugins}),
            );
            let network = Network::new(config).expect("opens");
            let (_pod, attach) = sandbox(&dir, "one");

            let error = network.attach(attach).await.expect_err("fails");

            assert_eq!(
                error.to_string(),
                "CNI plugin second ADD: code 7: no such range; range0"
            );
            let calls: Vec<String> = fs::read_to_string(&log)
                .expect("was called")
                .lines()
                .map(|line| line.replace(&format!("{}/bin/", dir.display()), ""))
                .collect();
            assert_eq!(
                calls,
                ["ADD first", "ADD second", "DEL second", "DEL first"]
            );
            assert_eq!(files(&dir.join("state/attachments")), 0);
        },
    );
}

#[test]
fn a_plugin_gets_the_environment_the_previous_result_and_only_its_capabilities() {
    isolated(
        "a_plugin_gets_the_environment_the_previous_result_and_only_its_capabilities",
        async |dir| {
            let config = config(&dir, &["10.77.0.0/24"]);
            let seen = dir.join("seen");
            let result = r#"{"ips":[{"address":"10.5.0.2/24"}]}"#;
            script(
                &config,
                "first",
                &format!(
                    "cat > {0}.1; env > {0}.env; echo '{result}'",
                    seen.display()
                ),
            );
            script(
                &config,
                "second",
                &format!("cat > {}.2; echo '{result}'", seen.display()),
            );
            write_list(
                &config,
                &json!({"cniVersion": "1.0.0", "name": "n", "plugins": [
                    {"type": "first", "x": {"kept": [1]}, "capabilities": {"bandwidth": true, "dns": false}},
                    {"type": "second", "capabilities": {"io.kubernetes.cri.pod-annotations": true}},
                ]}),
            );
            let network = Network::new(config).expect("opens");
            let (_pod, mut attach) = sandbox(&dir, "one");
            attach
                .annotations
                .insert("kubernetes.io/ingress-bandwidth".into(), "10M".into());
            attach.dns = Some(cni_shim::Dns::default());
            attach.port_mappings = vec![PortMapping {
                host_port: 1,
                container_port: 1,
                protocol: Protocol::Udp,
                host_ip: None,
            }];
            let netns = attach.netns.display().to_string();

            let attached = network.attach(attach).await.expect("attaches");

            let read =
                |end: &str| fs::read(format!("{}{end}", seen.display())).expect("was called");
            let input = |end: &str| serde_json::from_slice::<Value>(&read(end)).expect("is JSON");
            assert_eq!(
                input(".1"),
                json!({"cniVersion": "1.0.0", "name": "n", "type": "first", "x": {"kept": [1]},
                "runtimeConfig": {"bandwidth": {"ingressRate": 10_000_000, "ingressBurst": u32::MAX}}})
            );
            let second = input(".2");
            assert_eq!(second["prevResult"]["ips"][0]["address"], "10.5.0.2/24");
            assert_eq!(
                second["runtimeConfig"]
                    .as_object()
                    .map(serde_json::Map::len),
                Some(1)
            );
            let env = String::from_utf8(read(".env")).expect("is text");
            for expected in [
                "CNI_COMMAND=ADD".to_owned(),
                "CNI_CONTAINERID=one".to_owned(),
                format!("CNI_NETNS={netns}"),
                "CNI_IFNAME=eth0".to_owned(),
                "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-one;\
             K8S_POD_INFRA_CONTAINER_ID=one;K8S_POD_UID=uid-one"
                    .to_owned(),
            ] {
                assert!(
                    env.lines().any(|line| line == expected),
                    "{expected} in {env}"
                );
            }
            assert_eq!(attached.warnings.len(), 1, "no plugin opens the host port");
        },
    );
}

#[test]
fn a_plugin_that_hangs_is_killed_with_its_children() {
    isolated(
        "a_plugin_that_hangs_is_killed_with_its_children",
        async |dir| {
            let config = Config {
                add_timeout: Duration::from_secs(5),
                ..config(&dir, &["10.77.0.0/24"])
            };
            let pids = dir.join("pids");
            let hang = format!(
                "[ $CNI_COMMAND = DEL ] && exit 0; sleep 1000 & echo $$ $! > {}; wait",
                pids.display()
            );
            script(&config, "hang", &hang);
            write_list(
                &config,
                &json!({"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "hang"}]}),
            );
            let network = Network::new(config).expect("opens");
            let (_pod, attach) = sandbox(&dir, "one");
            let start = Instant::now();
            let error = network.attach(attach).await.expect_err("fails").to_string();
            assert_eq!(error, "CNI plugin hang ADD: timed out and was killed");
            assert!(start.elapsed() < Duration::from_secs(20));
            let pids = fs::read_to_string(pids).expect("it ran");
            support::eventually("both processes have ended", || {
                let alive = |pid: &str| {
                    fs::read_to_string(format!("/proc/{pid}/stat"))
                        .is_ok_and(|stat| !stat.contains(") Z "))
                };
                !pids.split_whitespace().any(alive)
            })
            .await;
        },
    );
}

#[test]
fn what_a_killed_plugin_had_started_is_gone_before_the_next_call() {
    isolated(
        "what_a_killed_plugin_had_started_is_gone_before_the_next_call",
        async |dir| {
            let config = config(&dir, &["10.77.0.0/24"]);
            let (child, found) = (dir.join("child"), dir.join("found"));
            let killed = format!(
                "if [ $CNI_COMMAND = DEL ]; then cat /proc/$(cat {child})/stat >{found} 2>&1; exit 0; fi; \
                 sleep 1000 </dev/null >/dev/null 2>&1 & echo $! >{child}; kill -9 $$",
                child = child.display(),
                found = found.display(),
            );
            script(&config, "killed", &killed);
            write_list(
                &config,
                &json!({"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "killed"}]}),
            );
            let network = Network::new(config).expect("opens");
            let (_pod, attach) = sandbox(&dir, "one");
            let error = network.attach(attach).await.expect_err("fails").to_string();
            assert!(error.contains("no reason given"), "{error}");
            let found = fs::read_to_string(found).expect("DEL has looked for it");
            assert!(!found.contains(") ") || found.contains(") Z "), "{found}");
        },
    );
}

#[test]
fn output_without_end_and_results_that_are_none_are_refused() {
    isolated(
        "output_without_end_and_results_that_are_none_are_refused",
        async |dir| {
            let config = config(&dir, &["10.77.0.0/24"]);
            let network = Network::new(config.clone()).expect("opens");
            let add_only = |body: &str| format!("[ $CNI_COMMAND = DEL ] && exit 0; {body}");
            write_list(
                &config,
                &json!({"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "bad"}]}),
            );
            for (body, expected) in [
                ("exec yes", "wrote more than"),
                ("true", "not JSON"),
                ("echo []", "not a JSON object"),
                ("echo '{}'", "no address for eth0"),
                // It has closed its output, and runs for another moment.
                (
                    "echo '{}'; exec >&- 2>&-; busybox sleep 0.2",
                    "no address for eth0",
                ),
                ("echo oops >&2; exit 3", "code 999: oops"),
                ("kill -9 $$", "no reason given"),
            ] {
                script(&config, "bad", &add_only(body));
                let (_pod, attach) = sandbox(&dir, "one");
                let error = network.attach(attach).await.expect_err(body).to_string();
                assert!(error.contains(expected), "{body}: {error}");
                unpin(&pin_dir(&dir, "one")).expect("unpins");
            }
        },
    );
}

#[test]
fn an_abandoned_attach_kills_its_plugin_and_is_undone_by_detach() {
    isolated(
        "an_abandoned_attach_kills_its_plugin_and_is_undone_by_detach",
        async |dir| {
            let config = config(&dir, &["10.77.0.0/24"]);
            let (pid, deleted) = (dir.join("pid"), dir.join("deleted"));
            let body = format!(
                "if [ $CNI_COMMAND = DEL ]; then echo $CNI_CONTAINERID > {}; exit 0; fi; echo $$ > {}; exec sleep 1000",
                deleted.display(),
                pid.display()
            );
            script(&config, "slow", &body);
            write_list(
                &config,
                &json!({"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "slow"}]}),
            );
            let network = Network::new(config.clone()).expect("opens");
            let (_pod, attach) = sandbox(&dir, "one");
            let task = tokio::spawn({
                let network = network.clone();
                async move { network.attach(attach).await }
            });
            let started = || fs::read_to_string(&pid).is_ok_and(|pid| pid.ends_with('\n'));
            support::eventually("the plugin runs", started).await;
            task.abort();
            assert!(task.await.is_err());
            let pid = fs::read_to_string(&pid).expect("it ran");
            let gone = || !Path::new(&format!("/proc/{}", pid.trim())).exists();
            support::eventually("the plugin has ended and is reaped", gone).await;

            // As a new daemon finds it.
            drop(network);
            let network = Network::new(config).expect("opens");
            network.detach("one").await.expect("detaches");
            assert_eq!(
                fs::read_to_string(&deleted).expect("DEL was called").trim(),
                "one"
            );
            assert_eq!(files(&dir.join("state/attachments")), 0);
        },
    );
}

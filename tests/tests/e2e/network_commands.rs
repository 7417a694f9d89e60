//! `cairn network ls` and `gc`, on the built-in bridge and with a CNI conflist.

use std::fs;

use cairn_tests::{
    Daemon, Setup, cri,
    output::{shown, stdout},
    pod::host_network,
};
use serde_json::{Value, json};

use crate::network::CONFLIST;

/// Returns the output, and whether it exits 0.
async fn network(daemon: &Daemon, args: &[&str]) -> (bool, String) {
    let output = daemon.cairn(&[&["network"], args].concat()).await;
    assert!(output.stderr.is_empty(), "{}", shown(&output));
    (output.status.success(), stdout(&output))
}

async fn network_json(daemon: &Daemon, args: &[&str]) -> (bool, Value) {
    let (well, text) = network(daemon, &[args, &["--output", "json"]].concat()).await;
    let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    (well, value)
}

fn with_port(mut config: cri::PodSandboxConfig, host_port: i32) -> cri::PodSandboxConfig {
    config.port_mappings = vec![cri::PortMapping {
        protocol: cri::Protocol::Tcp.into(),
        container_port: 80,
        host_port,
        host_ip: String::new(),
    }];
    config
}

#[tokio::test]
async fn network_ls_tells_of_every_pods_network() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let none = network(&daemon, &["ls"]).await;
    assert_eq!(none, (true, "no pod has a network\n".to_owned()));
    let web = cri.try_pod(with_port(cri.pod_config("web"), 12_401)).await;
    let web = web.expect("RunPodSandbox");
    let mut config = cri.pod_config("on-the-node");
    host_network(&mut config);
    let hosted = cri.try_pod(config).await.expect("RunPodSandbox");
    let ip = web.ip().await;

    let (_, text) = network(&daemon, &["ls"]).await;
    let line = |name: &str| {
        let found = text.lines().find(|line| line.starts_with(name));
        let found = found.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
        found.split_whitespace().collect::<Vec<_>>()
    };
    let netns = daemon.path(&format!("netns/{}", web.id));
    assert_eq!(
        line("default/web"),
        [
            "default/web",
            &web.id[..13],
            "cairn0",
            "eth0",
            &ip,
            "12401/tcp->80",
            netns.to_str().expect("text"),
        ]
    );
    assert_eq!(line("default/on-the-node")[2..], ["(the", "node's)"]);
    let (_, value) = network_json(&daemon, &["ls"]).await;
    let reported = &value["networks"][1];
    assert_eq!(reported["pod"], web.id);
    assert_eq!(reported["addresses"], json!([ip]));
    assert_eq!(reported["host_ports"][0]["host_port"], 12_401);

    hosted.end().await;
    web.end().await;
    assert_eq!(network(&daemon, &["ls"]).await, none);
}

#[tokio::test]
async fn with_a_conflist_ls_and_gc_go_by_what_its_programs_say() {
    let daemon = Daemon::with(Setup::default().cni(CONFLIST)).await;
    let cri = daemon.cri();
    let pod = cri.try_pod(with_port(cri.pod_config("web"), 12_402)).await;
    let pod = pod.expect("RunPodSandbox");
    let (_, value) = network_json(&daemon, &["ls"]).await;
    let reported = &value["networks"][0];
    assert_eq!(
        (&reported["kind"], &reported["network"]),
        (&json!("cni"), &json!("testnet"))
    );
    assert_eq!(reported["addresses"], json!([pod.ip().await]));
    assert_eq!(reported["host_ports"][0]["container_port"], 80);

    // The result of a pod whose namespace and record are removed.
    let results = daemon.yard.inside(daemon.path("root/cni/results"));
    let own = results.join(format!("testnet-{}-eth0", pod.id));
    let mut dead: Value =
        serde_json::from_slice(&fs::read(&own).expect("is cached")).expect("JSON");
    dead["containerId"] = "longgone".into();
    dead["netns"] = "/run/netns/longgone".into();
    let file = results.join("testnet-longgone-eth0");
    fs::write(&file, dead.to_string()).expect("is written");
    let (well, text) = network(&daemon, &["gc", "--dry-run"]).await;
    assert!(
        well && text.contains("longgone") && text.contains("would go"),
        "{text}"
    );
    assert!(file.exists());
    let (well, value) = network_json(&daemon, &["gc"]).await;
    assert!(well, "{value}");
    let gone = &value["collected"][0];
    assert_eq!(
        (&gone["pod"], &gone["gone"]),
        (&json!("longgone"), &json!(true))
    );
    assert!(!file.exists() && own.exists());
    let (_, text) = network(&daemon, &["gc"]).await;
    assert!(
        text.starts_with("nothing is left of pods that are gone"),
        "{text}"
    );
    let netns = daemon.path(&format!("netns/{}", pod.id));
    let netns = format!("--net={}", netns.display());
    let addresses = daemon
        .lines(&["nsenter", &netns, "ip", "-4", "-br", "addr"])
        .await;
    let ip = pod.ip().await;
    assert!(
        addresses.iter().any(|line| line.contains(&ip)),
        "the pod that lives has lost {ip}: {addresses:?}"
    );
    pod.end().await;
}

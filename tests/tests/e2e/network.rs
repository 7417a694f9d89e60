//! A pod's network: the built-in bridge, a CNI conflist, the host's: CRI-117, 200…207, 500…

use std::net::Ipv4Addr;

use cairn_tests::{
    Daemon, Setup, bins, cri,
    pod::{host_network, security},
};

pub(crate) const CONFLIST: &str = r#"{
  "cniVersion": "1.1.0", "name": "testnet",
  "plugins": [
    { "type": "bridge", "bridge": "cni-test0", "isGateway": true, "ipMasq": false,
      "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.77.0.0/24" }]],
                "routes": [{ "dst": "0.0.0.0/0" }] } },
    { "type": "portmap", "capabilities": { "portMappings": true }, "snat": true }
  ]
}"#;

/// Pings an address once from the yard, the pods' host.
async fn ping(daemon: &Daemon, address: &str) -> bool {
    let busybox = bins::system("busybox").expect("busybox-static is installed");
    let run = daemon
        .yard
        .command(busybox)
        .args(["ping", "-c", "1", "-W", "5", address])
        .output();
    run.await.is_ok_and(|o| o.status.success())
}

#[tokio::test]
async fn pods_reach_each_other_and_the_host_reaches_them() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let (one, two) = (cri.pod("one").await, cri.pod("two").await);
    let (a, b) = (one.ip().await, two.ip().await);
    assert_ne!(a, b);
    assert!(
        a.parse::<Ipv4Addr>()
            .is_ok_and(|ip| ip.octets()[..2] == [10, 88]),
        "{a}"
    );
    assert!(ping(&daemon, &a).await && ping(&daemon, &b).await);
    let container = one.sleeper("c").await;
    container.exec(&["ping", "-c", "1", "-W", "5", &b]).await;
    container
        .exec(&["ping", "-c", "1", "-W", "5", "127.0.0.1"])
        .await;
    let shown = container
        .exec(&["ip", "-o", "-4", "addr", "show", "eth0"])
        .await;
    assert!(shown.contains(&a), "{shown}");
    let route = container.exec(&["ip", "route", "show", "default"]).await;
    assert!(route.contains("dev eth0"), "{route}");
    one.end().await;
    two.end().await;
    assert!(
        !ping(&daemon, &a).await,
        "a removed pod's address is silent"
    );
}

#[tokio::test]
async fn without_the_bridge_a_pod_waits_for_a_network_and_status_says_that_there_is_none() {
    let programs = bins::peer("bridge");
    let programs = programs.parent().expect("a file is in a directory");
    let toml = format!("[network]\nbridge = \"\"\ncni_bin_dirs = [{programs:?}]");
    let daemon = Daemon::with(Setup::default().toml(&toml)).await;
    let cri = daemon.cri();
    let network = || async {
        let request = cri::StatusRequest::default();
        let status = cri
            .client
            .runtime
            .clone()
            .status(request)
            .await
            .expect("Status");
        let conditions = status.into_inner().status.expect("a status").conditions;
        let found = conditions.into_iter().find(|c| c.r#type == "NetworkReady");
        found.expect("the condition")
    };
    let missing = network().await;
    assert!(!missing.status);
    assert_eq!(missing.reason, "NetworkNotConfigured");
    let log = daemon.log();
    assert!(log.contains("and network.bridge is \"\"") && !log.contains("built-in bridge"));
    let config = cri.pod_config("early");
    let (pod, ()) = tokio::join!(cri.try_pod(config), async {
        // Checked while the pod waits: its name is already reserved, and it is not listed yet.
        assert!(cri.pods().await.is_empty());
        let written = daemon.configure_cni("10-late", CONFLIST);
        written.expect("the configuration is written");
    });
    let pod = pod.expect("RunPodSandbox");
    assert!(pod.ip().await.starts_with("10.77.0."));
    assert!(network().await.status);
    pod.end().await;
}

#[tokio::test]
async fn hostname_hosts_and_resolv_conf_are_the_pods() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut config = cri.pod_config("dns");
    config.hostname = "the-host".into();
    config.dns_config = Some(cri::DnsConfig {
        servers: vec!["10.0.0.1".into(), "10.0.0.2".into()],
        searches: vec!["a.example".into(), "b.example".into()],
        options: vec!["ndots:5".into()],
    });
    let pod = cri.try_pod(config).await.expect("RunPodSandbox");
    let container = pod.sleeper("c").await;
    let expected =
        "search a.example b.example\nnameserver 10.0.0.1\nnameserver 10.0.0.2\noptions ndots:5";
    assert_eq!(container.exec(&["cat", "/etc/resolv.conf"]).await, expected);
    assert_eq!(container.exec(&["hostname"]).await, "the-host");
    assert_eq!(container.exec(&["cat", "/etc/hostname"]).await, "the-host");
    assert!(
        container
            .exec(&["cat", "/etc/hosts"])
            .await
            .contains("localhost")
    );
    pod.end().await;
}

#[tokio::test]
async fn sysctls_and_shm_are_the_pods() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut config = cri.pod_config("sysctl");
    config.linux.as_mut().expect("set").sysctls = [
        ("net.ipv4.ip_forward".to_owned(), "0".to_owned()),
        ("kernel.shm_rmid_forced".to_owned(), "1".to_owned()),
    ]
    .into();
    let pod = cri.try_pod(config).await.expect("RunPodSandbox");
    let (one, two) = (pod.sleeper("one").await, pod.sleeper("two").await);
    assert_eq!(
        one.exec(&["cat", "/proc/sys/kernel/shm_rmid_forced"]).await,
        "1"
    );
    assert_eq!(
        one.exec(&["cat", "/proc/sys/net/ipv4/ip_forward"]).await,
        "0"
    );
    one.sh("echo shared > /dev/shm/file").await;
    assert_eq!(two.exec(&["cat", "/dev/shm/file"]).await, "shared");
    pod.end().await;
}

#[tokio::test]
async fn a_pod_of_the_hosts_network_sees_the_hosts_links() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut config = cri.pod_config("hostnet");
    config.hostname.clear();
    host_network(&mut config);
    let pod = cri.try_pod(config).await.expect("RunPodSandbox");
    let mut config = cri.container_config("c", &["sleep", "1000"]);
    let namespaces = security(&mut config).namespace_options.as_mut();
    namespaces.expect("set").network = cri::NamespaceMode::Node.into();
    let container = pod.started(config).await;
    let inside = container.exec(&["readlink", "/proc/self/ns/net"]).await;
    let outside =
        std::fs::read_link(format!("/proc/{}/ns/net", daemon.yard.pid())).expect("a link");
    assert_eq!(inside, outside.display().to_string());
    let network = pod.status().await.network;
    assert!(
        network.is_none_or(|n| n.ip.is_empty()),
        "a host pod has no address of its own"
    );
    pod.end().await;
}

#[tokio::test]
async fn a_failing_cni_program_fails_the_pod_and_leaves_nothing() {
    let conflist = CONFLIST.replace(
        "\"bridge\": \"cni-test0\"",
        "\"bridge\": \"a-name-that-is-too-long-for-a-link\"",
    );
    let daemon = Daemon::with(Setup::default().cni(&conflist)).await;
    let cri = daemon.cri();
    let first = cri
        .try_pod(cri.pod_config("bad"))
        .await
        .expect_err("the bridge cannot be made");
    assert!(
        first.message().contains("bridge") && !first.message().contains('\n'),
        "{first}"
    );
    let before = daemon.inventory().await;
    cri.try_pod(cri.pod_config("bad")).await.expect_err("again");
    daemon.leaves_only(&before).await;
    assert!(cri.pods().await.is_empty());
}

#[tokio::test]
async fn a_cni_file_that_is_skipped_is_told_once_with_its_reason() {
    let daemon = Daemon::with(Setup::default().cni(CONFLIST)).await;
    let broken = r#"{"cniVersion":"9.9.9","name":"broken","plugins":[{"type":"bridge"}]}"#;
    daemon
        .configure_cni("00-broken", broken)
        .expect("the file is written");
    let cri = daemon.cri();
    for name in ["one", "two"] {
        cri.pod(name).await.end().await;
    }
    let log = daemon.log();
    let reported: Vec<_> = log
        .lines()
        .filter(|line| line.contains("skipped an invalid CNI configuration"))
        .collect();
    assert_eq!(reported.len(), 1, "{reported:?}");
    let line = reported[0];
    assert!(
        line.contains("00-broken.conflist") && line.contains("9.9.9"),
        "{line}"
    );
}

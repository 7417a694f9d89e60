//! network-device-injector: moves interfaces of the yard, the pods' host, to pods and back.

use cairn_tests::{Daemon, container::Container, pod::host_network};

use super::{annotated, connect, launching, reports};

const KEY: &str = "netdevice.noderesource.dev";

/// Runs `ip` in the yard.
async fn ip(daemon: &Daemon, args: &str) {
    let args: Vec<&str> = args.split(' ').collect();
    let done = daemon.yard.command("ip").args(&args).output().await;
    let done = done.expect("ip runs");
    assert!(done.status.success(), "{args:?}: {done:?}");
}

/// Makes a pair of host interfaces: `<name>`, and `<name>peer` with an address.
async fn pair(daemon: &Daemon, name: &str, address: &str) {
    ip(
        daemon,
        &format!("link add {name} type veth peer {name}peer"),
    )
    .await;
    ip(daemon, &format!("addr add {address} dev {name}peer")).await;
    ip(daemon, &format!("link set {name}peer up")).await;
}

/// Returns the line of `ip -o link` for a host interface, if it exists.
async fn on_host(daemon: &Daemon, name: &str) -> Option<String> {
    let links = daemon.lines(&["ip", "-o", "link", "show"]).await;
    let mine = |link: &String| {
        link.contains(&format!(": {name}@")) || link.contains(&format!(": {name}:"))
    };
    links.into_iter().find(mine)
}

async fn inside(container: &Container, name: &str) -> (String, String) {
    let link = container.exec(&["ip", "-o", "link", "show", name]).await;
    (
        link,
        container.exec(&["ip", "-o", "addr", "show", name]).await,
    )
}

#[tokio::test]
async fn interfaces_are_moved_into_a_pod_with_all_that_is_asked_and_back_at_its_stop() {
    let daemon = launching("network-device-injector").await;
    pair(&daemon, "eth7", "10.9.0.1/24").await;
    pair(&daemon, "eth8", "10.9.1.1/24").await;
    let cri = daemon.cri();
    let asked = "- {name: eth7, new_name: net0, address: 10.9.0.2, prefix: 24, mtu: 1400}\n\
                 - {name: eth8, address: fd00:9::2}";
    // The key with the scope of the pod precedes the bare key.
    let asked = [(&*format!("{KEY}/pod"), asked), (KEY, "[{name: nosuch0}]")];
    let pod = cri
        .try_pod(annotated(&cri, "wired", &asked))
        .await
        .expect("both are there");
    let container = pod.sleeper("c").await;
    let (link, addresses) = inside(&container, "net0").await;
    assert!(link.contains("UP") && link.contains("mtu 1400"), "{link}");
    assert!(addresses.contains("inet 10.9.0.2/24"), "{addresses}");
    let (_, addresses) = inside(&container, "eth8").await;
    assert!(addresses.contains("inet6 fd00:9::2/128"), "{addresses}");
    container
        .exec(&["ping", "-c", "1", "-W", "5", "10.9.0.1"])
        .await;
    assert_eq!(on_host(&daemon, "eth7").await, None);

    pod.stop().await.expect("StopPodSandbox");
    for name in ["eth7", "eth8"] {
        let back = on_host(&daemon, name).await.expect("it is back");
        assert!(back.contains("state DOWN"), "{back}");
    }
    // A returned interface can be moved again, by the older key.
    let old = [("netdevices.nri.containerd.io", "[{name: eth7}]")];
    let again = cri
        .try_pod(annotated(&cri, "again", &old))
        .await
        .expect("it is there");
    assert_eq!(on_host(&daemon, "eth7").await, None);
    again.end().await;
    assert!(on_host(&daemon, "eth7").await.is_some());
    pod.remove().await.expect("RemovePodSandbox");
}

#[tokio::test]
async fn a_pod_that_cannot_have_an_interface_fails_and_all_are_moved_back() {
    let mut daemon = Daemon::start().await;
    pair(&daemon, "eth7", "10.9.0.1/24").await;
    let flags = ["-idx", "20", "-verbose"];
    let id = "20-network-device-injector";
    connect(&mut daemon, "network-device-injector", &flags, &[id]).await;
    let cri = daemon.cri();
    for (n, (value, reported)) in [
        (
            "[{name: eth7, new_name: net0}, {name: nosuch0}]",
            "interface nosuch0",
        ),
        ("[{name: eth7, new_name: eth0}]", "interface eth7"),
        (
            "[{name: eth7, address: 10.9.0}]",
            "invalid address \"10.9.0\"",
        ),
        ("[{name: eth7, ", KEY),
    ]
    .into_iter()
    .enumerate()
    {
        let config = annotated(&cri, &format!("bad{n}"), &[(KEY, value)]);
        let error = cri.try_pod(config).await.expect_err("a veto");
        reports(&error, &[id, reported]);
        assert!(cri.pods().await.is_empty(), "{value}");
        assert!(
            on_host(&daemon, "eth7").await.is_some(),
            "{value}: it is back"
        );
    }
}

#[tokio::test]
async fn a_pod_on_the_hosts_network_cannot_have_an_interface() {
    let daemon = launching("network-device-injector").await;
    let cri = daemon.cri();
    let mut config = annotated(&cri, "hosted", &[(KEY, "[{name: lo}]")]);
    host_network(&mut config);
    let error = cri.try_pod(config).await.expect_err("a veto");
    reports(
        &error,
        &[
            "10-network-device-injector",
            KEY,
            "the pod shares the network of the host",
        ],
    );
    assert!(cri.pods().await.is_empty());
    assert!(on_host(&daemon, "lo").await.is_some());
}

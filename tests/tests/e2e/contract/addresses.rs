//! C-01.13: addresses from plugins for pods, if enabled by `network.nri`.

use cairn_tests::{
    Daemon, Setup,
    client::Cri,
    cri,
    output::{shown, stdout},
    plugin::Plugin,
    pod::{Pod, host_network},
};
use nri::proto::Event;

async fn daemon_where(nri: &str) -> Daemon {
    let toml = format!("[network]\nnri = {nri:?}\n");
    Daemon::with(Setup::default().toml(&toml)).await
}

async fn addresses(pod: &Pod) -> Vec<String> {
    let network = pod.status().await.network.expect("a network");
    let more = network.additional_ips.into_iter().map(|ip| ip.ip);
    std::iter::once(network.ip).chain(more).collect()
}

async fn network_ready(cri: &Cri) -> Result<(), String> {
    let mut runtime = cri.client.runtime.clone();
    let status = runtime.status(cri::StatusRequest::default()).await;
    let status = status.expect("Status").into_inner().status;
    let conditions = status.expect("a status").conditions;
    let found = conditions.into_iter().find(|c| c.r#type == "NetworkReady");
    let found = found.expect("the condition");
    if found.status {
        Ok(())
    } else {
        Err(found.message)
    }
}

/// Returns the output of a script in the yard, the pods' host.
async fn in_yard(daemon: &Daemon, script: &str) -> String {
    let done = daemon.yard.command("sh").args(["-c", script]).output();
    let done = done.await.expect("sh runs");
    assert!(done.status.success(), "{script}: {}", shown(&done));
    stdout(&done)
}

#[tokio::test]
async fn contract_c01_addresses_by_plugins_follow_the_networks_and_stay_over_a_restart() {
    let mut daemon = daemon_where("add").await;
    let first = Plugin::join(&daemon.nri_socket(), "10", "a").await;
    let second = Plugin::join(&daemon.nri_socket(), "20", "b").await;
    first.gives(&["192.0.2.7", "2001:DB8:0::7"]);
    second.gives(&["192.0.2.7", "192.0.2.8"]);
    let pod = daemon.cri().pod("given").await;
    let mut ips = first.sees(Event::RunPodSandbox, "given").await.pod.ips;
    assert_eq!(ips.len(), 1, "of the bridge: {ips:?}");
    ips.extend(["192.0.2.7".to_owned(), "2001:db8::7".to_owned()]);
    let behind = second.sees(Event::RunPodSandbox, "given").await.pod.ips;
    assert_eq!(behind, ips, "a plugin sees what those before it gave");
    ips.push("192.0.2.8".to_owned());
    assert_eq!(addresses(&pod).await, ips);

    let mut host = daemon.cri().pod_config("host");
    host_network(&mut host);
    let refused = daemon
        .cri()
        .try_pod(host)
        .await
        .expect_err("no place for them");
    assert!(
        refused.message().contains("on the host's network"),
        "{refused}"
    );

    drop((first, second));
    daemon.kill_and_restart().await;
    let pod = daemon.cri().pod_by_id(&pod.id, "given");
    assert_eq!(addresses(&pod).await, ips);
    let third = Plugin::join(&daemon.nri_socket(), "10", "a").await;
    let (pods, _) = third.synchronised().await;
    assert_eq!(pods[0].ips, ips, "a plugin that joins later gets them");
    pod.stop().await.expect("StopPodSandbox");
    let seen = third.sees(Event::StopPodSandbox, "given").await;
    assert_eq!(seen.pod.ips, ips);
    pod.remove().await.expect("RemovePodSandbox");
}

#[tokio::test]
async fn contract_c01_addresses_are_ignored_where_they_are_not_switched_on() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "a").await;
    plugin.gives(&["192.0.2.7"]);
    let pod = daemon.cri().pod("plain").await;
    let reported = plugin.sees(Event::RunPodSandbox, "plain").await.pod.ips;
    assert_eq!(addresses(&pod).await, reported);
    let log = daemon.log();
    assert!(
        log.contains("adjust.network.ips in the answer to RunPodSandbox ignored"),
        "{log}"
    );
    pod.end().await;
}

/// The plugin makes a pair of links while RunPodSandbox waits for it, like a plugin that implements
/// the node's network.
#[tokio::test]
async fn contract_c01_where_plugins_are_the_network_a_pod_works_by_theirs() {
    let daemon = daemon_where("only").await;
    let cri = daemon.cri();
    let missing = network_ready(&cri).await.expect_err("no plugin yet");
    assert!(
        missing.contains("no NRI plugin that handles RunPodSandbox"),
        "{missing}"
    );
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "net").await;
    cairn_tests::until("the network is ready", || async {
        network_ready(&cri).await.ok()
    })
    .await;
    plugin.gives(&["192.0.2.7"]);
    let gate = plugin.blocks(Event::RunPodSandbox);
    let (pod, ()) = tokio::join!(cri.try_pod(cri.pod_config("wired")), async {
        let seen = plugin.sees(Event::RunPodSandbox, "wired").await.pod;
        assert!(seen.ips.is_empty(), "{:?}", seen.ips);
        let linux = seen.linux.clone().expect("a linux part");
        let net = linux.namespaces.iter().find(|n| n.r#type == "network");
        let net = net.expect("a network namespace").path.clone();
        let links = format!("nsenter --net={net} ip -o link");
        let links = in_yard(&daemon, &links).await;
        assert_eq!(links.lines().count(), 1, "lo alone: {links}");
        let script = format!(
            "ip link add nri0 type veth peer name eth0 netns {net} && ip addr add 192.0.2.1/24 dev nri0 && \
             ip link set nri0 up && nsenter --net={net} ip addr add 192.0.2.7/24 dev eth0 && \
             nsenter --net={net} ip link set eth0 up"
        );
        in_yard(&daemon, &script).await;
        gate.open();
    });
    let pod = pod.expect("RunPodSandbox");
    assert_eq!(addresses(&pod).await, ["192.0.2.7"]);
    in_yard(&daemon, "busybox ping -c 1 -W 5 192.0.2.7").await;
    pod.end().await;
}

#[tokio::test]
async fn contract_c01_where_plugins_are_the_network_a_pod_without_an_address_fails() {
    let daemon = daemon_where("only").await;
    let before = daemon.inventory().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "mute").await;
    let cri = daemon.cri();
    let refused = cri
        .try_pod(cri.pod_config("none"))
        .await
        .expect_err("no address");
    assert!(
        refused
            .message()
            .contains("no NRI plugin gave the pod an address"),
        "{refused}"
    );
    plugin.sees(Event::RemovePodSandbox, "none").await;
    plugin.gives(&["192.0.2.7/24"]);
    let refused = cri
        .try_pod(cri.pod_config("wrong"))
        .await
        .expect_err("no address");
    assert!(
        refused
            .message()
            .contains("10-mute sets adjust.network.ips \"192.0.2.7/24\""),
        "{refused}"
    );
    let mut host = cri.pod_config("host");
    host_network(&mut host);
    plugin.gives(&[]);
    let host = cri.try_pod(host).await.expect("it has the host's");
    let reported = plugin.sees(Event::RunPodSandbox, "host").await.pod.ips;
    assert!(reported.is_empty(), "{reported:?}");
    host.end().await;
    drop(plugin);
    daemon.leaves_only(&before).await;
}

//! Namespaces, sysctls, network devices.

use std::{collections::BTreeMap, fs};

use cairn_tests::{container::Container, plugin::Plugin};
use nri::adjust::Adjust;

use super::stage::{Stage, sleeper};

/// Returns the namespaces of a container's exec, by kind.
async fn of(container: &Container) -> BTreeMap<String, String> {
    let listed = container
        .sh("cd /proc/self/ns; for n in net ipc uts pid cgroup time mnt user; do echo $n $(readlink $n); done")
        .await;
    let pairs = listed.lines().filter_map(|l| l.split_once(' '));
    pairs.map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
}

/// Returns a namespace of the daemon.
fn of_the_machine(stage: &Stage, name: &str) -> String {
    let path = format!("/proc/{}/ns/{name}", stage.daemon.yard.pid());
    let link = fs::read_link(path).expect("a namespace");
    link.display().to_string()
}

/// The names of OCI, and of the files in `/proc/<pid>/ns`.
const KINDS: [(&str, &str); 6] = [
    ("network", "net"),
    ("ipc", "ipc"),
    ("uts", "uts"),
    ("pid", "pid"),
    ("cgroup", "cgroup"),
    ("time", "time"),
];

pub(crate) async fn namespaces_of_another_container_are_joined_by_path(stage: &Stage) {
    stage.adjusts(|name, adjust| {
        if name == "target" {
            adjust.add_namespace("time", "").add_namespace("cgroup", "");
        }
    });
    let other = stage.pod("other").await;
    let target = sleeper(&other, "target").await;
    let pid = target.pid().await.expect("it runs");
    stage.adjusts(move |name, adjust| {
        for (kind, file) in KINDS {
            if name == "joins" {
                adjust.add_namespace(kind, format!("/proc/{pid}/ns/{file}"));
            }
        }
    });
    let pod = stage.pod("joining").await;
    let joins = sleeper(&pod, "joins").await;
    let (theirs, seen) = (of(&target).await, of(&joins).await);
    for (_, file) in KINDS {
        assert_eq!(seen[file], theirs[file], "{file}");
    }
    assert_ne!(seen["mnt"], theirs["mnt"], "its root is its own");
    joins
        .sh("ps | grep -q 'sleep 1000' && test -e /proc/1")
        .await;
    pod.end().await;
    other.end().await;
}

pub(crate) async fn namespaces_are_the_hosts_once_removed(stage: &Stage) {
    stage.adjusts(|_, adjust| {
        for kind in ["network", "ipc", "uts", "pid", "cgroup", "time"] {
            adjust.remove_namespace(kind);
        }
    });
    let pod = stage.pod("hosts").await;
    let container = sleeper(&pod, "c").await;
    let seen = of(&container).await;
    for (_, file) in KINDS {
        assert_eq!(seen[file], of_the_machine(stage, file), "{file}");
    }
    let init = stage.proc(&container).await;
    for (_, file) in KINDS {
        let link = fs::read_link(init.join("ns").join(file)).expect("it runs");
        assert_eq!(link.display().to_string(), seen[file], "init's {file}");
    }
    pod.end().await;
}

pub(crate) async fn namespaces_of_each_kind_are_made_new(stage: &Stage) {
    stage.adjusts(|name, adjust| {
        for (kind, _) in KINDS {
            if name == "new" {
                adjust.add_namespace(kind, "");
            }
        }
    });
    let pod = stage.pod("made").await;
    let plain = sleeper(&pod, "plain").await;
    let new = sleeper(&pod, "new").await;
    let (shared, seen) = (of(&plain).await, of(&new).await);
    for (_, file) in KINDS {
        assert_ne!(seen[file], shared[file], "{file}");
        assert_ne!(seen[file], of_the_machine(stage, file), "{file}");
    }
    let links = new.exec(&["ls", "/sys/class/net"]).await;
    assert_eq!(links, "lo", "nothing else is in a new network");
    let init = stage.proc(&new).await;
    for (_, file) in KINDS {
        let link = fs::read_link(init.join("ns").join(file)).expect("it runs");
        assert_eq!(link.display().to_string(), seen[file], "init's {file}");
    }
    pod.end().await;
}

pub(crate) async fn sysctls_are_set_and_those_of_an_earlier_plugin_removed(stage: &Stage) {
    let second = Plugin::join(&stage.daemon.nri_socket(), "20", "second").await;
    stage.adjusts(|name, adjust| {
        if name == "c" {
            adjust
                .add_sysctl("net.ipv4.ip_unprivileged_port_start", "81")
                .add_sysctl("kernel.shm_rmid_forced", "1")
                .add_sysctl("net.ipv4.ip_default_ttl", "77");
        }
    });
    stage.adjusts_by(&second, |name, adjust| {
        if name == "c" {
            adjust
                .remove_sysctl("net.ipv4.ip_default_ttl")
                .set_sysctl("net.ipv4.ip_unprivileged_port_start", "82");
        }
    });
    let pod = stage.pod("sysctl").await;
    let container = sleeper(&pod, "c").await;
    for (key, value) in [
        ("net/ipv4/ip_unprivileged_port_start", "82"),
        ("kernel/shm_rmid_forced", "1"),
        ("net/ipv4/ip_default_ttl", "64"),
    ] {
        let file = format!("/proc/sys/{key}");
        assert_eq!(container.exec(&["cat", &file]).await, value, "{key}");
    }
    pod.end().await;
}

pub(crate) async fn a_network_device_moves_in_under_its_new_name(stage: &Stage) {
    let ip = |args: &'static str| async move {
        let argv: Vec<&str> = ["ip"].into_iter().chain(args.split(' ')).collect();
        stage.machine(&argv).await
    };
    ip("link add cairnt0 type veth peer name cairnt1").await;
    ip("addr add 10.98.0.1/24 dev cairnt0").await;
    ip("link set cairnt0 up").await;
    let second = Plugin::join(&stage.daemon.nri_socket(), "20", "second").await;
    stage.adjusts(|name, adjust| {
        if name == "c" {
            adjust
                .add_net_device("cairnt0", "fast0")
                .add_net_device("cairnt1", "fast1");
        }
    });
    stage.adjusts_by(&second, |name, adjust| {
        if name == "c" {
            adjust.remove_net_device("cairnt1");
        }
    });
    let pod = stage.pod("device").await;
    let container = sleeper(&pod, "c").await;
    let seen = container
        .exec(&["ip", "addr", "show", "dev", "fast0"])
        .await;
    assert!(seen.contains("10.98.0.1/24"), "its address stays: {seen}");
    assert!(seen.contains("UP"), "{seen}");
    let links = ip("-o link").await;
    assert!(
        !links.contains("cairnt0") && links.contains("cairnt1"),
        "one moved, the other was kept: {links}"
    );
    ip("link del cairnt1").await;
    pod.end().await;
}

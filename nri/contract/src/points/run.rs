//! C-01, inspected while a plugin blocks in it.

use std::time::Duration;

use nri::proto::Event;
use testkit::cri::{NamespaceMode, PodSandboxState};
use tonic::Code;

use crate::{
    cri::{Pod, SLEEPER, namespace_options},
    look::{self, Kind},
    point::{Point, points},
    stage::{Stage, eventually, one_line_with},
};
use testkit::{
    journal::listed,
    plugin::{Behavior, Plugin},
    verdict::{Answer, Checked, done, miss, reported, same, skip, that},
};

pub(super) fn points() -> Vec<Point> {
    points! {
        Fast "C-01.1/cgroup-exists" "in RunPodSandbox, the pod's cgroup parent and its own cgroup exist" cgroup_exists;
        Fast "C-01.2/namespaces" "in RunPodSandbox, the namespaces exist and can be entered by the paths in the message" namespaces;
        Fast "C-01.2/host-network" "a pod on the host's network has no network path" host_network;
        Fast "C-01.3/network-works" "in RunPodSandbox, the pod's address works" network_works;
        Fast "C-01.3/addresses" "the addresses are those of the status, primary first" addresses;
        Fast "C-01.4/pause-process" "with a shared PID namespace, pid is a process that runs" pause_process;
        Fast "C-01.4/no-pause-process" "without a shared PID namespace, pid is 0 and no process is there" no_pause_process;
        Fast "C-01.5/not-listed" "in RunPodSandbox, the sandbox is not listed" not_listed;
        Fast "C-01.5/status-not-found" "in RunPodSandbox, its status is not found" status_not_found;
        Fast "C-01.5/no-container" "in RunPodSandbox, CreateContainer fails and makes no event" no_container;
        Fast "C-01.6/ready-at-once" "when RunPodSandbox returns, the pod is READY with the reported properties, and takes containers" ready_at_once;
        Fast "C-01.7/all-plugins-first" "no container is made before all plugins have returned" all_plugins_first;
        Fast "C-01.9/error" "a plugin's error fails RunPodSandbox" error;
        Fast "C-01.9/one-line-with-plugin-event-and-cause" "the error is one line with plugin, event and cause" one_line;
        Fast "C-01.9/later-plugins-are-not-asked" "after an error, plugins behind are not asked" later_plugins;
        Fast "C-01.9/every-plugin-gets-the-end" "after an error, all plugins get StopPodSandbox and RemovePodSandbox" everyone;
        Fast "C-01.9/nothing-is-left" "after an error, nothing of the sandbox is left" nothing_is_left;
        Fast "C-01.9/a-retry-gets-a-new-id" "a retry after an error runs, with a new id" retry;
        Fast "C-01.11/undone-with-the-namespaces-there" "after an error, both are sent before anything is torn down" undone;
        Fast "C-01.12/a-plugin-may-extend-the-network" "what a plugin sets in the network namespace, containers see" extends;
        Fast "C-01.13/addresses" "addresses from plugins are in the status, after the network's own, and in later messages" given_addresses;
        Fast "C-01.13/no-address" "an invalid address fails RunPodSandbox, and the error names it" no_address;
    }
}

async fn blocker(s: &Stage) -> Checked<Plugin> {
    s.plugin("10", "a").await
}

async fn cgroup_exists(s: &Stage) -> Checked {
    let plugin = blocker(s).await?;
    let hook = s.hold_run(&plugin, s.pod_config("p")).await?;
    let linux = hook.seen.pod.linux.clone().unwrap_or_default();
    same(
        "linux.cgroup_parent",
        &s.run.common.cgroup_parent,
        &linux.cgroup_parent,
    )?;
    for (what, path) in [
        ("linux.cgroup_parent", &linux.cgroup_parent),
        ("linux.cgroups_path", &linux.cgroups_path),
    ] {
        that(
            !path.is_empty() && !look::cgroup_dirs(path).is_empty(),
            format!("{what} is a cgroup that exists"),
            format!("{path:?}"),
        )?;
    }
    hook.passes("RunPodSandbox").await.map(drop)
}

async fn namespaces(s: &Stage) -> Checked {
    let plugin = blocker(s).await?;
    let hook = s.hold_run(&plugin, s.pod_config("p")).await?;
    for kind in Kind::ALL {
        look::can_be_entered(look::path_of(&hook.seen.pod, kind)?, kind).await?;
    }
    let uts = look::path_of(&hook.seen.pod, Kind::Uts)?;
    let name = done("the host name can be read", look::hostname(uts).await)?;
    same("the pod's host name", s.name("p"), name)?;
    hook.passes("RunPodSandbox").await.map(drop)
}

async fn host_network(s: &Stage) -> Checked {
    let plugin = blocker(s).await?;
    let mut config = s.pod_config("p");
    config.hostname = String::new();
    namespace_options(&mut config, |n| n.network = NamespaceMode::Node.into());
    let hook = s.hold_run(&plugin, config).await?;
    same(
        "the path of the network namespace",
        None,
        look::namespace(&hook.seen.pod, Kind::Network),
    )?;
    hook.passes("RunPodSandbox").await.map(drop)
}

async fn network_works(s: &Stage) -> Checked {
    let plugin = blocker(s).await?;
    let hook = s.hold_run(&plugin, s.pod_config("p")).await?;
    let Some(address) = hook.seen.pod.ips.first() else {
        return miss("ips has the pod's address", "ips is empty");
    };
    look::network_works(look::path_of(&hook.seen.pod, Kind::Network)?, address).await?;
    hook.passes("RunPodSandbox").await.map(drop)
}

async fn addresses(s: &Stage) -> Checked {
    let plugin = blocker(s).await?;
    let pod = s.pod("p").await?;
    let ips = plugin.sees(Event::RunPodSandbox, "p").await?.pod.ips;
    same("ips", told_by_status(&pod).await?, ips)
}

/// Returns the addresses in PodSandboxStatus, primary first.
async fn told_by_status(pod: &Pod) -> Checked<Vec<String>> {
    let network = pod.status().await.succeeds("PodSandboxStatus")?.network;
    let network = network.unwrap_or_default();
    let more = network.additional_ips.into_iter().map(|ip| ip.ip);
    Ok(std::iter::once(network.ip).chain(more).collect())
}

const NO_POD_IPS: &str = "addresses of pods by plugins, which are experimental (--pod-ips)";

async fn given_addresses(s: &Stage) -> Checked {
    if !s.run.pod_ips {
        return skip(NO_POD_IPS);
    }
    let first = s.plugin("10", "a").await?;
    let second = s.plugin("20", "b").await?;
    first.gives(&["192.0.2.7", "2001:DB8:0::7"]);
    second.gives(&["192.0.2.8", "192.0.2.7"]);
    let (pod, _) = s.sleeper("p").await?;
    let mut ips = first.sees(Event::RunPodSandbox, "p").await?.pod.ips;
    ips.extend(["192.0.2.7".to_owned(), "2001:db8::7".to_owned()]);
    let seen = second.sees(Event::RunPodSandbox, "p").await?;
    same("ips, as the second plugin sees them", &ips, &seen.pod.ips)?;
    ips.push("192.0.2.8".to_owned());
    let status = told_by_status(&pod).await?;
    same("the addresses of the status", &ips, &status)?;
    pod.ends().await?;
    for event in [Event::CreateContainer, Event::StopPodSandbox] {
        let seen = first.sees_where(event.as_str_name(), |_, seen| seen.event == event);
        same("ips, later", &ips, &seen.await?.pod.ips)?;
    }
    Ok(())
}

async fn no_address(s: &Stage) -> Checked {
    if !s.run.pod_ips {
        return skip(NO_POD_IPS);
    }
    let plugin = blocker(s).await?;
    plugin.gives(&["192.0.2.7", "192.0.2.8/24"]);
    let ran = s.cri().run(s.pod_config("p")).await;
    one_line_with(&ran.fails("RunPodSandbox")?, &["192.0.2.8/24"])
}

async fn shared_pid(s: &Stage, plugin: &Plugin, mode: NamespaceMode) -> Checked<u32> {
    let mut config = s.pod_config("p");
    namespace_options(&mut config, |n| n.pid = mode.into());
    let hook = s.hold_run(plugin, config).await?;
    let pid = hook.seen.pod.pid;
    if pid > 0 {
        that(
            look::runs(pid),
            "pid is a process that runs",
            format!("{pid} does not"),
        )?;
    }
    hook.passes("RunPodSandbox").await?;
    Ok(pid)
}

async fn pause_process(s: &Stage) -> Checked {
    let plugin = blocker(s).await?;
    let pid = shared_pid(s, &plugin, NamespaceMode::Pod).await?;
    that(pid > 0, "pid is that of a process", "pid is 0")
}

async fn no_pause_process(s: &Stage) -> Checked {
    let plugin = blocker(s).await?;
    same(
        "pid",
        0,
        shared_pid(s, &plugin, NamespaceMode::Container).await?,
    )
}

async fn not_listed(s: &Stage) -> Checked {
    let plugin = blocker(s).await?;
    let hook = s.hold_run(&plugin, s.pod_config("p")).await?;
    let listed = s.cri().pods().await.succeeds("ListPodSandbox")?;
    same("sandboxes listed meanwhile", 0, listed.len())?;
    hook.passes("RunPodSandbox").await?;
    let listed = s.cri().pods().await.succeeds("ListPodSandbox")?;
    same("sandboxes listed afterwards", 1, listed.len())
}

async fn status_not_found(s: &Stage) -> Checked {
    let plugin = blocker(s).await?;
    let hook = s.hold_run(&plugin, s.pod_config("p")).await?;
    let status = s.cri().pod_status(&hook.seen.pod.id).await;
    let error = status.fails("PodSandboxStatus")?;
    that(
        error.code() == Code::NotFound,
        "the error is NOT_FOUND",
        reported(&error),
    )?;
    hook.passes("RunPodSandbox").await.map(drop)
}

async fn no_container(s: &Stage) -> Checked {
    let plugin = blocker(s).await?;
    let config = s.pod_config("p");
    let hook = s.hold_run(&plugin, config.clone()).await?;
    let early = s.cri().pod(hook.seen.pod.id.clone(), config);
    early.create("c", &SLEEPER).await.fails("CreateContainer")?;
    let listed = s.cri().containers().await.succeeds("ListContainers")?;
    same("containers listed", 0, listed.len())?;
    hook.passes("RunPodSandbox").await?;
    same(
        "CreateContainer events",
        0,
        plugin.count(Event::CreateContainer, "p/c"),
    )
}

async fn ready_at_once(s: &Stage) -> Checked {
    let plugin = blocker(s).await?;
    let pod = s.pod("p").await?;
    let seen = plugin.sees(Event::RunPodSandbox, "p").await?.pod;
    let status = pod.status().await.succeeds("PodSandboxStatus")?;
    same("state", PodSandboxState::SandboxReady, status.state())?;
    same("id", &seen.id, &status.id)?;
    let netns = look::path_of(&seen, Kind::Network)?;
    look::can_be_entered(netns, Kind::Network).await?;
    pod.start("c", &SLEEPER)
        .await
        .succeeds("a container's start")
        .map(drop)
}

async fn all_plugins_first(s: &Stage) -> Checked {
    let (first, second) = (blocker(s).await?, s.plugin("20", "b").await?);
    let config = s.pod_config("p");
    let hook = s.hold_run(&second, config.clone()).await?;
    same(
        "RunPodSandbox at the first plugin",
        1,
        first.count(Event::RunPodSandbox, "p"),
    )?;
    let early = s.cri().pod(hook.seen.pod.id.clone(), config);
    early.create("c", &SLEEPER).await.fails("CreateContainer")?;
    let listed = s.cri().pods().await.succeeds("ListPodSandbox")?;
    same("sandboxes listed meanwhile", 0, listed.len())?;
    hook.passes("RunPodSandbox").await.map(drop)
}

/// Connects two plugins, the second of which vetoes. Returns them and the error of RunPodSandbox.
async fn vetoed(s: &Stage, config: &str) -> Checked<(Plugin, Plugin, tonic::Status)> {
    let (first, second) = (blocker(s).await?, s.plugin("20", "b").await?);
    second.does(Event::RunPodSandbox, Behavior::Error("not this one".into()));
    let ran = s.cri().run(s.pod_config(config)).await;
    let error = ran.fails("RunPodSandbox")?;
    Ok((first, second, error))
}

async fn error(s: &Stage) -> Checked {
    vetoed(s, "p").await.map(drop)
}

async fn one_line(s: &Stage) -> Checked {
    let (_first, second, error) = vetoed(s, "p").await?;
    let plugin = second.id().split_once('-').map_or("", |(_, name)| name);
    one_line_with(&error, &[plugin, "RunPodSandbox", "not this one"])
}

async fn later_plugins(s: &Stage) -> Checked {
    let (first, second) = (blocker(s).await?, s.plugin("20", "b").await?);
    first.does(Event::RunPodSandbox, Behavior::Error("not this one".into()));
    let ran = s.cri().run(s.pod_config("p")).await;
    ran.fails("RunPodSandbox")?;
    same(
        "RunPodSandbox at the second plugin",
        0,
        second.count(Event::RunPodSandbox, "p"),
    )
}

async fn everyone(s: &Stage) -> Checked {
    let third = s.plugin("30", "c").await?;
    let (first, second, _) = vetoed(s, "p").await?;
    for (plugin, run) in [(&first, 1), (&second, 1), (&third, 0)] {
        plugin.sees(Event::RemovePodSandbox, "p").await?;
        let mut expected = vec!["RunPodSandbox p"; run];
        expected.extend(["StopPodSandbox p", "RemovePodSandbox p"]);
        that(
            plugin.lines() == expected,
            format!("{} gets {}", plugin.id(), expected.join(", ")),
            listed(&plugin.lines()),
        )?;
    }
    Ok(())
}

async fn nothing_is_left(s: &Stage) -> Checked {
    let (first, _second, _) = vetoed(s, "p").await?;
    let pod = first.sees(Event::RunPodSandbox, "p").await?.pod;
    let listed = s.cri().pods().await.succeeds("ListPodSandbox")?;
    same("sandboxes listed", 0, listed.len())?;
    eventually("nothing of the vetoed sandbox is left", || async {
        leftover(&pod).map_or(Ok(()), Err)
    })
    .await
}

/// Returns a remaining object of a pod, from the message that plugins got.
pub(super) fn leftover(pod: &nri::proto::PodSandbox) -> Option<String> {
    let netns = look::namespace(pod, Kind::Network).filter(|path| pinned(path));
    if let Some(path) = netns {
        return Some(format!("the network namespace {}", path.display()));
    }
    if pod.pid > 0 && look::runs(pod.pid) {
        return Some(format!("the pause process {}", pod.pid));
    }
    let cgroup = pod.linux.as_ref().map_or("", |linux| &linux.cgroups_path);
    let dirs = match cgroup {
        "" => Vec::new(),
        path => look::cgroup_dirs(path),
    };
    let dir = dirs.first()?;
    Some(format!("the cgroup {}", dir.display()))
}

/// Whether something is mounted there: an empty file may remain for a moment.
fn pinned(path: &std::path::Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|fs| fs.f_type == NSFS)
}

/// The magic number of the file system of namespaces.
const NSFS: i64 = 0x6e73_6673;

async fn retry(s: &Stage) -> Checked {
    let (first, second, _) = vetoed(s, "p").await?;
    let before = first.sees(Event::RunPodSandbox, "p").await?.pod.id;
    second.behaves();
    let pod = s.pod("p").await?;
    that(
        pod.id != before,
        "the retry has a new id",
        format!("both are {before}"),
    )
}

async fn undone(s: &Stage) -> Checked {
    let (first, second) = (blocker(s).await?, s.plugin("20", "b").await?);
    second.does(Event::RunPodSandbox, Behavior::Error("not this one".into()));
    for event in [Event::StopPodSandbox, Event::RemovePodSandbox] {
        let cri = s.cri();
        let name = format!("{}", i32::from(event == Event::StopPodSandbox));
        let config = s.pod_config(&name);
        let call = async move { cri.run(config).await };
        let hook = s.hold(&first, event, &name, call).await?;
        let ran = first.sees(Event::RunPodSandbox, &name).await?;
        let netns = look::path_of(&ran.pod, Kind::Network)?;
        look::can_be_entered(netns, Kind::Network).await?;
        hook.returns().await?.fails("RunPodSandbox")?;
        first.behaves();
    }
    Ok(())
}

async fn extends(s: &Stage) -> Checked {
    const SETTING: &str = "/proc/sys/net/ipv4/ip_default_ttl";
    let plugin = blocker(s).await?;
    let hook = s.hold_run(&plugin, s.pod_config("p")).await?;
    let netns = look::path_of(&hook.seen.pod, Kind::Network)?;
    let set = look::inside(netns, Kind::Network, || std::fs::write(SETTING, "42")).await;
    done(
        "a plugin can set what belongs to the network namespace",
        set,
    )?;
    let pod: Pod = hook.passes("RunPodSandbox").await?;
    let container = pod
        .start("c", &SLEEPER)
        .await
        .succeeds("a container's start")?;
    let (printed, _) = container
        .sh(&format!("cat {SETTING}"))
        .await
        .succeeds("ExecSync")?;
    same("what the container sees", "42", printed.as_str())
}

/// The time in which no further event must arrive.
pub(super) const QUIET: Duration = Duration::from_millis(200);

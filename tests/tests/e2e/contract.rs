//! Contract tests that `nri/contract` cannot do from outside: they inspect the daemon, its host and
//! its log, or use a fault point. The names contain the point of CONTRACT.md.

mod addresses;

use std::{fs, time::Duration};

use cairn_tests::{
    Daemon, Setup,
    cri::{self, ContainerState},
    look,
    output::stdout,
    plugin::{Behavior, Plugin},
    until::until,
};
use nri::{
    Handlers,
    adjust::{self, SetResources},
    proto::{Event, OptionalString},
    stub::Stub,
};

/// A daemon with one plugin.
async fn with_plugin() -> (Daemon, Plugin) {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "blocker").await;
    (daemon, plugin)
}

#[tokio::test]
async fn contract_c01_nothing_is_made_after_the_hook_of_a_pod() {
    let (daemon, plugin) = with_plugin().await;
    let gate = plugin.blocks(Event::RunPodSandbox);
    let cri = daemon.cri();
    let (pod, files) = tokio::join!(cri.pod("ready"), async {
        plugin.sees(Event::RunPodSandbox, "ready").await;
        let files = look::tree(&daemon.path("state"));
        gate.open();
        files
    });
    // After the hook, the daemon may only write records: no new mount point, no new namespace.
    let after = look::tree(&daemon.path("state"));
    let mut new = after.difference(&files);
    let made = new.find(|p| p.contains("netns") || p.contains("shm"));
    assert_eq!(made, None, "made after the hook");
    pod.end().await;
}

#[tokio::test]
async fn contract_c01_run_promises_nothing_about_volumes() {
    // A volume that appears after RunPodSandbox must be usable.
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("volumes").await;
    let volume = daemon.path("volumes/late");
    fs::create_dir(&volume).expect("a directory");
    fs::write(volume.join("file"), "late").expect("a file");
    let mut config = pod.cri.container_config("c", &["cat", "/volume/file"]);
    config.mounts = vec![cri::Mount {
        host_path: volume.display().to_string(),
        container_path: "/volume".into(),
        ..Default::default()
    }];
    let container = pod.started(config).await;
    container.exited().await;
    assert_eq!(container.records()[0].content, b"late");
    pod.end().await;
}

#[tokio::test]
async fn a_missing_host_path_of_a_mount_is_made_as_a_directory() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("volumes").await;
    let volume = daemon.path("volumes/missing/below");
    let mut config = pod.cri.container_config("c", &["touch", "/volume/file"]);
    config.mounts = vec![cri::Mount {
        host_path: volume.display().to_string(),
        container_path: "/volume".into(),
        ..Default::default()
    }];
    let container = pod.try_create(config).await.expect("CreateContainer");
    container.start().await.expect("StartContainer");
    container.exited().await;
    assert!(volume.join("file").exists());
    pod.end().await;
}

#[tokio::test]
async fn contract_c01_and_c04_a_veto_names_its_plugin_and_leaves_nothing_on_the_machine() {
    let (daemon, plugin) = with_plugin().await;
    let cri = daemon.cri();
    let pod = cri.pod("stays").await;
    let warm_up = pod.run("warm-up", &["true"]).await;
    warm_up.exited().await;
    warm_up.remove().await.expect("RemoveContainer");
    let before = daemon.inventory().await;
    for event in [Event::RunPodSandbox, Event::CreateContainer] {
        plugin.does(event, Behavior::Error("not this one".into()));
    }
    let of_pod = cri.try_pod(cri.pod_config("veto")).await.map(drop);
    let config = cri.container_config("c", &["true"]);
    let of_container = pod.try_create(config).await.map(drop);
    for refused in [of_pod, of_container] {
        let refused = refused.expect_err("vetoed");
        assert!(refused.message().contains("10-blocker"), "{refused}");
        assert!(refused.message().contains("not this one"), "{refused}");
    }
    daemon.leaves_only(&before).await;
    plugin.behaves();
    pod.end().await;
}

#[tokio::test]
async fn contract_c02_while_stop_blocks_nothing_is_unmounted_or_deleted() {
    let (daemon, plugin) = with_plugin().await;
    let cri = daemon.cri();
    let pod = cri.pod("intact").await;
    let container = pod.sleeper("c").await;
    container.sh("echo kept > /dev/shm/kept").await;
    let mounts = |daemon: &Daemon| look::mounts(daemon.yard.pid());
    let before = mounts(&daemon);
    let gate = plugin.blocks(Event::StopPodSandbox);
    let call = tokio::spawn({
        let pod = pod.clone();
        async move { pod.stop().await }
    });
    plugin.sees(Event::StopPodSandbox, "intact").await;
    let now = mounts(&daemon);
    // A container's own rootfs may be removed with the container; the pod's files must remain.
    let missing = before.difference(&now).filter(|m| !m.ends_with("/rootfs"));
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "unmounted too early: {missing:?}");
    let shm = before
        .iter()
        .find(|m| m.contains(&pod.id) && m.ends_with("shm"));
    let shm = shm.expect("the pod's shm is mounted under its id");
    let kept = fs::read_to_string(daemon.yard.inside(shm).join("kept"));
    assert_eq!(kept.expect("shm is intact"), "kept\n");
    gate.open();
    call.await.expect("no panic").expect("StopPodSandbox");
    let left: Vec<_> = mounts(&daemon)
        .into_iter()
        .filter(|m| m.contains(&pod.id))
        .collect();
    assert!(left.is_empty(), "still mounted: {left:?}");
    pod.remove().await.expect("RemovePodSandbox");
}

/// A change of resources that hangs in the kernel holds the NRI turn. Meanwhile a creation is
/// recorded and waits for the turn.
#[tokio::test]
async fn contract_c04_a_plugin_that_joins_before_the_hook_of_a_creation_is_told_of_its_end() {
    let setup = Setup::default().env("CAIRN_FAULT", "container.update.cgroup=hang");
    let daemon = Daemon::with(setup).await;
    let pod = daemon.cri().pod("p").await;
    let other = pod.sleeper("other").await;
    let hanging = tokio::spawn(async move { other.limit_memory(64 << 20).await });
    let config = pod.cri.container_config("c", &["true"]);
    let creating = tokio::spawn({
        let pod = pod.clone();
        async move { pod.try_create(config).await }
    });
    let records = daemon.path("root/containers");
    until("the creation is on record", async || {
        let records = fs::read_dir(&records).ok()?;
        (records.flatten().count() == 2).then_some(())
    })
    .await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "late").await;
    plugin.does(Event::CreateContainer, Behavior::Error("no".into()));
    assert!(!creating.is_finished(), "the turn is not free yet");
    assert!(creating.await.expect("no panic").is_err(), "vetoed");
    let reported = ["CreateContainer", "StopContainer", "RemoveContainer"];
    assert_eq!(plugin.list(), reported.map(|event| format!("{event} p c")));
    hanging.await.expect("no panic").expect_err("it hangs");
    plugin.behaves();
    pod.end().await;
}

#[tokio::test]
async fn contract_c08_a_value_that_cannot_be_had_is_told_with_the_plugin_that_set_values() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("p").await;
    let target = pod.sleeper("target").await;
    let handlers = Handlers::new().update_container(|_, container, _| {
        let mut update = adjust::update(&container.id, false);
        update.memory_limit(40 << 20);
        let linux = update.linux.get_or_insert_default();
        let value = "nonsense".to_owned();
        linux.resources.get_or_insert_default().blockio_class = Some(OptionalString { value });
        async move { Ok(vec![update]) }
    });
    let mut plugin = Stub::builder(handlers)
        .index("10")
        .name("updates")
        .socket(daemon.nri_socket());
    let _plugin = plugin.start().await.expect("it joins");
    until("it is active", async || {
        let plugins = daemon.plugins().await;
        plugins.iter().any(|p| p["state"] == "active").then_some(())
    })
    .await;
    let refused = target
        .limit_memory(64 << 20)
        .await
        .expect_err("no such class");
    let text = refused.message();
    assert!(text.contains("with values of 10-updates"), "{text}");
    assert!(text.contains("blockio_class"), "{text}");
    pod.end().await;
}

#[tokio::test]
async fn contract_c10_a_stop_waits_for_a_slow_plugin_and_takes_no_dead_process_for_alive() {
    let (daemon, plugin) = with_plugin().await;
    let pod = daemon.cri().pod("told").await;
    let container = pod.sleeper("c").await;
    let gate = plugin.blocks(Event::StopContainer);
    let mut call = tokio::spawn({
        let container = container.clone();
        async move { container.stop(Duration::from_secs(1)).await }
    });
    plugin.sees(Event::StopContainer, "told").await;
    assert_eq!(container.state().await, ContainerState::ContainerExited);
    // Longer than its grace period and the time in which a killed process must end.
    let early = tokio::time::timeout(Duration::from_secs(15), &mut call).await;
    assert!(early.is_err(), "it waits for the plugin: {early:?}");
    drop(gate);
    call.await.expect("it ends").expect("StopContainer");
    let log = daemon.log();
    assert!(!log.contains("could not be killed"), "{log}");
    pod.end().await;
}

/// The plugin that blocks the update gets no event of the end, so that the end does not wait for
/// it.
#[tokio::test]
async fn contract_c12_a_stop_and_a_removal_wait_for_the_update_under_way() {
    let daemon = Daemon::start().await;
    let events = [Event::UpdatePodSandbox];
    let slow = Plugin::subscribed(&daemon.nri_socket(), "10", "slow", &events).await;
    let other = Plugin::join(&daemon.nri_socket(), "20", "other").await;
    for by in ["stop", "remove"] {
        let pod = daemon.cri().pod(by).await;
        let gate = slow.blocks(Event::UpdatePodSandbox);
        let updating = tokio::spawn({
            let pod = pod.clone();
            async move { pod.share_cpu(300).await }
        });
        slow.sees(Event::UpdatePodSandbox, by).await;
        let ending = tokio::spawn({
            let pod = pod.clone();
            async move {
                match by {
                    "stop" => pod.stop().await,
                    _ => pod.remove().await,
                }
            }
        });
        // This call is queued after the call that ends the pod: when it is answered, the other one
        // is in progress.
        let config = pod.cri.container_config("c", &["true"]);
        drop(pod.try_create(config).await);
        gate.open();
        let updated = updating.await.expect("no panic");
        updated.expect("UpdatePodSandboxResources");
        ending.await.expect("no panic").expect(by);
        slow.behaves();
        drop(pod.remove().await);
        let list = other.list();
        let at = |event: &str| {
            list.iter()
                .position(|line| *line == format!("{event} {by}"))
        };
        let updated = at("PostUpdatePodSandbox").expect("the update's event is sent");
        assert!(at("StopPodSandbox") > Some(updated), "{list:?}");
    }
}

/// Mounts in the yard; the mount ends with the yard.
async fn mount(daemon: &Daemon, args: &[&str]) {
    let mount = daemon.yard.command("mount").args(args).status();
    assert!(mount.await.expect("mount runs").success(), "{args:?}");
}

#[tokio::test]
async fn contract_o3_the_names_of_cdi_devices_are_told_at_create_container() {
    let daemon = Daemon::start().await;
    // An /etc for the yard only: the machine's must not change.
    let own = daemon.path("etc");
    fs::create_dir(&own).expect("a directory");
    let at = own.display().to_string();
    mount(&daemon, &["-t", "tmpfs", "etc", &at]).await;
    for dir in ["upper", "work"] {
        fs::create_dir(daemon.yard.inside(&own).join(dir)).expect("a directory");
    }
    let layers = format!("lowerdir=/etc,upperdir={at}/upper,workdir={at}/work");
    mount(&daemon, &["-t", "overlay", "etc", "-o", &layers, "/etc"]).await;
    let dir = daemon.yard.inside("/etc/cdi");
    fs::create_dir(&dir).expect("it is not the machine's");
    let device = serde_json::json!({
        "cdiVersion": "0.6.0",
        "kind": "cairn.test/thing",
        "devices": [{ "name": "one", "containerEdits": { "env": ["THING=one"] } }],
    });
    fs::write(dir.join("test.json"), device.to_string()).expect("a file");
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "told").await;
    let pod = daemon.cri().pod("p").await;
    let mut config = pod.cri.container_config("c", &["sleep", "1000"]);
    config.cdi_devices = vec![cri::CdiDevice {
        name: "cairn.test/thing=one".into(),
    }];
    let container = pod.try_create(config).await.expect("CreateContainer");
    let seen = plugin.sees(Event::CreateContainer, "p").await.container;
    let names: Vec<_> = seen.expect("a container").cdi_devices;
    let names: Vec<_> = names.into_iter().map(|device| device.name).collect();
    assert_eq!(names, ["cairn.test/thing=one"]);
    container.start().await.expect("StartContainer");
    assert_eq!(container.sh("echo $THING").await, "one");
    pod.end().await;
}

#[tokio::test]
async fn contract_o7_an_error_at_teardown_is_shown_everywhere_but_to_the_caller() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "fails").await;
    plugin.does(Event::StopPodSandbox, Behavior::Error("not stopped".into()));
    daemon.cri().pod("p").await.end().await;
    let why = "plugin 10-fails refused StopPodSandbox: not stopped";
    assert!(daemon.log().contains(why), "{}", daemon.log_tail(20));
    let table = stdout(&daemon.cairn(&["plugins"]).await);
    assert!(table.contains(why), "{table}");
    let timeline = stdout(&daemon.cairn(&["timeline"]).await);
    assert!(timeline.contains("not stopped"), "{timeline}");
    assert_eq!(plugin.events().last(), Some(&Event::RemovePodSandbox));
}

#[tokio::test]
async fn contract_c03_remove_still_has_the_pods_addresses_also_over_a_restart() {
    let (mut daemon, plugin) = with_plugin().await;
    let pod = daemon.cri().pod("addressed").await;
    let ip = pod.ip().await;
    pod.stop().await.expect("StopPodSandbox");
    let status = pod.status().await.network.expect("network");
    assert_eq!(status.ip, "", "clients get no address of a stopped pod");
    drop(plugin);
    daemon.kill_and_restart().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "restarted").await;
    let pod = daemon.cri().pod_by_id(&pod.id, "addressed");
    let gate = plugin.blocks(Event::RemovePodSandbox);
    let (removed, seen) = tokio::join!(pod.remove(), async {
        let seen = plugin.sees(Event::RemovePodSandbox, "addressed").await;
        gate.open();
        seen
    });
    removed.expect("RemovePodSandbox");
    assert_eq!(seen.pod.ips, [ip]);
}

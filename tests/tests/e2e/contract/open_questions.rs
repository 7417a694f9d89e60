//! The answers to the open questions O-1 to O-9 (CONTRACT.md) that no other theme shows.

use std::{fs, time::Duration};

use cairn_tests::{
    Daemon, Setup, cri,
    output::stdout,
    plugin::{Deed, Plugin},
};
use nri::proto::Event;

/// Mounts something in the yard, where it ends with the yard.
async fn mount(daemon: &Daemon, args: &[&str]) {
    let mount = daemon.yard.command("mount").args(args).status();
    assert!(mount.await.expect("mount runs").success(), "{args:?}");
}

#[tokio::test]
async fn contract_o3_the_names_of_cdi_devices_are_told_at_create_container() {
    let daemon = Daemon::start().await;
    // An /etc of the yard's own: the machine's stays as it is.
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
async fn contract_o5_a_plugin_that_timed_out_gets_no_stop_and_learns_by_its_next_list() {
    let hasty = Setup::default().toml("[nri]\nrequest_timeout = \"2s\"");
    let daemon = Daemon::with(hasty).await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "late").await;
    plugin.does(Event::RunPodSandbox, Deed::Hang);
    let cri = daemon.cri();
    let (pod, stays) = (cri.pod("p").await, cri.pod("stays").await);
    assert!(plugin.is_dismissed(Duration::from_secs(10)).await);
    pod.end().await;
    assert_eq!(plugin.list(), ["RunPodSandbox p"]);
    let again = Plugin::join(&daemon.nri_socket(), "10", "late").await;
    let listed = again.synchronised().await.0;
    let listed: Vec<_> = listed.iter().map(|pod| &pod.id).collect();
    assert_eq!(listed, [&stays.id]);
    stays.end().await;
    assert_eq!(
        again.list(),
        ["StopPodSandbox stays", "RemovePodSandbox stays"]
    );
}

#[tokio::test]
async fn contract_o7_an_error_at_teardown_is_shown_everywhere_but_to_the_caller() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "fails").await;
    plugin.does(Event::StopPodSandbox, Deed::Error("not stopped".into()));
    daemon.cri().pod("p").await.end().await;
    let why = "plugin 10-fails refused StopPodSandbox: not stopped";
    assert!(daemon.log().contains(why), "{}", daemon.log_tail(20));
    let table = stdout(&daemon.cairn(&["plugins"]).await);
    assert!(table.contains(why), "{table}");
    let timeline = stdout(&daemon.cairn(&["timeline"]).await);
    assert!(timeline.contains("not stopped"), "{timeline}");
    assert_eq!(plugin.events().last(), Some(&Event::RemovePodSandbox));
}

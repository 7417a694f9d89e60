//! NRI plugins against the daemon: WebAssembly, Go peers, launched ones, and many at once.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use cairn_tests::{
    Daemon, Setup, bins,
    plugin::{Behavior, Plugin},
    until,
};
use nri::proto::Event;

/// Vetoes every container, with twelve bytes at 8.
const MODULE: &str = r#"(module
    (memory (export "memory") 2)
    (data (i32.const 8) "not by WASM!")
    (global $top (mut i32) (i32.const 1024))
    (func (export "malloc") (param i32) (result i32)
        global.get $top
        (global.set $top (i32.add (global.get $top) (local.get 0))))
    (func (export "free") (param i32))
    (func (export "plugin_api_version") (result i64) (i64.const 1))
    (func (export "plugin_configure") (param i32 i32) (result i64) (i64.const 0))
    (func (export "plugin_synchronize") (param i32 i32) (result i64) (i64.const 0))
    (func (export "plugin_shutdown") (param i32 i32) (result i64) (i64.const 0))
    (func (export "plugin_create_container") (param i32 i32) (result i64) (i64.const 0x88000000c)))"#;

#[tokio::test]
async fn a_webassembly_module_in_the_plugin_directory_is_a_plugin() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("module");
    fs::write(&file, wat::parse_str(MODULE).expect("a module")).expect("written");
    let daemon = Daemon::with(Setup::default().plugin("10-module", file)).await;
    let plugins = daemon.plugins().await;
    assert_eq!(plugins[0]["id"], "10-module", "{plugins:?}");
    assert_eq!(plugins[0]["state"], "active", "{plugins:?}");
    let pod = daemon.cri().pod("p").await;
    let config = pod.cri.container_config("c", &["true"]);
    let refused = pod.try_create(config).await.expect_err("it vetoes");
    assert!(
        refused.message().contains("10-module") && refused.message().ends_with("not by WASM!"),
        "{refused}"
    );
    pod.end().await;
}

#[tokio::test]
async fn go_plugins_and_ours_see_the_same_events_in_the_same_order() {
    let setup = Setup::default().plugin("90-launched", bins::peer("nri-logger"));
    let mut daemon = Daemon::with(setup).await;
    let ours = Plugin::join(&daemon.nri_socket(), "10", "ours").await;
    let (out, socket) = (
        daemon.path("golog.out"),
        daemon.nri_socket().display().to_string(),
    );
    let program = bins::peer("nri-logger").display().to_string();
    let argv = [&program, "-name", "golog", "-idx", "20", "-socket", &socket];
    daemon
        .yard
        .run(&argv, &[], &out)
        .await
        .expect("the Go plugin starts");
    let read = || fs::read_to_string(&out).unwrap_or_default();
    until("the Go plugin is synchronised", || async {
        read().contains("synchronised").then_some(())
    })
    .await;
    let cri = daemon.cri();
    let pod = cri.pod("both").await;
    let one = pod.sleeper("one").await;
    let two = pod.run("two", &["sh", "-c", "exit 1"]).await;
    two.exited().await;
    ours.sees_where("the exit of two", |s| {
        s.event == Event::StopContainer && s.container.as_ref().is_some_and(|c| c.name == "two")
    })
    .await;
    one.limit_memory(64 << 20)
        .await
        .expect("UpdateContainerResources");
    pod.share_cpu(300).await.expect("UpdatePodSandboxResources");
    one.stop(Duration::from_secs(5))
        .await
        .expect("StopContainer");
    two.remove().await.expect("RemoveContainer");
    pod.end().await;
    until("the Go plugin saw the end", || async {
        read().contains("RemovePodSandbox both").then_some(())
    })
    .await;
    let go: Vec<String> = read()
        .lines()
        .filter(|l| !l.contains("synchronised") && !l.contains("level="))
        .map(str::to_owned)
        .collect();
    assert_eq!(go, ours.list());
    let kinds: BTreeSet<i32> = ours.events().iter().map(|e| *e as i32).collect();
    assert_eq!(
        kinds.len(),
        13,
        "all thirteen events were among them: {:?}",
        ours.list()
    );
}

#[tokio::test]
async fn hostile_in_one_pod_delays_another_by_its_request_timeout_at_most() {
    let daemon = Daemon::with(Setup::default().toml("[nri]\nrequest_timeout = \"10s\"")).await;
    let hostile = Plugin::subscribed(
        &daemon.nri_socket(),
        "10",
        "hostile",
        &[Event::RunPodSandbox, Event::CreateContainer],
    )
    .await;
    hostile.does(Event::CreateContainer, Behavior::Hang);
    let cri = daemon.cri();
    let victim = cri.pod("victim").await;
    let other = cri.pod("other").await;
    let stuck = tokio::spawn({
        let victim = victim.clone();
        async move { victim.create("c", &["true"]).await }
    });
    hostile.sees(Event::CreateContainer, "victim").await;
    let start = Instant::now();
    other.run("c", &["true"]).await.exited().await;
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(cri.pods().await.len(), 2);
    stuck
        .await
        .expect("the creation goes on without the plugin");
    victim.end().await;
    other.end().await;
}

#[tokio::test]
async fn plugins_that_register_without_end_leave_cri_its_descriptors() {
    let daemon = Daemon::with(Setup::default().open_files(512, 512)).await;
    let mut plugins = Vec::new();
    let refused = loop {
        let name = format!("a{}", plugins.len());
        let socket = daemon.nri_socket();
        let joined = Plugin::try_join(&socket, "10", &name, &[Event::PostUpdateContainer]);
        match tokio::time::timeout(Duration::from_secs(10), joined).await {
            Ok(Ok(plugin)) => plugins.push(plugin),
            Ok(Err(refused)) => break refused,
            Err(_) => break "no answer".to_owned(),
        }
    };
    assert!(refused.contains("64 plugins are connected"), "{refused}");
    assert_eq!(plugins.len(), 64);
    // Uses a separate client, and checks that a container can still be made.
    let listed = daemon.cairn(&["ps"]).await;
    assert!(listed.status.success(), "{listed:?}");
    let pod = daemon.cri().pod("p").await;
    pod.run("c", &["true"]).await.exited().await;
    pod.end().await;
}

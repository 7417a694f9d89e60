//! NRI plugins against the daemon: adjustments, updates, joining, Go peers, and hostile ones.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use cairn_tests::{
    Daemon, Setup, bins, look,
    plugin::{Deed, EVENTS, Plugin, held},
    until,
};
use nri::{
    adjust::{Adjust, SetResources},
    proto::{ContainerAdjustment, Event},
};

/// The hostile one alone has little time: the good one has what a busy machine needs.
const HASTY: &str =
    "[nri.plugin.\"10-hostile\"]\nrequest_timeout = \"700ms\"\nsync_timeout = \"5s\"";

#[tokio::test]
async fn two_plugins_that_set_the_same_fail_the_creation_by_name() {
    let daemon = Daemon::start().await;
    let one = Plugin::join(&daemon.nri_socket(), "10", "one").await;
    let two = Plugin::join(&daemon.nri_socket(), "20", "two").await;
    for (plugin, value) in [(&one, "1"), (&two, "2")] {
        plugin.adjusts(move |_, _| {
            let mut adjust = ContainerAdjustment::default();
            adjust.add_env("BOTH", value);
            Some(adjust)
        });
    }
    let pod = daemon.cri().pod("conflict").await;
    let error = pod
        .try_create(pod.cri.container_config("c", &["true"]))
        .await
        .expect_err("a conflict");
    for word in ["10-one", "20-two", "BOTH"] {
        assert!(error.message().contains(word), "{word}: {error}");
    }
    assert!(daemon.cri().containers().await.is_empty());
    pod.end().await;
}

#[tokio::test]
async fn a_later_plugin_sees_what_an_earlier_one_adjusted() {
    let daemon = Daemon::start().await;
    let one = Plugin::join(&daemon.nri_socket(), "10", "one").await;
    let two = Plugin::join(&daemon.nri_socket(), "20", "two").await;
    one.adjusts(|_, _| {
        let mut adjust = ContainerAdjustment::default();
        adjust.add_env("EARLY", "seen");
        Some(adjust)
    });
    let pod = daemon.cri().pod("order").await;
    pod.create("c", &["true"]).await;
    let seen = two
        .sees(Event::CreateContainer, "order")
        .await
        .container
        .expect("a container");
    assert!(seen.env.iter().any(|e| e == "EARLY=seen"), "{:?}", seen.env);
    pod.end().await;
}

#[tokio::test]
async fn an_unsolicited_update_is_applied_and_failures_are_told() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "updater").await;
    let pod = daemon.cri().pod("update").await;
    let container = pod.sleeper("c").await;
    let mut good = nri::adjust::update(&container.id, false);
    good.memory_limit(40 << 20);
    let mut bad = nri::adjust::update("f".repeat(64), false);
    bad.memory_limit(40 << 20);
    let failed = plugin
        .runtime()
        .update_containers(vec![good, bad], Vec::new())
        .await;
    let failed = failed.expect("UpdateContainers");
    assert_eq!(
        failed
            .iter()
            .map(|u| u.container_id.clone())
            .collect::<Vec<_>>(),
        ["f".repeat(64)]
    );
    let resources = container
        .status()
        .await
        .resources
        .and_then(|r| r.linux)
        .expect("resources");
    assert_eq!(resources.memory_limit_in_bytes, 40 << 20);
    pod.end().await;
}

#[tokio::test]
async fn a_plugin_that_joins_late_learns_of_everything_once() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("join").await;
    let before = pod.sleeper("before").await;
    let mut set = tokio::task::JoinSet::new();
    for n in 0..100 {
        let pod = pod.clone();
        set.spawn(async move { pod.create(&format!("c{n}"), &["true"]).await.id });
    }
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "late").await;
    let mut all = BTreeSet::from([before.id]);
    while let Some(id) = set.join_next().await {
        all.insert(id.expect("created"));
    }
    let (pods, listed) = plugin.synchronised().await;
    assert_eq!(pods.iter().map(|p| &p.id).collect::<Vec<_>>(), [&pod.id]);
    let listed: Vec<String> = listed.into_iter().map(|c| c.id).collect();
    let mut known = listed.clone();
    known.extend(
        plugin
            .seen()
            .into_iter()
            .filter(|s| s.event == Event::CreateContainer)
            .filter_map(|s| s.container.map(|c| c.id)),
    );
    let once: BTreeSet<String> = known.iter().cloned().collect();
    assert_eq!(known.len(), once.len(), "one was told twice");
    assert_eq!(once, all, "none is missing");
    pod.end().await;
}

#[tokio::test]
async fn the_daemon_lives_without_its_plugins_and_takes_them_back() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("alone").await;
    for _ in 0..3 {
        let plugin = Plugin::join(&daemon.nri_socket(), "10", "guest").await;
        pod.create(&format!("c{}", daemon.yard.next()), &["true"])
            .await;
        plugin.sees(Event::CreateContainer, "alone").await;
        drop(plugin);
    }
    pod.end().await;
}

/// Vetoes every container, in twelve bytes at 8.
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
        EVENTS.len(),
        "all thirteen events were among them: {:?}",
        ours.list()
    );
}

#[tokio::test]
async fn a_launched_plugin_that_dies_leaves_no_process() {
    let daemon = Daemon::with(
        Setup::default()
            .plugin("10-dies", "/bin/false")
            .plugin("20-lives", bins::peer("nri-logger"))
            .plugin("not-a-plugin", "/bin/true"),
    )
    .await;
    daemon.cri().pod("after").await.end().await;
    let processes = look::processes(daemon.yard.pid());
    assert!(
        processes.iter().any(|p| p.contains("20-lives")),
        "{processes:?}"
    );
    assert!(
        !processes
            .iter()
            .any(|p| p.contains("10-dies") || p.contains("not-a-plugin"))
    );
}

/// What a plugin does wrong, and whether it keeps its connection after that.
fn deeds() -> [(&'static str, Deed, bool); 8] {
    [
        ("error", Deed::Error("refused on purpose".into()), true),
        ("hang", Deed::Hang, false),
        ("exit", Deed::Exit, false),
        ("garbage", Deed::Garbage, false),
        ("half frame", Deed::HalfFrame, false),
        ("flood", Deed::Flood, false),
        ("second registration", Deed::RegisterAgain, true),
        ("panic", Deed::Panic, true),
    ]
}

/// One cell of the table: the pod's life goes on as CONTRACT.md says, the good plugin behind the
/// hostile one sees it all, and nothing is left.
async fn hostile(daemon: &Daemon, event: Event, what: &str, deed: Deed, polite: bool) {
    // Who is to answer has time for it: it is the hostile one that is hasty.
    let name = if polite { "patient" } else { "hostile" };
    let hostile = Plugin::join(&daemon.nri_socket(), "10", name).await;
    let good = Plugin::join(&daemon.nri_socket(), "20", "good").await;
    hostile.does(event, deed.clone());
    let cell = format!("{event:?} x {what}");
    let vetoes = matches!(deed, Deed::Error(_) | Deed::Panic);
    let start = Instant::now();
    let failed = life(daemon, event).await;
    if vetoes && is_setup(event) {
        let error = failed.unwrap_or_else(|| panic!("{cell}: the veto is heard"));
        assert!(
            error.contains(&format!("10-{name}")) && !error.contains('\n'),
            "{cell}: {error}"
        );
    } else {
        assert_eq!(failed, None, "{cell}");
        let events = good.events();
        assert!(
            events.contains(&event),
            "{cell}: the good plugin was told: {:?}",
            good.list()
        );
    }
    assert!(
        start.elapsed() < Duration::from_secs(60),
        "{cell}: {:?}",
        start.elapsed()
    );
    if !polite {
        assert!(
            hostile.is_dismissed(Duration::from_secs(10)).await,
            "{cell}: it is closed"
        );
    } else {
        // A second registration makes no second plugin, and takes no name away.
        let there = daemon.plugins().await;
        let there = there.iter().filter(|plugin| plugin["state"] == "active");
        let ids: Vec<_> = there.map(|plugin| &plugin["id"]).collect();
        assert_eq!(ids, [&format!("10-{name}"), "20-good"], "{cell}");
    }
    assert!(
        daemon.cri().pods().await.is_empty(),
        "{cell}: a pod is left"
    );
    assert!(
        look::cgroup_pids(daemon.cgroup_parent()).is_empty(),
        "{cell}: a process is left"
    );
    assert!(
        daemon.yard.ending(daemon.pid()).is_none(),
        "{cell}: the daemon has ended"
    );
    held(&cell);
}

fn is_setup(event: Event) -> bool {
    use Event::{
        CreateContainer, RunPodSandbox, StartContainer, UpdateContainer, UpdatePodSandbox,
    };
    matches!(
        event,
        RunPodSandbox | CreateContainer | StartContainer | UpdateContainer | UpdatePodSandbox
    )
}

/// A whole life with every event in it; answers the first error and cleans up in any case.
async fn life(daemon: &Daemon, event: Event) -> Option<String> {
    let cri = daemon.cri();
    let name = format!("{event:?}").to_lowercase();
    let pod = match cri.try_pod(cri.pod_config(&name)).await {
        Ok(pod) => pod,
        Err(e) => return Some(e.message().to_owned()),
    };
    let steps = async {
        let script = "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done";
        let container = pod
            .try_create(cri.container_config("c", &["sh", "-c", script]))
            .await?;
        container.start().await?;
        container.limit_memory(64 << 20).await?;
        pod.share_cpu(300).await?;
        container.stop(Duration::from_secs(5)).await?;
        container.remove().await
    };
    let failed = steps
        .await
        .err()
        .map(|e: tonic::Status| e.message().to_owned());
    let stopped = pod.stop().await.err().map(|e| e.message().to_owned());
    let removed = pod.remove().await.err().map(|e| e.message().to_owned());
    failed.or(stopped).or(removed)
}

macro_rules! hostile_table {
    ($($name:ident: $event:ident,)*) => {
        $(#[tokio::test]
        async fn $name() {
            let daemon = Daemon::with(Setup::default().toml(HASTY)).await;
            for (what, deed, polite) in deeds() {
                hostile(&daemon, Event::$event, what, deed, polite).await;
            }
        })*
    };
}

hostile_table! {
    hostile_at_run_pod_sandbox: RunPodSandbox,
    hostile_at_create_container: CreateContainer,
    hostile_at_post_create_container: PostCreateContainer,
    hostile_at_start_container: StartContainer,
    hostile_at_post_start_container: PostStartContainer,
    hostile_at_update_container: UpdateContainer,
    hostile_at_post_update_container: PostUpdateContainer,
    hostile_at_update_pod_sandbox: UpdatePodSandbox,
    hostile_at_post_update_pod_sandbox: PostUpdatePodSandbox,
    hostile_at_stop_container: StopContainer,
    hostile_at_remove_container: RemoveContainer,
    hostile_at_stop_pod_sandbox: StopPodSandbox,
    hostile_at_remove_pod_sandbox: RemovePodSandbox,
}

#[tokio::test]
async fn hostile_names_and_indices_are_refused_and_silent_clients_block_nobody() {
    let daemon = Daemon::with(Setup::default().toml("[nri]\nregistration_timeout = \"1s\"")).await;
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(
            std::os::unix::net::UnixStream::connect(daemon.nri_socket()).expect("it listens"),
        );
    }
    for (index, name) in [
        ("1", "short"),
        ("1a", "letters"),
        ("100", "long"),
        ("-1", "minus"),
    ] {
        let refused =
            Plugin::try_join(&daemon.nri_socket(), index, name, &[Event::RunPodSandbox]).await;
        assert!(refused.is_err(), "{index}-{name}");
    }
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "good").await;
    daemon.cri().pod("fine").await.end().await;
    assert_eq!(plugin.list().len(), 3);
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
    hostile.does(Event::CreateContainer, Deed::Hang);
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
    // A client of its own, and all that a container needs.
    let listed = daemon.cairn(&["ps"]).await;
    assert!(listed.status.success(), "{listed:?}");
    let pod = daemon.cri().pod("p").await;
    pod.run("c", &["true"]).await.exited().await;
    pod.end().await;
}

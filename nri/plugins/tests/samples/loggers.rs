//! logger, network-logger, template: their output.

use nri::proto::{Event, LinuxResources};

use crate::world::{World, container, pod};

const LOGGER: &str = env!("CARGO_BIN_EXE_logger");

/// Runs a complete life of a pod with one container.
async fn life(world: &World) {
    let nri = &world.nri;
    let (none, some) = (LinuxResources::default, || (pod(&[]), container()));
    nri.run_pod_sandbox(pod(&[])).await.expect("no veto");
    nri.update_pod_sandbox(pod(&[]), none(), none())
        .await
        .expect("no veto");
    nri.post_update_pod_sandbox(pod(&[])).await;
    world.create(pod(&[]), container()).await.expect("no veto");
    let (p, c) = some();
    nri.post_create_container(p, c).await;
    let (p, c) = some();
    nri.start_container(p, c).await.expect("no veto");
    let (p, c) = some();
    nri.post_start_container(p, c).await;
    let turn = nri.turn(Event::UpdateContainer).await;
    let (p, c) = some();
    nri.update_container(&turn, p, c, none())
        .await
        .expect("no veto");
    let (p, c) = some();
    nri.post_update_container(p, c).await;
    let (p, c) = some();
    nri.stop_container(&turn, p, c).await;
    let (p, c) = some();
    nri.remove_container(p, c).await;
    nri.stop_pod_sandbox(pod(&[])).await;
    nri.remove_pod_sandbox(pod(&[])).await;
}

#[tokio::test]
async fn the_logger_prints_one_line_for_each_event_in_order() {
    let mut world = World::start().await;
    let log = world.path("log");
    let flags = ["-idx", "10", "-events-only", "-log-file", &log];
    world.run(LOGGER, &flags, &["10-logger"]).await;
    life(&world).await;
    let expected = "\
Synchronize 0 pods 0 containers
RunPodSandbox pod0
UpdatePodSandbox pod0
PostUpdatePodSandbox pod0
CreateContainer pod0 ctr0
ValidateContainerAdjustment pod0 ctr0
PostCreateContainer pod0 ctr0
StartContainer pod0 ctr0
PostStartContainer pod0 ctr0
UpdateContainer pod0 ctr0
PostUpdateContainer pod0 ctr0
StopContainer pod0 ctr0
RemoveContainer pod0 ctr0
StopPodSandbox pod0
RemovePodSandbox pod0
";
    assert_eq!(world.read("log"), expected);
}

#[tokio::test]
async fn the_logger_subscribes_to_what_it_is_told_and_dumps_yaml() {
    let mut world = World::start().await;
    let log = world.path("log");
    let flags = ["--idx=10", "--name=eye", "-events=pod", "-log-file", &log];
    world.run(LOGGER, &flags, &["10-eye"]).await;
    life(&world).await;
    let text = world.read("log");
    assert!(text.contains("RunPodSandbox:   name: pod0\n"), "{text}");
    assert!(text.contains("RunPodSandbox:   - \"10.0.0.7\"\n"), "{text}");
    assert!(!text.contains("Container"), "{text}");
}

#[tokio::test]
async fn the_logger_leaves_its_mark_where_it_is_told() {
    let mut world = World::start().await;
    let log = world.path("log");
    let first = [
        "-idx",
        "10",
        "-add-annotation",
        "seen",
        "-add-env",
        "SEEN",
        "-log-file",
        &log,
    ];
    world.run(LOGGER, &first, &["10-logger"]).await;
    let merged = world.create(pod(&[]), container()).await.expect("no veto");
    let mark = merged.adjust.env[0].value.clone();
    assert!(mark.starts_with("logger-pid-"), "{mark}");
    assert_eq!(merged.adjust.annotations["seen"], mark);
    let text = world.read("log");
    assert!(text.contains("CreateContainer:   id: ctr0-id\n"), "{text}");

    let second = [
        "-idx",
        "20",
        "-set-annotation",
        "seen",
        "-set-env",
        "SEEN",
        "-log-file",
        &log,
    ];
    world.run(LOGGER, &second, &["20-logger"]).await;
    let merged = world
        .create(pod(&[]), container())
        .await
        .expect("the second overrides");
    assert_ne!(merged.adjust.annotations["seen"], mark);
    assert_eq!(merged.adjust.env.len(), 1);

    let third = ["-idx", "30", "-add-env", "SEEN", "-log-file", &log];
    world.run(LOGGER, &third, &["30-logger"]).await;
    let refused = world
        .create(pod(&[]), container())
        .await
        .expect_err("a conflict");
    assert!(
        refused.contains("30-logger") && refused.contains("20-logger"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_launched_logger_takes_its_identity_and_its_configuration_from_the_runtime() {
    let world = World::start_with(|dir| {
        for folder in ["plugins", "conf.d"] {
            std::fs::create_dir(dir.join(folder)).expect("a folder");
        }
        // Copied by a separate process: a program that another test starts at this moment would
        // inherit the file open for writing, and an executable that is open for writing cannot be
        // started.
        let mut copy = std::process::Command::new("cp");
        let copied = copy.arg(LOGGER).arg(dir.join("plugins/30-logger")).status();
        assert!(copied.expect("cp starts").success());
        let log = dir.join("log");
        let config = format!("logFile: {}\nevents: [pod]\naddEnv: X\n", log.display());
        std::fs::write(dir.join("conf.d/30-logger.conf"), config).expect("a file");
    })
    .await;
    // The runtime starts without a slow plugin.
    let active = |world: &World| {
        let plugins = world.nri.plugins();
        let mut states = plugins.iter().map(|plugin| plugin.state);
        states.any(|state| state == nri::PluginState::Active)
    };
    world.until("it has joined", active).await;
    let info = world.nri.plugins().remove(0);
    assert_eq!(info.id.to_string(), "30-logger");
    assert_eq!(info.events, nri::EventMask::POD);
    world.nri.run_pod_sandbox(pod(&[])).await.expect("no veto");
    assert!(world.read("log").starts_with("RunPodSandbox: pod:\n"));
}

#[tokio::test]
async fn the_network_logger_tells_namespace_and_addresses() {
    let mut world = World::begin(vec![pod(&[])], |_| {}).await;
    let log = world.path("log");
    let flags = ["-idx", "10", "-log-file", &log];
    let program = env!("CARGO_BIN_EXE_network-logger");
    world.run(program, &flags, &["10-network-logger"]).await;
    world.nri.run_pod_sandbox(pod(&[])).await.expect("no veto");
    let mut on_host = pod(&[]);
    on_host.linux = None;
    on_host.ips.clear();
    world.nri.stop_pod_sandbox(on_host.clone()).await;
    world.nri.remove_pod_sandbox(on_host).await;
    world.nri.shutdown("the test ends").await;
    let over = |world: &World| world.read("log").contains("Shutdown");
    world.until("it is told of the end", over).await;
    let expected = "\
network-logger: Synchronize: default/pod0: /run/netns/pod0, addresses 10.0.0.7
network-logger: RunPodSandbox: default/pod0: /run/netns/pod0, addresses 10.0.0.7
network-logger: StopPodSandbox: default/pod0: network of the host, no address
network-logger: RemovePodSandbox: default/pod0: network gone, no address
";
    let text = world.read("log");
    assert!(text.starts_with(expected), "{text}");
}

#[tokio::test]
async fn the_template_handles_everything_and_changes_nothing() {
    let mut world = World::start().await;
    let program = env!("CARGO_BIN_EXE_template");
    world.run(program, &["-idx", "10"], &["10-template"]).await;
    life(&world).await;
    let info = world.nri.plugins().remove(0);
    assert_eq!(info.events, nri::EventMask::ALL);
    assert_eq!((info.calls, info.errors), (14, 0));
}

#[tokio::test]
async fn a_launched_template_says_its_configuration_and_every_event() {
    let world = World::start_with(|dir| {
        for folder in ["plugins", "conf.d"] {
            std::fs::create_dir(dir.join(folder)).expect("a folder");
        }
        // A launched plugin has no standard error; a script sets one. Not written by this process:
        // see `write_program`.
        let (program, log) = (env!("CARGO_BIN_EXE_template"), dir.join("log"));
        let script = format!("#!/bin/sh\nexec {program} 2>>{}\n", log.display());
        let file = dir.join("plugins/10-template");
        let mut shell = std::process::Command::new("sh");
        let shell = shell.args(["-c", r#"printf %s "$1" >"$0" && chmod 755 "$0""#]);
        let written = shell.arg(file).arg(script).status();
        assert!(written.expect("a shell").success());
        std::fs::write(dir.join("conf.d/10-template.conf"), "cfgParam1: hello\n").expect("a file");
    })
    .await;
    let joined = |world: &World| world.read("log").contains("0 pods, 0 containers");
    world.until("it has joined", joined).await;
    life(&world).await;
    let text = world.read("log");
    let lines: Vec<_> = text
        .lines()
        .filter_map(|l| l.strip_prefix("template: "))
        .collect();
    assert!(lines[0].starts_with("configured by test"), "{text}");
    assert!(lines[0].ends_with("cfgParam1 = \"hello\""), "{text}");
    let events = lines[2..].iter().filter_map(|l| l.split(' ').next());
    let events: std::collections::BTreeSet<_> = events.collect();
    assert_eq!((lines.len(), events.len()), (16, 14), "{text}");
}

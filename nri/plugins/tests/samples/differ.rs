//! differ: connects twice and prints the difference.

use crate::world::{World, container, pod};

const DIFFER: &str = env!("CARGO_BIN_EXE_differ");
const DEMO: &str = env!("CARGO_BIN_EXE_demo-adjuster");

#[tokio::test]
async fn the_differ_tells_what_plugins_between_its_indices_change() {
    let mut world = World::start().await;
    let log = world.path("log");
    let flags = ["-indices", "5,90", "-log-file", &log];
    world.run(DIFFER, &flags, &["05-differ", "90-differ"]).await;
    world.nri.run_pod_sandbox(pod(&[])).await.expect("no veto");
    let text = world.read("log");
    assert_eq!(text, "differ: RunPodSandbox pod0-id: 05..90: no changes\n");

    let flags = ["-idx", "50", "-env", "DEMO=1", "-args", "sleep 5"];
    world.run(DEMO, &flags, &["50-demo-adjuster"]).await;
    let flags = ["-idx", "95", "-env", "BEYOND=1"];
    world.run(DEMO, &flags, &["95-demo-adjuster"]).await;
    world.create(pod(&[]), container()).await.expect("no veto");
    let text = world.read("log");
    assert!(!text.contains("BEYOND"), "{text}");
    let about = "differ: CreateContainer pod0-id ctr0-id: 05..90: container.";
    for reported in [
        "args[0]: \"/bin/sh\" -> \"sleep\"",
        "args[1]: nothing -> \"5\"",
        "env[1]: nothing -> \"DEMO=1\"",
    ] {
        assert!(text.contains(&format!("{about}{reported}\n")), "{text}");
    }
}

#[tokio::test]
async fn the_differ_shows_yaml_and_the_original_on_request() {
    let mut world = World::start().await;
    let log = world.path("log");
    let flags = ["-yaml", "-verbose-level", "1", "-log-file", &log];
    world.run(DIFFER, &flags, &["00-differ", "99-differ"]).await;
    let flags = ["-idx", "50", "-annotation", "demo=1"];
    world.run(DEMO, &flags, &["50-demo-adjuster"]).await;
    world.create(pod(&[]), container()).await.expect("no veto");
    let text = world.read("log");
    assert!(text.contains("ctr0-id: 00:   name: ctr0\n"), "{text}");
    assert!(text.contains("00..99: container.annotations:\n"), "{text}");
    assert!(text.contains("00..99:     demo: \"1\"\n"), "{text}");
}

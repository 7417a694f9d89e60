//! Sample plugins of upstream, built unmodified from the Go module (`hack/peers`).
//!
//! Only one is available as a module: `ulimit-adjuster` of v0.4.0, which is inside the main module
//! of that version. The others are separate modules without a release.

use cairn_tests::{Daemon, Setup, bins};

/// Its annotation: a YAML list, by container.
fn ulimits(container: &str, yaml: &str) -> (String, String) {
    let key = format!("ulimits.nri.containerd.io/container.{container}");
    (key, yaml.to_owned())
}

#[tokio::test]
async fn go_samples_the_ulimit_adjuster_sets_limits_and_refuses_nonsense() {
    let setup = Setup::default().plugin("10-ulimit-adjuster", bins::peer("ulimit-adjuster"));
    let daemon = Daemon::with(setup).await;
    let cri = daemon.cri();
    let mut config = cri.pod_config("limited");
    let few =
        "- type: nofile\n  hard: 765\n  soft: 432\n- type: RLIMIT_CORE\n  hard: 0\n  soft: 0\n";
    config.annotations.extend([
        ulimits("few", few),
        ulimits("unknown", "- type: nonsense\n  hard: 1\n  soft: 1\n"),
        ulimits("crooked", "- type: nofile\n  hard: 1\n  soft: 2\n"),
    ]);
    let pod = cri.try_pod(config).await.expect("RunPodSandbox");
    let few = pod.sleeper("few").await;
    // busybox reads the limits of its own process, which inherits init's limits.
    let limits = few.exec(&["cat", "/proc/1/limits"]).await;
    let row = |name: &str| {
        let line = limits.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {limits}"));
        let values = line[name.len()..].split_whitespace().take(2);
        values.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("Max open files"), ["432", "765"]);
    assert_eq!(row("Max core file size"), ["0", "0"]);
    // A container without an annotation keeps the runtime's limits.
    let other = pod.sleeper("other").await;
    let limits = other.exec(&["cat", "/proc/1/limits"]).await;
    assert!(!limits.contains(" 765 "), "{limits}");
    for (name, why) in [
        ("unknown", "failed to parse type"),
        ("crooked", "must have hard limit >= soft limit"),
    ] {
        let refused = pod.try_create(cri.container_config(name, &["true"])).await;
        let refused = refused
            .expect_err("the sample vetoes it")
            .message()
            .to_owned();
        assert!(refused.contains(why), "{refused}");
        assert!(refused.contains("10-ulimit-adjuster"), "{refused}");
    }
    assert_eq!(cri.containers().await.len(), 2, "a refused one is left");
    pod.end().await;
}

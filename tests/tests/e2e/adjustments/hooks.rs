//! OCI hooks of all six kinds.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use cairn_tests::{
    bins, look,
    pod::{pod_namespaces, security, user_namespace},
    until,
};
use nri::{
    adjust::{Adjust, HookKind},
    proto::{ContainerAdjustment, Hook, Mount, OptionalInt},
};

use super::stage::{Stage, sleeper};

const KINDS: [(HookKind, &str); 6] = [
    (HookKind::Prestart, "prestart"),
    (HookKind::CreateRuntime, "createRuntime"),
    (HookKind::CreateContainer, "createContainer"),
    (HookKind::StartContainer, "startContainer"),
    (HookKind::Poststart, "poststart"),
    (HookKind::Poststop, "poststop"),
];

/// Saves its stdin, the spec in the bundle that the state names, its namespaces and its
/// capabilities.
const SCRIPT: &str = r#"
cat > "$OUT/$KIND.json"
bundle=$(sed -n 's/.*"bundle": *"\([^"]*\)".*/\1/p' "$OUT/$KIND.json")
cat "$bundle/config.json" > "$OUT/$KIND.config" 2> /dev/null
for ns in mnt net pid; do readlink /proc/self/ns/$ns; done > "$OUT/$KIND.ns"
grep CapEff /proc/self/status > "$OUT/$KIND.caps"
echo "$KIND" >> "$OUT/order"
"#;

/// Only startContainer runs inside: its program and directory are paths in the container.
fn hook(kind: HookKind, name: &str, out: &Path) -> Hook {
    let inside = kind == HookKind::StartContainer;
    let busybox = bins::system("busybox").expect("installed");
    Hook {
        path: if inside {
            "/bin/busybox".to_owned()
        } else {
            busybox.display().to_string()
        },
        args: ["sh", "-c", SCRIPT].map(String::from).into(),
        env: vec![
            "PATH=/bin:/usr/bin:/sbin:/usr/sbin".to_owned(),
            format!("KIND={name}"),
            format!(
                "OUT={}",
                if inside {
                    "/out".to_owned()
                } else {
                    out.display().to_string()
                }
            ),
        ],
        timeout: None,
    }
}

pub(crate) async fn hooks_of_all_six_kinds_run_at_their_time_with_the_state_on_stdin(
    stage: &Stage,
) {
    let out = stage.volume("out");
    let to = out.clone();
    stage.adjusts(move |_, adjust| {
        for (kind, name) in KINDS {
            adjust.add_hook(kind, hook(kind, name, &to));
        }
        adjust.add_annotation("adjusted", "yes").add_mount(Mount {
            destination: "/out".into(),
            r#type: "bind".into(),
            source: to.display().to_string(),
            options: vec!["bind".into(), "rw".into()],
        });
    });
    let pod = stage.pod("hooks").await;
    let script = "echo program >> /out/order; exec sleep 1000";
    let container = pod.run("c", &["sh", "-c", script]).await;
    let order = || fs::read_to_string(out.join("order")).unwrap_or_default();
    until("poststart runs", || async {
        (order().contains("poststart") && order().contains("program")).then_some(())
    })
    .await;
    let pid = container.pid().await.expect("it runs");
    let inside = container
        .sh("for ns in mnt net pid; do readlink /proc/self/ns/$ns; done")
        .await;
    let capabilities = container.sh("grep CapEff /proc/self/status").await;
    container.stop(Duration::ZERO).await.expect("StopContainer");
    until("poststop runs", || async {
        order().contains("poststop").then_some(())
    })
    .await;
    in_order(&order());
    for (kind, name) in KINDS {
        let read = |what: &str| fs::read_to_string(out.join(format!("{name}.{what}")));
        let state = read("json").expect("it ran");
        let state: serde_json::Value = serde_json::from_str(&state).expect("JSON");
        assert_eq!(state["id"], container.id.as_str(), "{name}");
        assert_eq!(state["annotations"]["adjusted"], "yes", "{name}");
        let status: &[&str] = match kind {
            HookKind::Prestart | HookKind::CreateRuntime | HookKind::CreateContainer => {
                &["creating", "created"]
            }
            HookKind::StartContainer => &["created"],
            HookKind::Poststart => &["running"],
            HookKind::Poststop => &["stopped"],
        };
        let reported = state["status"].as_str().expect("a status");
        assert!(status.contains(&reported), "{name}: {reported}");
        if matches!(
            kind,
            HookKind::Prestart | HookKind::CreateRuntime | HookKind::Poststart
        ) {
            assert_eq!(state["pid"], pid, "{name}: of init, as the runtime counts");
        }
        if kind != HookKind::StartContainer {
            let config = read("config").expect("written");
            let config: serde_json::Value = serde_json::from_str(&config).unwrap_or_else(|e| {
                panic!("{name}: the bundle {} holds the spec: {e}", state["bundle"])
            });
            assert_eq!(
                config["process"]["args"][0], "sh",
                "{name}: of the container"
            );
        }
    }
    let namespaces = |name: &str| {
        let text = fs::read_to_string(out.join(format!("{name}.ns"))).expect("written");
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let inside: Vec<String> = inside.lines().map(str::to_owned).collect();
    assert_eq!(namespaces("startContainer"), inside);
    assert_eq!(namespaces("createContainer"), inside);
    for outside in ["prestart", "createRuntime", "poststart", "poststop"] {
        let seen = namespaces(outside);
        assert!(seen.iter().all(|ns| !inside.contains(ns)), "{outside}");
    }
    let confined = fs::read_to_string(out.join("startContainer.caps")).expect("written");
    assert_eq!(confined.trim(), capabilities, "as the container's program");
    pod.end().await;
}

fn in_order(order: &str) {
    let places: BTreeMap<&str, usize> = order.lines().enumerate().map(|(n, l)| (l, n)).collect();
    assert_eq!(places.len(), order.lines().count(), "each once: {order}");
    let chain = [
        "prestart",
        "createRuntime",
        "createContainer",
        "startContainer",
        "program",
        "poststop",
    ];
    for pair in chain.windows(2) {
        assert!(places[pair[0]] < places[pair[1]], "{order}");
    }
    assert!(places["startContainer"] < places["poststart"], "{order}");
}

/// There, the hook's own process has no access to the runtime's directories.
pub(crate) async fn a_create_container_hook_runs_in_a_user_namespace_too(stage: &Stage) {
    let busybox = bins::system("busybox").expect("installed");
    stage.adjusts(move |_, adjust| {
        let script =
            r#"grep -q '"bundle"' && test "$(id -u)" = 0 && grep -q 100000 /proc/self/uid_map"#;
        adjust.add_hook(
            HookKind::CreateContainer,
            Hook {
                path: busybox.display().to_string(),
                args: ["sh", "-c", script].map(String::from).into(),
                ..Default::default()
            },
        );
    });
    let cri = stage.daemon.cri();
    let mut config = cri.pod_config("mapped");
    let options = pod_namespaces(&mut config);
    options.userns_options = Some(user_namespace());
    let options = Some(options.clone());
    let pod = cri.try_pod(config).await.expect("RunPodSandbox");
    let mut config = cri.container_config("c", &["sleep", "1000"]);
    security(&mut config).namespace_options = options;
    // The hook is content.
    pod.started(config).await;
    pod.end().await;
}

pub(crate) async fn a_hook_that_outlasts_its_timeout_is_ended(stage: &Stage) {
    let busybox = bins::system("busybox").expect("installed");
    stage.adjusts(move |name, adjust: &mut ContainerAdjustment| {
        let Some((kind, _)) = KINDS.iter().find(|(_, n)| n.to_lowercase() == name) else {
            return;
        };
        let path = match kind {
            HookKind::StartContainer => "/bin/busybox".to_owned(),
            _ => busybox.display().to_string(),
        };
        adjust.add_hook(
            *kind,
            Hook {
                path,
                args: ["sleep", "4321"].map(String::from).into(),
                env: Vec::new(),
                timeout: Some(OptionalInt { value: 1 }),
            },
        );
    });
    let pod = stage.pod("slow").await;
    let first = sleeper(&pod, "first").await;
    first.remove().await.expect("RemoveContainer");
    let before = stage.daemon.inventory().await;
    for (kind, name) in KINDS {
        let container = pod.create(&name.to_lowercase(), &["sleep", "1000"]).await;
        let start = Instant::now();
        let started = container.start().await;
        if matches!(kind, HookKind::Poststart | HookKind::Poststop) {
            started.unwrap_or_else(|e| panic!("{name}: {e}"));
        } else {
            let error = started.expect_err(name);
            assert!(error.message().contains("hook"), "{name}: {error}");
        }
        container.remove().await.expect("RemoveContainer");
        assert!(start.elapsed() < Duration::from_secs(20), "{name}");
        until(&format!("the {name} hook has ended"), || async {
            let left = look::processes(stage.daemon.yard.pid());
            (!left.iter().any(|p| p.starts_with("sleep"))).then_some(())
        })
        .await;
    }
    stage.daemon.leaves_only(&before).await;
    pod.end().await;
}

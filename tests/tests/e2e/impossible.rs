//! Values that cannot be applied are rejected with field, value and origin when they are requested
//! (C-04.6), not by the kernel at the start.

use std::time::Duration;

use cairn_tests::{
    Daemon, Setup, cri,
    image::Image,
    look,
    plugin::Plugin,
    pod::{Pod, container_namespaces, pod_namespaces, security, set_image, user_namespace},
};
use nri::{
    adjust::{Adjust, SetResources},
    proto::{ContainerAdjustment, LinuxDevice},
};
use serde_json::json;
use tonic::{Code, Status};

/// More than any test machine has.
const MANY: &str = "4000";

/// Checks an error: one line, this code, and all of these words. Returns the fault, if any.
fn faults(error: &Status, code: Code, words: &[&str]) -> Option<String> {
    let text = error.message();
    let reported = words.iter().all(|word| text.contains(word)) && !text.contains('\n');
    (error.code() != code || !reported)
        .then(|| format!("{:?} {text:?}, not {words:?}", error.code()))
}

/// Tries a creation, and checks its error; nothing may be left behind. Returns the faults.
async fn refusal(
    daemon: &Daemon,
    pod: &Pod,
    config: cri::ContainerConfig,
    code: Code,
    words: &[&str],
) -> Option<String> {
    let before = daemon.inventory().await;
    let fault = match pod.try_create(config).await {
        Err(error) => faults(&error, code, words),
        Ok(container) => {
            let started = container.start().await;
            container.stop(Duration::ZERO).await.ok();
            container.remove().await.expect("RemoveContainer");
            Some(format!("{words:?}: created; the start: {started:?}"))
        }
    };
    daemon.leaves_only(&before).await;
    fault
}

async fn warm(daemon: &Daemon, pod: &Pod) {
    let first = pod.create("warm-up", &["true"]).await;
    first.remove().await.expect("RemoveContainer");
    daemon.inventory().await;
}

fn resources(config: &mut cri::ContainerConfig) -> &mut cri::LinuxContainerResources {
    let linux = config.linux.as_mut().expect("set by container_config");
    linux.resources.get_or_insert_default()
}

type Spoil = fn(&mut cri::LinuxContainerResources);

/// Field, value, and the change of a client's request. All such values: `runtime/tests/oci/limits.rs`.
const OF_CLIENTS: [(&str, &str, Spoil); 3] = [
    ("cpuset_cpus", MANY, |r| r.cpuset_cpus = MANY.into()),
    ("cpuset_mems", MANY, |r| r.cpuset_mems = MANY.into()),
    ("memory_limit_in_bytes", "1000", |r| {
        r.memory_limit_in_bytes = 1000;
    }),
];

#[tokio::test]
async fn limits_that_no_start_can_have_fail_the_creation_by_field_and_value() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("impossible").await;
    warm(&daemon, &pod).await;
    let mut wrong = Vec::new();
    for (field, value, spoil) in OF_CLIENTS {
        let mut config = pod.cri.container_config("c", &["true"]);
        spoil(resources(&mut config));
        let field = format!("linux.resources.{field}: ");
        let words = [field.as_str(), value];
        wrong.extend(refusal(&daemon, &pod, config, Code::InvalidArgument, &words).await);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    pod.end().await;
}

#[tokio::test]
async fn updates_that_no_container_can_have_are_refused_and_change_nothing() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("impossible-update").await;
    let created = pod.create("created", &["sleep", "1000"]).await;
    let running = pod.sleeper("running").await;
    let mut wrong = Vec::new();
    for (field, value, spoil) in OF_CLIENTS {
        let mut asked = cri::LinuxContainerResources::default();
        spoil(&mut asked);
        for container in [&created, &running] {
            let done = pod
                .cri
                .client
                .update_container(&container.id, asked.clone());
            let words = [field, value];
            wrong.extend(match done.await {
                Ok(()) => Some(format!("{words:?}: updated")),
                Err(error) => faults(&error, Code::InvalidArgument, &words),
            });
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    created.start().await.expect("it is as it was");
    pod.end().await;
}

fn with(
    change: impl FnOnce(&mut ContainerAdjustment) -> &mut ContainerAdjustment,
) -> ContainerAdjustment {
    let mut adjust = ContainerAdjustment::default();
    change(&mut adjust);
    adjust
}

fn device(path: &str, major: i64) -> LinuxDevice {
    LinuxDevice {
        path: path.to_owned(),
        r#type: "c".to_owned(),
        major,
        minor: 3,
        ..LinuxDevice::default()
    }
}

/// Field, value, and the adjustment of a plugin, each judged by a fact of this host. All such
/// values: `runtime/tests/oci/nri_apply/`.
fn of_plugins() -> Vec<(&'static str, &'static str, ContainerAdjustment)> {
    vec![
        (
            "linux.resources.cpu.cpus",
            MANY,
            with(|a| a.cpuset_cpus(MANY)),
        ),
        (
            "linux.resources.cpu.mems",
            MANY,
            with(|a| a.cpuset_mems(MANY)),
        ),
        (
            "linux.namespaces[\"network\"]",
            "/no/such/namespace",
            with(|a| a.add_namespace("network", "/no/such/namespace")),
        ),
        (
            "linux.namespaces[\"uts\"]",
            "/proc/1/ns/net",
            with(|a| a.add_namespace("uts", "/proc/1/ns/net")),
        ),
        (
            "rlimits[\"RLIMIT_NOFILE\"]",
            "1099511627776",
            with(|a| a.add_rlimit("RLIMIT_NOFILE", 1 << 40, 1 << 40)),
        ),
    ]
}

#[tokio::test]
async fn an_adjustment_that_no_start_can_have_fails_the_creation_by_field_value_and_plugin() {
    let daemon = Daemon::start().await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "adjuster").await;
    let pod = daemon.cri().pod("impossible-adjustment").await;
    warm(&daemon, &pod).await;
    let mut wrong = Vec::new();
    for (field, value, adjust) in of_plugins() {
        plugin.adjusts(move |_, _| Some(adjust.clone()));
        let config = pod.cri.container_config("c", &["true"]);
        let field = format!("adjust.{field} (set by 10-adjuster): ");
        let words = [field.as_str(), value];
        wrong.extend(refusal(&daemon, &pod, config, Code::InvalidArgument, &words).await);
    }
    // A value that cairn does not support.
    plugin.adjusts(|_, _| Some(with(|a| a.add_device(device("/proc/x", 1)))));
    let config = pod.cri.container_config("c", &["true"]);
    let words = ["adjust.linux.devices[\"/proc/x\"] (set by 10-adjuster): "];
    wrong.extend(refusal(&daemon, &pod, config, Code::Unimplemented, &words).await);
    assert!(wrong.is_empty(), "{wrong:#?}");
    pod.end().await;
}

#[tokio::test]
async fn what_a_user_namespace_cannot_have_fails_the_creation() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut config = cri.pod_config("mapped");
    pod_namespaces(&mut config).userns_options = Some(user_namespace());
    let pod = cri.try_pod(config).await.expect("RunPodSandbox");
    let container = |name: &str| {
        let mut config = pod.cri.container_config(name, &["true"]);
        container_namespaces(&mut config).userns_options = Some(user_namespace());
        config
    };
    let first = pod.try_create(container("warm-up")).await.expect("created");
    first.remove().await.expect("RemoveContainer");
    let mut wrong = Vec::new();

    let mut config = container("user");
    security(&mut config).run_as_user = Some(cri::Int64Value { value: 65_536 });
    let words = ["linux.security_context: ", "65536"];
    wrong.extend(refusal(&daemon, &pod, config, Code::InvalidArgument, &words).await);
    assert!(wrong.is_empty(), "{wrong:#?}");
    pod.end().await;
}

#[tokio::test]
async fn a_missing_program_fails_the_start_once_by_name_and_by_the_plugin_that_set_it() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("missing-program").await;
    let plugin = Plugin::join(&daemon.nri_socket(), "10", "adjuster").await;
    for (name, words) in [
        ("client", "start: exec \"/no/such\": no such file"),
        (
            "plugin",
            "start: args (set by 10-adjuster): exec \"/no/such\": no such file",
        ),
    ] {
        let sets = name == "plugin";
        plugin.adjusts(move |_, _| sets.then(|| with(|a| a.set_args(["/no/such"]))));
        let program = if sets { "true" } else { "/no/such" };
        let container = pod.create(name, &[program]).await;
        let error = container.start().await.expect_err("there is no program");
        let words = format!("container {}: {words}", container.id);
        assert_eq!(faults(&error, Code::Internal, &[&words]), None);
        assert_eq!(error.message().matches("no such file").count(), 1);
        let status = container.status().await;
        assert_eq!(status.state(), cri::ContainerState::ContainerExited);
        let why = (status.exit_code, status.reason.as_str());
        assert_eq!(why, (128, "StartError"));
        assert!(status.message.contains("/no/such"), "{status:?}");
        assert!(look::cgroup_pids(daemon.cgroup_parent()).is_empty());
        container.remove().await.expect("RemoveContainer");
    }
    pod.end().await;
}

#[tokio::test]
async fn a_start_without_enough_memory_says_so() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("little-memory").await;
    let mut config = pod.cri.container_config("c", &["true"]);
    // Above the minimum, but too little for a spec of this length, which is read in the container's
    // cgroup.
    resources(&mut config).memory_limit_in_bytes = 1 << 20;
    let path = |n| format!("/proc/{n:0100}");
    security(&mut config).masked_paths = (0..40_000).map(path).collect();
    let container = pod.try_create(config).await.expect("CreateContainer");
    let error = container.start().await.expect_err("too little");
    let words = ["want of memory", "its limit is 1048576 bytes"];
    assert_eq!(faults(&error, Code::Internal, &words), None);
    let status = container.status().await;
    assert!(status.message.contains("want of memory"), "{status:?}");
    pod.end().await;
}

#[tokio::test]
async fn an_image_has_no_volume_at_or_below_the_kernels_own_places() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("volumes").await;
    warm(&daemon, &pod).await;
    let mut wrong = Vec::new();
    let volumes = [
        ("/proc", "/proc"),
        ("/proc/sys/kernel", "/proc"),
        ("/proc/self/attr", "/proc"),
        ("/data/../sys/fs/cgroup", "/sys"),
        ("//dev/./x", "/dev"),
    ];
    for (n, (volume, of)) in volumes.into_iter().enumerate() {
        let reference = format!("localhost/cairn-test/volume{n}:1");
        let declared = json!({ volume: {} });
        let image = Image::busybox(&reference);
        daemon.import(&image.config("Volumes", declared)).await;
        let mut config = pod.cri.container_config("c", &["true"]);
        set_image(&mut config, &reference);
        let below = format!("at or below {of}");
        let words = ["image VOLUME \"/", below.as_str()];
        let fault = refusal(&daemon, &pod, config.clone(), Code::InvalidArgument, &words).await;
        wrong.extend(fault.map(|fault| format!("{volume}: {fault}")));
        if volume == "//dev/./x" {
            // A mount of the client's replaces it.
            config.mounts = vec![cri::Mount {
                host_path: "/tmp".into(),
                container_path: "/dev/x".into(),
                ..Default::default()
            }];
            let covered = pod.try_create(config).await.expect("no VOLUME is left");
            covered.remove().await.expect("RemoveContainer");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    pod.end().await;
}

#[tokio::test]
async fn a_client_mounts_nothing_over_proc_but_a_procfs_and_nothing_inside_but_files_of_lxcfs() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("over-proc").await;
    warm(&daemon, &pod).await;
    let with_mount = |from: &str, to: &str| {
        let mut config = pod.cri.container_config("c", &["cat", "/proc/uptime"]);
        config.mounts = vec![cri::Mount {
            host_path: from.into(),
            container_path: to.into(),
            ..Default::default()
        }];
        config
    };
    let mut wrong = Vec::new();
    for (to, why) in [
        ("/proc", "by a procfs"),
        ("/proc/sys/kernel", "inside /proc"),
        ("/proc/self/attr", "inside /proc"),
    ] {
        let config = with_mount("/tmp", to);
        let words = [to, why];
        wrong.extend(refusal(&daemon, &pod, config, Code::InvalidArgument, &words).await);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    std::fs::write(daemon.path("uptime"), "1.00 2.00\n").expect("a file");
    let uptime = daemon.path("uptime").display().to_string();
    for (from, to, says) in [
        (uptime.as_str(), "/proc/uptime", Some("1.00 2.00")),
        ("/proc", "/proc", None),
    ] {
        let container = pod.try_create(with_mount(from, to)).await;
        let container = container.unwrap_or_else(|e| panic!("{from} at {to}: {e}"));
        container.start().await.expect("StartContainer");
        container.exited().await;
        let printed = container.lines();
        assert!(
            says.is_none_or(|line| printed == [line]),
            "{from}: {printed:?}"
        );
        container.remove().await.expect("RemoveContainer");
    }
    pod.end().await;
}

/// Tries to write the host's own value back: harmless if it succeeds.
const WRITES: &str = "cat /proc/sys/kernel/core_pattern > /proc/sys/kernel/core_pattern";

#[tokio::test]
async fn a_container_that_asks_for_no_masks_gets_them_where_the_operator_says_so() {
    let toml = "[container]\nmasks = \"default\"\n[handlers.bare]\nmasks = \"requested\"";
    let daemon = Daemon::with(Setup::default().toml(toml)).await;
    let masked = daemon.cri().pod("masked").await.sleeper("c").await;
    let tried = masked.try_exec(&["sh", "-c", WRITES], 10).await;
    let tried = tried.expect("ExecSync");
    assert_ne!(tried.code, 0, "{tried:?}");
    assert!(tried.err.contains("Read-only file system"), "{tried:?}");
    assert_eq!(masked.sh("cat /proc/keys | wc -c").await.trim(), "0");

    let cri = daemon.cri();
    let request = cri::RunPodSandboxRequest {
        config: Some(cri.pod_config("bare")),
        runtime_handler: "bare".into(),
    };
    let mut runtime = cri.client.runtime.clone();
    let answer = runtime.run_pod_sandbox(request).await;
    let id = answer.expect("RunPodSandbox").into_inner().pod_sandbox_id;
    let bare = cri.pod_by_id(&id, "bare").sleeper("c").await;
    assert_eq!(
        bare.try_exec(&["sh", "-c", WRITES], 10)
            .await
            .expect("ExecSync")
            .code,
        0
    );
}

#[test]
fn what_people_are_told_to_run_has_the_masks_of_a_kubelet() {
    let read = |path: &str| {
        let path = format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
    };
    let example: serde_json::Value =
        serde_json::from_str(&read("examples/container.json")).expect("JSON");
    let context = &example["linux"]["security_context"];
    let demo = read("hack/demo");
    for (list, paths) in [
        (
            "masked_paths",
            &["/proc/kcore", "/proc/keys", "/sys/firmware"][..],
        ),
        ("readonly_paths", &["/proc/sys", "/proc/sysrq-trigger"][..]),
    ] {
        let has: Vec<_> = context[list].as_array().into_iter().flatten().collect();
        for path in paths {
            assert!(
                has.iter().any(|p| *p == path),
                "{list} of the example: {path}"
            );
            assert!(demo.contains(&format!("\"{path}\"")), "the demo: {path}");
        }
    }
}

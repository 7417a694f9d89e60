//! Different hosts: mount options of the state directory, kernels that lack a system call.

use std::{fs, os::unix::net::UnixListener, path::Path, process::Output};

use cairn_tests::{
    Daemon, Setup,
    client::Cri,
    cri::{self, NamespaceMode},
    image::{BUSYBOX, Image},
    look,
    pod::{Pod, pod_security, security, user_namespace},
};
use serde_json::Value;

/// Namespaces of a pod: a shared PID namespace or one per container, with or without a user
/// namespace.
#[derive(Clone, Copy, Debug)]
struct Kind {
    pid: NamespaceMode,
    user: bool,
}

const PLAIN: Kind = Kind {
    pid: NamespaceMode::Container,
    user: false,
};
const ONE_PID_NAMESPACE: Kind = Kind {
    pid: NamespaceMode::Pod,
    user: false,
};
const USER: Kind = Kind {
    pid: NamespaceMode::Container,
    user: true,
};
const USER_AND_ONE_PID_NAMESPACE: Kind = Kind {
    pid: NamespaceMode::Pod,
    user: true,
};
const ALL: [Kind; 4] = [PLAIN, ONE_PID_NAMESPACE, USER, USER_AND_ONE_PID_NAMESPACE];

impl Kind {
    fn options(self) -> cri::NamespaceOption {
        cri::NamespaceOption {
            pid: self.pid.into(),
            userns_options: self.user.then(user_namespace),
            ..Default::default()
        }
    }

    fn config(self, cri: &Cri, name: &str) -> cri::PodSandboxConfig {
        let mut config = cri.pod_config(name);
        pod_security(&mut config).namespace_options = Some(self.options());
        config
    }

    /// Runs a pod with a container with a read-only root, and checks it from inside.
    async fn runs(self, cri: &Cri, name: &str) -> Pod {
        let pod = cri
            .try_pod(self.config(cri, name))
            .await
            .unwrap_or_else(|e| panic!("RunPodSandbox {name} ({self:?}): {e}"));
        let mut config = pod.cri.container_config("c", &["sleep", "1000"]);
        let security = security(&mut config);
        security.namespace_options = Some(self.options());
        security.readonly_rootfs = true;
        let container = pod.started(config).await;
        let map = container.exec(&["cat", "/proc/self/uid_map"]).await;
        assert_eq!(map.contains("100000"), self.user, "{map}");
        // Files of the image belong to the namespace's root, whichever id it has outside.
        assert_eq!(container.exec(&["stat", "-c", "%u", "/bin"]).await, "0");
        let first = container.exec(&["cat", "/proc/1/comm"]).await;
        let pause = self.pid == NamespaceMode::Pod;
        assert_eq!(first, if pause { "pause" } else { "sleep" });
        container
            .sh("grep -q localhost /etc/hosts && ! touch /x && echo s >/dev/shm/s")
            .await;
        pod
    }
}

/// Mounts at a path of the daemon's directory, inside the yard.
async fn mount(daemon: &Daemon, kind: &str, options: &str, at: &Path) {
    fs::create_dir_all(at).expect("the daemon's directory is ours");
    let mut mount = daemon.yard.command("mount");
    let done = mount.args(["-t", kind, "-o", options, "none"]).arg(at);
    assert!(done.status().await.expect("it starts").success(), "{kind}");
}

/// A daemon whose state directory is a separate mount with these options.
async fn with_state_on(options: &str, shared_root: bool) -> Daemon {
    let mut daemon = Daemon::new(Setup::default()).await;
    if shared_root {
        let mut share = daemon.yard.command("mount");
        let done = share.args(["--make-rshared", "/"]).status().await;
        assert!(done.expect("it starts").success());
    }
    mount(&daemon, "tmpfs", options, &daemon.path("state")).await;
    daemon.serve().await;
    daemon.import(&Image::busybox(BUSYBOX)).await;
    daemon
}

/// Runs pods of every kind across a killed daemon, and checks that none leaves anything behind.
async fn serves_on(options: &str, shared_root: bool) {
    let mut daemon = with_state_on(options, shared_root).await;
    let cri = daemon.cri();
    PLAIN.runs(&cri, "first").await.end().await;
    let before = daemon.inventory().await;
    let mut pods = Vec::new();
    for (kind, name) in ALL.into_iter().zip(["plain", "pids", "user", "both"]) {
        pods.push(kind.runs(&cri, name).await.id);
    }
    daemon.kill_and_restart().await;
    let cri = daemon.cri();
    for id in &pods {
        let pod = cri.pod_by_id(id, "again");
        assert_eq!(
            pod.status().await.state(),
            cri::PodSandboxState::SandboxReady
        );
        // By a monitor that the killed daemon started.
        let containers = cri.containers().await;
        let own = containers.iter().find(|c| c.pod_sandbox_id == *id);
        let own = cri.container_by_id(&own.expect("it is listed").id, daemon.path("none"));
        own.exec(&["true"]).await;
        pod.end().await;
    }
    ONE_PID_NAMESPACE.runs(&cri, "last").await.end().await;
    daemon.leaves_only(&before).await;
}

#[tokio::test]
async fn pods_of_every_kind_run_where_the_state_directory_is_noexec_and_the_root_private() {
    serves_on("noexec,nosuid,nodev,size=8m", false).await;
}

#[tokio::test]
async fn pods_of_every_kind_run_where_the_state_directory_is_noexec_and_the_root_shared() {
    serves_on("noexec,nosuid,nodev,size=8m", true).await;
}

#[tokio::test]
async fn an_idle_daemon_and_its_monitors_have_nothing_mounted_that_holds_up_a_shutdown() {
    let daemon = Daemon::start().await;
    let pod = ONE_PID_NAMESPACE.runs(&daemon.cri(), "running").await;
    let state = daemon.path("state").display().to_string();
    let mounts = look::mounts(daemon.yard.pid());
    let ours: Vec<_> = mounts.iter().filter(|m| m.starts_with(&state)).collect();
    assert!(!ours.is_empty(), "namespaces are pinned");
    // In the order of a shutdown: deeper mounts first.
    for mount in ours.iter().rev() {
        let unmount = daemon.yard.command("umount").arg(mount).output().await;
        let unmount = unmount.expect("umount starts");
        let why = String::from_utf8_lossy(&unmount.stderr);
        assert!(unmount.status.success(), "{why}");
    }
    pod.end().await;
}

#[tokio::test]
async fn pods_of_every_kind_run_where_a_file_system_context_takes_any_key() {
    // FSCONFIG_SET_FLAG without an effect, as before Linux 6.5.
    let daemon = Daemon::with(Setup::default().refused(&["fsconfig/1:0=OK"])).await;
    let log = daemon.log();
    assert!(
        log.contains("overlayfs interface api=Options"),
        "the old way is not taken: {log}"
    );
    let cri = daemon.cri();
    PLAIN.runs(&cri, "first").await.end().await;
    let before = daemon.inventory().await;
    for (kind, name) in ALL.into_iter().zip(["plain", "pids", "user", "both"]) {
        kind.runs(&cri, name).await.end().await;
    }
    daemon.leaves_only(&before).await;
}

#[tokio::test]
async fn a_kernel_that_is_too_old_is_told_at_the_start_in_one_line() {
    let mut daemon = Daemon::new(Setup::default().refused(&["mount_setattr=ENOSYS"])).await;
    daemon.spawn().await;
    let ended = daemon.yard.ended(daemon.pid()).await;
    assert_eq!(ended.code(), Some(78), "the unit does not start it again");
    let log = daemon.log();
    let lines: Vec<_> = log.lines().collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(
        lines[0].starts_with("cairn: Linux ")
            && lines[0].ends_with("cairn needs Linux 5.14 or later"),
        "{log}"
    );
    assert!(!daemon.path("root").exists(), "nothing was touched");
}

/// Checks Status, and the error of a pod with a user namespace, on a host without them.
async fn refuses_user_namespaces(daemon: &Daemon, why: &str) {
    let cri = daemon.cri();
    let mut client = cri.client.clone();
    let status = client
        .runtime
        .status(cri::StatusRequest { verbose: false })
        .await;
    let handlers = status.expect("Status").into_inner().runtime_handlers;
    let features = handlers[0].features.as_ref().expect("features");
    assert!(!features.user_namespaces && features.recursive_read_only_mounts);
    let error = match cri.try_pod(USER.config(&cri, "user")).await {
        Ok(_) => panic!("a pod with a user namespace runs"),
        Err(status) => status.message().to_owned(),
    };
    assert!(
        error.contains("user namespaces for pods are not available on this host")
            && error.contains(why),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
    let (_, report) = check(daemon).await;
    let user = finding(&report, "user namespaces");
    assert_eq!(user["state"], "limited", "{user}");
    assert!(
        user["found"]
            .as_str()
            .is_some_and(|found| found.contains(why)),
        "{user}"
    );
}

#[tokio::test]
async fn where_no_user_namespace_can_be_made_status_and_the_pods_error_say_so() {
    // CLONE_NEWUSER.
    let refused = Setup::default().refused(&["unshare/0&10000000=EPERM"]);
    let daemon = Daemon::with(refused).await;
    refuses_user_namespaces(&daemon, "unshare: Operation not permitted").await;
    PLAIN.runs(&daemon.cri(), "plain").await.end().await;
}

#[tokio::test]
async fn where_the_roots_file_system_shifts_no_owners_status_and_the_pods_error_say_so() {
    let mut daemon = Daemon::new(Setup::default()).await;
    mount(&daemon, "ramfs", "mode=755", &daemon.path("root")).await;
    daemon.serve().await;
    refuses_user_namespaces(&daemon, "shift layers").await;
}

/// Runs `cairn check` with the daemon's flags in its yard; returns its JSON output.
async fn check(daemon: &Daemon) -> (Output, Value) {
    let output = run_check(daemon, &["--output", "json"]).await;
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", cairn_tests::output::shown(&output)));
    (output, report)
}

async fn run_check(daemon: &Daemon, more: &[&str]) -> Output {
    let argv = daemon.refusing(daemon.argv_of("check"));
    let mut command = daemon.yard.command(&argv[0]);
    let output = command.args(&argv[1..]).args(more).output().await;
    output.expect("it starts")
}

fn finding<'r>(report: &'r Value, what: &str) -> &'r Value {
    let all = report["findings"].as_array().expect("a list");
    let found = all.iter().find(|finding| finding["what"] == what);
    found.unwrap_or_else(|| panic!("{what} is not in {report:#}"))
}

#[tokio::test]
async fn check_tells_what_the_host_has_and_leaves_nothing() {
    let mut daemon = Daemon::new(Setup::default()).await;
    let mounts = look::mounts(daemon.yard.pid());
    let (output, report) = check(&daemon).await;
    assert!(output.status.success(), "{report:#}");
    for what in [
        "kernel",
        "cgroups",
        "namespaces",
        "root",
        "state",
        "overlayfs",
        "user namespaces",
        "seccomp",
        "apparmor",
        "selinux",
        "helpers",
        "open files",
        "cni",
        "built-in bridge",
        "nri",
    ] {
        assert_ne!(finding(&report, what)["state"], "fails", "{report:#}");
    }
    assert!(!daemon.path("root").exists() && !daemon.path("state").exists());
    let left = look::tree(&daemon.path(""));
    assert!(!left.iter().any(|path| path.contains("check")), "{left:?}");
    assert_eq!(look::mounts(daemon.yard.pid()), mounts);

    // The daemon reports the same, once.
    daemon.serve().await;
    let log = daemon.log();
    assert_eq!(log.matches("host: kernel: Linux").count(), 1, "{log}");
    for finding in report["findings"].as_array().expect("a list") {
        if finding["state"] == "limited" && finding["what"] != "root" {
            let line = format!("host: {}:", finding["what"].as_str().expect("text"));
            assert_eq!(log.matches(&line).count(), 1, "{line} in {log}");
        }
    }
    let (_, report) = check(&daemon).await;
    let nri = finding(&report, "nri")["found"]
        .as_str()
        .expect("text")
        .to_owned();
    assert!(nri.contains("served by cairn"), "{nri}");
    let table = run_check(&daemon, &[]).await;
    let table = cairn_tests::output::stdout(&table);
    assert!(
        table.contains("kernel") && !table.contains('\u{1b}'),
        "{table}"
    );
}

#[tokio::test]
async fn check_fails_where_no_pod_could_run_and_says_what_to_do() {
    let daemon = Daemon::new(Setup::default()).await;
    mount(&daemon, "tmpfs", "ro", &daemon.path("state")).await;
    let _other_runtime = UnixListener::bind(daemon.nri_socket()).expect("the path is free");
    let (output, report) = check(&daemon).await;
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    assert_eq!(report["state"], "fails");
    for (what, found, cost) in [
        ("state", "read-only", "writable"),
        ("nri", "another runtime", "nri.socket"),
    ] {
        let finding = finding(&report, what);
        assert_eq!(finding["state"], "fails", "{finding}");
        assert!(
            finding["found"]
                .as_str()
                .is_some_and(|text| text.contains(found)),
            "{finding}"
        );
        assert!(
            finding["cost"]
                .as_str()
                .is_some_and(|text| text.contains(cost)),
            "{finding}"
        );
    }
}

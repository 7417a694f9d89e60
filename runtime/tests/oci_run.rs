//! Specs of `oci/` really run: what a container sees of itself is what CRI and the plugins asked for.
//! Needs root, and the helpers as `common` says.

#![allow(clippy::disallowed_methods, reason = "tests may block")]

mod common;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use cairn::oci::{
    ApplyContext, BindSource, HostDevice, HostFacts, HostView, ImageFacts, Inputs, Places, Policy,
    Propagation, SandboxFacts, SandboxFiles, apply_adjustment, container_spec,
};
use common::{Box, Ground, records};
use oci_spec::runtime::Spec;
use proto_cri::v1 as cri;
use proto_nri as nri;
use serde_json::{Value, json};

/// The host as it is, as far as these tests look.
struct View;

impl HostView for View {
    fn bind_source(&self, host_path: &str) -> Option<BindSource> {
        let resolved = fs::canonicalize(host_path).ok()?;
        Some(BindSource {
            is_dir: resolved.is_dir(),
            resolved,
            propagation: Propagation::Private,
            is_procfs: false,
        })
    }

    fn devices(&self, _: &str) -> Vec<HostDevice> {
        Vec::new()
    }
}

fn host() -> HostFacts {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let mask = status
        .lines()
        .find_map(|l| l.strip_prefix("CapEff:"))
        .expect("CapEff");
    HostFacts {
        capabilities: u64::from_str_radix(mask.trim(), 16).expect("a mask"),
        cgroup_v1: true,
        seccomp: true,
        recursive_readonly: true,
        devices: host_devices(),
        ..HostFacts::default()
    }
}

/// The files of a sandbox, in the test's directory.
fn sandbox(ground: &Ground) -> SandboxFacts {
    let file = |name: &str, text: &str| -> PathBuf {
        let path = ground.dir.path().join(name);
        fs::write(&path, text).expect("sandbox file");
        path
    };
    let shm = ground.dir.path().join("shm");
    fs::create_dir_all(&shm).expect("shm");
    SandboxFacts {
        id: "pod".to_owned(),
        hostname: "pod-name".to_owned(),
        privileged: true,
        files: SandboxFiles {
            hostname: file("hostname", "pod-name\n"),
            hosts: file("hosts", "127.0.0.1 from-the-pod\n"),
            resolv_conf: file("resolv.conf", "nameserver 192.0.2.1\n"),
            shm,
        },
        ..SandboxFacts::default()
    }
}

fn build(
    ground: &Ground,
    id: &str,
    script: &str,
    context: cri::LinuxContainerSecurityContext,
) -> Spec {
    let config = cri::ContainerConfig {
        command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        mounts: vec![cri::Mount {
            host_path: ground.dir.path().join("hosts").display().to_string(),
            container_path: "/run/given".to_owned(),
            readonly: true,
            ..cri::Mount::default()
        }],
        linux: Some(cri::LinuxContainerConfig {
            security_context: Some(cri::LinuxContainerSecurityContext {
                namespace_options: Some(cri::NamespaceOption {
                    pid: cri::NamespaceMode::Container as i32,
                    ..cri::NamespaceOption::default()
                }),
                ..context
            }),
            ..cri::LinuxContainerConfig::default()
        }),
        ..cri::ContainerConfig::default()
    };
    let image = ImageFacts {
        env: vec!["PATH=/bin".to_owned()],
        ..ImageFacts::default()
    };
    let passwd = fs::read_to_string(ground.root().join("etc/passwd")).expect("passwd");
    let built = container_spec(&Inputs {
        id,
        config: &config,
        sandbox: &sandbox(ground),
        host: &host(),
        policy: &Policy::default(),
        image: &image,
        view: &View,
        places: &Places::new(),
        rootfs: &ground.root(),
        passwd: Some(&passwd),
        group: Some("root:x:0:\nextra:x:5000:user\n"),
        seccomp_profile: None,
        target_pid_namespace: None,
        volumes: &BTreeMap::new(),
        image_mounts: &BTreeMap::new(),
    });
    built.expect("a valid container").spec
}

/// Puts a spec on the box. There is no sandbox here: its namespaces are new ones.
fn put(b: &mut Box, spec: &Spec) {
    b.spec = serde_json::to_value(spec).expect("serialisable");
    let list = b.spec["linux"]["namespaces"]
        .as_array_mut()
        .expect("namespaces");
    list.extend(["network", "ipc", "uts"].map(|kind| json!({"type": kind})));
    b.spec["linux"]["cgroupsPath"] = Value::from(format!("/{}", b.id));
}

async fn seen(ground: &Ground, b: &Box) -> Vec<String> {
    records(&ground.run(b).await)
        .into_iter()
        .map(|(_, _, line)| line)
        .collect()
}

#[track_caller]
fn has(lines: &[String], wanted: &str) {
    assert!(
        lines.iter().any(|l| l == wanted),
        "no line {wanted:?} in\n{}",
        lines.join("\n")
    );
}

fn empty_dirs(root: &Path) {
    for dir in ["run", "dev/shm"] {
        fs::create_dir_all(root.join(dir)).expect("a directory of the root");
    }
}

#[tokio::test]
async fn a_confined_container_is_confined_as_asked() {
    let mut ground = Ground::new().await;
    empty_dirs(&ground.root());
    let mut b = ground.container(&[]);
    for file in ["etc/hosts", "etc/hostname", "etc/resolv.conf", "run/given"] {
        fs::write(ground.root().join(file), "").expect("a mount point of a read-only root");
    }
    let script = "echo ids $(id -u) $(id -g) $(id -G); echo home $HOME $HOSTNAME; cat /etc/hosts; cat /run/given; \
        touch /x || echo root is read-only; echo x > /run/given || echo given is read-only; \
        echo 1 > /dev/shm/x && echo shm is writable; unshare -U true || echo no namespaces; \
        grep -E '^(CapEff|CapBnd|Seccomp|NoNewPrivs):' /proc/self/status; wc -c < /proc/interrupts";
    let context = cri::LinuxContainerSecurityContext {
        run_as_user: Some(cri::Int64Value { value: 0 }),
        supplemental_groups: vec![1234],
        readonly_rootfs: true,
        no_new_privs: true,
        masked_paths: vec!["/proc/interrupts".to_owned()],
        readonly_paths: vec!["/proc/sys".to_owned()],
        seccomp: Some(cri::SecurityProfile::default()),
        capabilities: Some(cri::Capability {
            drop_capabilities: vec!["ALL".to_owned()],
            add_capabilities: vec!["NET_BIND_SERVICE".to_owned()],
            ..cri::Capability::default()
        }),
        ..cri::LinuxContainerSecurityContext::default()
    };
    let spec = build(&ground, &b.id, script, context);
    put(&mut b, &spec);
    let lines = seen(&ground, &b).await;
    for wanted in [
        "ids 0 0 0 1234",
        "home /root pod-name",
        "127.0.0.1 from-the-pod",
        "root is read-only",
        "given is read-only",
        "shm is writable",
        "no namespaces",
        "CapEff:\t0000000000000400",
        "CapBnd:\t0000000000000400",
        "Seccomp:\t2",
        "NoNewPrivs:\t1",
        "0",
    ] {
        has(&lines, wanted);
    }
    assert_eq!(
        lines
            .iter()
            .filter(|l| *l == "127.0.0.1 from-the-pod")
            .count(),
        2
    );
}

/// The nodes directly below the host's `/dev`.
fn host_devices() -> Vec<HostDevice> {
    let entries = fs::read_dir("/dev").expect("/dev");
    let mut devices = Vec::new();
    for path in entries.map(|e| e.expect("an entry").path()) {
        // A loop device of another test's may go meanwhile.
        let Ok(meta) = fs::symlink_metadata(&path) else {
            continue;
        };
        let kind = match meta.file_type() {
            t if t.is_char_device() => 'c',
            t if t.is_block_device() => 'b',
            _ => continue,
        };
        devices.push(HostDevice {
            path,
            kind,
            major: rustix::fs::major(meta.rdev()).into(),
            minor: rustix::fs::minor(meta.rdev()).into(),
            mode: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
        });
    }
    devices
}

#[tokio::test]
async fn a_privileged_container_has_what_the_daemon_has() {
    let mut ground = Ground::new().await;
    let mut b = ground.container(&[]);
    let script = "grep -E '^(CapEff|Seccomp):' /proc/self/status; \
        for d in /dev/*; do test -b $d -o -c $d && echo $d; done; \
        grep -c '^sysfs /sys sysfs rw' /proc/self/mounts";
    let context = cri::LinuxContainerSecurityContext {
        privileged: true,
        seccomp: Some(cri::SecurityProfile::default()),
        ..cri::LinuxContainerSecurityContext::default()
    };
    let before = host_devices();
    let spec = build(&ground, &b.id, script, context);
    put(&mut b, &spec);
    let lines = seen(&ground, &b).await;
    // Those that others of this machine made or removed meanwhile may be there or not.
    let after = host_devices();
    let stayed = before
        .iter()
        .filter(|d| after.iter().any(|a| a.path == d.path));
    has(&lines, &format!("CapEff:\t{:016x}", host().capabilities));
    has(&lines, "Seccomp:\t0");
    has(&lines, "1");
    // A console is there only with a terminal.
    for device in stayed.filter(|d| !d.path.ends_with("console")) {
        has(&lines, &device.path.display().to_string());
    }
}

#[tokio::test]
async fn a_users_groups_are_those_of_the_image_and_the_request() {
    let mut ground = Ground::new().await;
    let mut b = ground.container(&[]);
    let context = cri::LinuxContainerSecurityContext {
        run_as_username: "user".to_owned(),
        supplemental_groups: vec![1234],
        ..cri::LinuxContainerSecurityContext::default()
    };
    let spec = build(
        &ground,
        &b.id,
        "echo $(id -u) $(id -G); echo $HOME; cat /proc/self/oom_score_adj",
        context,
    );
    put(&mut b, &spec);
    let lines = seen(&ground, &b).await;
    assert_eq!(lines, ["1000 1000 1234 5000", "/home/user", "0"]);
}

#[tokio::test]
async fn what_plugins_adjust_is_what_the_container_sees() {
    let mut ground = Ground::new().await;
    let mut b = ground.container(&[]);
    let script = "echo $PLUGIN $PATH; echo $(stat -c '%F %a %t:%T' /dev/plugin); ulimit -Sn; ulimit -Hn; \
        cat /proc/self/oom_score_adj; cat /proc/sys/net/core/somaxconn; cat /plugin/from-the-pod; \
        test -e /dev/mqueue/x || grep -c ' /dev/mqueue ' /proc/self/mounts; \
        set -- $(cat /proc/self/stat); echo policy ${41}; readlink /proc/self/ns/time";
    let mut spec = build(
        &ground,
        &b.id,
        script,
        cri::LinuxContainerSecurityContext::default(),
    );
    // The namespaces first: a sysctl needs one of the container's own.
    put(&mut b, &spec);
    spec = serde_json::from_value(b.spec.clone()).expect("a spec");
    let source = ground.dir.path().join("plugin");
    fs::create_dir(&source).expect("source");
    fs::write(source.join("from-the-pod"), "plugged\n").expect("file");
    let hooked = ground.dir.path().join("hooked");
    let mount = |destination: &str, source: &str| nri::Mount {
        destination: destination.to_owned(),
        r#type: "bind".to_owned(),
        source: source.to_owned(),
        options: vec!["rbind".to_owned(), "ro".to_owned()],
    };
    let adjust = nri::ContainerAdjustment {
        env: vec![nri::KeyValue {
            key: "PLUGIN".to_owned(),
            value: "was here".to_owned(),
        }],
        mounts: vec![
            mount("/plugin", &source.display().to_string()),
            mount("-/dev/mqueue", ""),
        ],
        rlimits: vec![nri::PosixRlimit {
            r#type: "nofile".to_owned(),
            soft: 100,
            hard: 200,
        }],
        linux: Some(nri::LinuxContainerAdjustment {
            devices: vec![nri::LinuxDevice {
                path: "/dev/plugin".to_owned(),
                r#type: "c".to_owned(),
                major: 1,
                minor: 3,
                file_mode: Some(nri::OptionalFileMode { value: 0o640 }),
                ..nri::LinuxDevice::default()
            }],
            oom_score_adj: Some(nri::OptionalInt { value: 321 }),
            sysctl: [("net.core.somaxconn".to_owned(), "77".to_owned())].into(),
            io_priority: Some(nri::LinuxIoPriority {
                class: nri::IoPrioClass::IoprioClassBe as i32,
                priority: 3,
            }),
            scheduler: Some(nri::LinuxScheduler {
                policy: nri::LinuxSchedulerPolicy::SchedBatch as i32,
                ..nri::LinuxScheduler::default()
            }),
            memory_policy: Some(nri::LinuxMemoryPolicy {
                mode: nri::MpolMode::MpolLocal as i32,
                ..nri::LinuxMemoryPolicy::default()
            }),
            namespaces: vec![nri::LinuxNamespace {
                r#type: "time".to_owned(),
                path: String::new(),
            }],
            ..nri::LinuxContainerAdjustment::default()
        }),
        hooks: Some(nri::Hooks {
            create_runtime: vec![nri::Hook {
                path: "/bin/busybox".to_owned(),
                args: vec!["touch".to_owned(), hooked.display().to_string()],
                ..nri::Hook::default()
            }],
            ..nri::Hooks::default()
        }),
        ..nri::ContainerAdjustment::default()
    };
    let (host, policy) = (host(), Policy::default());
    let context = ApplyContext {
        host: &host,
        policy: &policy,
        view: &View,
        places: &Places::new(),
    };
    apply_adjustment(&mut spec, &adjust, &context).expect("applied");
    b.spec = serde_json::to_value(&spec).expect("serialisable");
    let mut lines = seen(&ground, &b).await;
    let time = lines.pop().expect("the time namespace");
    let ours = fs::read_link("/proc/self/ns/time").expect("ours");
    assert!(
        time.starts_with("time:") && Path::new(&time) != ours,
        "{time}"
    );
    assert!(hooked.exists(), "the OCI hook ran");
    assert_eq!(
        lines,
        [
            "was here /bin",
            "character special file 640 1:3",
            "100",
            "200",
            "321",
            "77",
            "plugged",
            "0",
            "policy 3",
        ]
    );
}

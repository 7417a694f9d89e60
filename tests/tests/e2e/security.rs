//! A container's rights, seen from inside: CRI-215…226, 240…243.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use cairn_tests::{
    Daemon,
    container::Container,
    cri::{self, security_profile::ProfileType},
    image::Image,
    pod::{Pod, pod_namespaces, pod_security, security, user_namespace},
};

type Config = cri::ContainerConfig;

async fn started(pod: &Pod, name: &str, change: impl FnOnce(&mut Config)) -> Container {
    let mut config = pod.cri.container_config(name, &["sleep", "1000"]);
    change(&mut config);
    pod.started(config).await
}

/// Returns a status field of the container's first process, read inside.
async fn own(container: &Container, field: &str) -> String {
    let status = container.exec(&["cat", "/proc/1/status"]).await;
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix(&format!("{field}:")));
    line.unwrap_or_else(|| panic!("no {field}"))
        .trim()
        .to_owned()
}

fn capabilities(mask: &str) -> u64 {
    u64::from_str_radix(mask, 16).expect("a mask")
}

const CAP_CHOWN: u64 = 1 << 0;
const CAP_NET_BIND_SERVICE: u64 = 1 << 10;
const CAP_NET_ADMIN: u64 = 1 << 12;
const CAP_SYS_ADMIN: u64 = 1 << 21;
/// CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, NET_RAW,
/// SYS_CHROOT, MKNOD, AUDIT_WRITE, SETFCAP.
const DEFAULT: u64 = 0xa804_25fb;

#[tokio::test]
async fn capabilities_are_the_defaults_plus_added_minus_dropped() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("caps").await;
    let plain = started(&pod, "plain", |_| ()).await;
    for field in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(capabilities(&own(&plain, field).await), DEFAULT, "{field}");
    }
    for field in ["CapInh", "CapAmb"] {
        assert_eq!(capabilities(&own(&plain, field).await), 0, "{field}");
    }
    let changed = started(&pod, "changed", |c| {
        security(c).capabilities = Some(cri::Capability {
            add_capabilities: vec!["net_admin".into()],
            drop_capabilities: vec!["CAP_CHOWN".into()],
            ..Default::default()
        });
    })
    .await;
    let mask = (DEFAULT | CAP_NET_ADMIN) & !CAP_CHOWN;
    assert_eq!(capabilities(&own(&changed, "CapEff").await), mask);
    changed
        .exec(&["ip", "link", "add", "br9", "type", "bridge"])
        .await;
    let denied = changed
        .try_exec(&["chown", "1000", "/tmp"], 10)
        .await
        .expect("ExecSync");
    assert_ne!(denied.code, 0);
    let none = started(&pod, "none", |c| {
        security(c).capabilities = Some(cri::Capability {
            drop_capabilities: vec!["ALL".into()],
            add_capabilities: vec!["NET_BIND_SERVICE".into()],
            ..Default::default()
        });
    })
    .await;
    assert_eq!(
        capabilities(&own(&none, "CapBnd").await),
        CAP_NET_BIND_SERVICE
    );
    pod.end().await;
}

#[tokio::test]
async fn a_privileged_container_has_what_the_daemon_has() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut config = cri.pod_config("privileged");
    pod_security(&mut config).privileged = true;
    let pod = cri.try_pod(config).await.expect("RunPodSandbox");
    let container = started(&pod, "c", |c| security(c).privileged = true).await;
    let own_mask = fs::read_to_string("/proc/self/status").expect("our status");
    let ours = own_mask
        .lines()
        .find_map(|l| l.strip_prefix("CapEff:"))
        .expect("a mask")
        .trim();
    assert_eq!(
        capabilities(&own(&container, "CapEff").await),
        capabilities(ours)
    );
    assert!(
        capabilities(ours) & CAP_SYS_ADMIN != 0,
        "the test runs as root"
    );
    assert_eq!(own(&container, "Seccomp").await, "0");
    container
        .sh("mkdir -p /m && mount -t tmpfs none /m && touch /m/x")
        .await;
    container.sh("test -w /sys && test -b /dev/vda -o -c /dev/kmsg -o -c /dev/loop-control -o -e /dev/fuse").await;
    container.sh("sysctl -w net.ipv4.ip_forward=1").await;
    pod.end().await;
}

#[tokio::test]
async fn users_and_groups_are_the_configs_or_the_images() {
    let daemon = Daemon::start().await;
    let name = "localhost/cairn-test/user:1";
    daemon
        .import(&Image::busybox(name).config("User", "app".into()))
        .await;
    let pod = daemon.cri().pod("users").await;
    let with_image = |c: &mut Config| c.image.as_mut().expect("set").image = name.into();
    let image = started(&pod, "image", with_image).await;
    assert_eq!(
        image.sh("id -u; id -g; id -G").await,
        "1000\n1000\n1000 2000"
    );
    let status = image
        .status()
        .await
        .user
        .and_then(|u| u.linux)
        .expect("the status has the user");
    assert_eq!((status.uid, status.gid), (1000, 1000));
    let by_number = started(&pod, "number", |c| {
        security(c).run_as_user = Some(cri::Int64Value { value: 4242 });
        security(c).run_as_group = Some(cri::Int64Value { value: 4343 });
        security(c).supplemental_groups = vec![77];
    })
    .await;
    assert_eq!(
        by_number.sh("id -u; id -g; id -G").await,
        "4242\n4343\n4343 77"
    );
    let by_name = started(&pod, "name", |c| security(c).run_as_username = "app".into()).await;
    assert_eq!(
        by_name.sh("id -u; echo $HOME; id -G").await,
        "1000\n/home/app\n1000 2000"
    );
    let strict = started(&pod, "strict", |c| {
        security(c).run_as_username = "app".into();
        security(c).supplemental_groups = vec![78];
        security(c).supplemental_groups_policy = cri::SupplementalGroupsPolicy::Strict.into();
    })
    .await;
    assert_eq!(strict.exec(&["id", "-G"]).await, "1000 78");
    pod.end().await;
}

#[tokio::test]
async fn seccomp_is_absent_default_or_unconfined_as_asked() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("seccomp").await;
    let profile = |kind: ProfileType, path: &str| {
        Some(cri::SecurityProfile {
            profile_type: kind.into(),
            localhost_ref: path.into(),
        })
    };
    let absent = started(&pod, "absent", |_| ()).await;
    assert_eq!(own(&absent, "Seccomp").await, "0");
    let unconfined = started(&pod, "unconfined", |c| {
        security(c).seccomp = profile(ProfileType::Unconfined, "");
    })
    .await;
    assert_eq!(own(&unconfined, "Seccomp").await, "0");
    let default = started(&pod, "default", |c| {
        security(c).seccomp = profile(ProfileType::RuntimeDefault, "");
    })
    .await;
    assert_eq!(own(&default, "Seccomp").await, "2");
    let denied = default
        .try_exec(&["unshare", "-U", "true"], 10)
        .await
        .expect("ExecSync");
    assert_ne!(
        denied.code, 0,
        "a new user namespace is refused by the default profile"
    );
    let file = daemon.path("profile.json");
    let text = r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[
        {"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}"#;
    fs::write(&file, text).expect("a profile");
    let local = started(&pod, "local", |c| {
        security(c).seccomp = profile(ProfileType::Localhost, &file.display().to_string());
    })
    .await;
    let denied = local
        .try_exec(&["mkdir", "/tmp/d"], 10)
        .await
        .expect("ExecSync");
    assert_ne!(denied.code, 0, "also for an exec");
    pod.end().await;
}

#[tokio::test]
async fn masked_and_read_only_paths_are_exactly_the_given_ones() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("paths").await;
    let none = started(&pod, "none", |_| ()).await;
    none.exec(&["cat", "/proc/interrupts"]).await;
    let some = started(&pod, "some", |c| {
        security(c).masked_paths = vec![
            "/proc/interrupts".into(),
            "/bin/ls".into(),
            "/sys/firmware".into(),
            "/no/such".into(),
        ];
        security(c).readonly_paths = vec!["/proc/sys".into(), "/etc".into()];
    })
    .await;
    assert_eq!(some.exec(&["cat", "/proc/interrupts"]).await, "");
    assert_eq!(some.sh("wc -c < /bin/ls").await, "0");
    assert!(
        some.sh("wc -c < /bin/cat")
            .await
            .parse::<u64>()
            .expect("a number")
            > 1000
    );
    let denied = some
        .try_exec(&["sh", "-c", "echo x > /etc/new"], 10)
        .await
        .expect("ExecSync");
    assert!(
        denied.code != 0 && denied.err.contains("Read-only"),
        "{denied:?}"
    );
    pod.end().await;
}

#[tokio::test]
async fn a_read_only_rootfs_can_not_be_written_but_its_volumes_can() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("rorootfs").await;
    let volume = volume(&daemon, "data");
    let container = started(&pod, "c", |c| {
        security(c).readonly_rootfs = true;
        c.mounts = vec![cri::Mount {
            host_path: volume.display().to_string(),
            container_path: "/data".into(),
            ..Default::default()
        }];
    })
    .await;
    for path in ["/new", "/etc/new", "/etc/hosts"] {
        let script = format!("echo x >> {path}");
        let denied = container
            .try_exec(&["sh", "-c", &script], 10)
            .await
            .expect("ExecSync");
        assert!(
            denied.code != 0 && denied.err.contains("Read-only"),
            "{path}: {denied:?}"
        );
    }
    container
        .sh("echo x > /data/new; echo x > /dev/shm/new")
        .await;
    assert_eq!(
        fs::read_to_string(volume.join("new")).expect("written"),
        "x\n"
    );
    pod.end().await;
}

fn volume(daemon: &Daemon, name: &str) -> PathBuf {
    let path = daemon.path("volumes").join(name);
    fs::create_dir_all(&path).expect("a directory");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("ours");
    path
}

#[tokio::test]
async fn mounts_are_writable_or_not_as_asked_in_any_order() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("mounts").await;
    let (outer, inner) = (volume(&daemon, "outer"), volume(&daemon, "inner"));
    fs::create_dir_all(outer.join("below")).expect("a directory");
    fs::write(inner.join("file"), "inner").expect("a file");
    let link = daemon.path("volumes/link");
    std::os::unix::fs::symlink(&inner, &link).expect("a link");
    let mount = |from: &PathBuf, to: &str, readonly: bool| cri::Mount {
        host_path: from.display().to_string(),
        container_path: to.to_owned(),
        readonly,
        ..Default::default()
    };
    let container = started(&pod, "c", |c| {
        // The deeper one first: parents must still be mounted before children.
        c.mounts = vec![
            mount(&inner, "/data/below", false),
            mount(&outer, "/data", true),
            mount(&link, "/linked", false),
            mount(&inner.join("file"), "/etc/one-file", true),
        ];
    })
    .await;
    assert_eq!(
        container
            .sh("cat /data/below/file /linked/file /etc/one-file")
            .await,
        "innerinnerinner"
    );
    let denied = container
        .try_exec(&["touch", "/data/x"], 10)
        .await
        .expect("ExecSync");
    assert!(denied.err.contains("Read-only"), "{denied:?}");
    container.exec(&["touch", "/data/below/x"]).await;
    assert!(inner.join("x").exists());
    let status = container.status().await;
    assert_eq!(
        status.mounts.len(),
        4,
        "the status has exactly the configured mounts"
    );
    pod.end().await;
}

#[tokio::test]
async fn a_storage_driver_has_the_hosts_devices_and_mounts_for_other_containers() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut config = cri.pod_config("driver");
    pod_security(&mut config).privileged = true;
    let pod = cri.try_pod(config).await.expect("RunPodSandbox");
    let devices = volume(&daemon, "devices");
    // As on a host: names of links and devices that are made in a container's own /dev.
    for name in ["mqueue", "pts", "shm"] {
        fs::create_dir(devices.join(name)).expect("a directory");
    }
    std::os::unix::fs::symlink("/proc/self/fd", devices.join("fd")).expect("a link");
    fs::write(devices.join("ptmx"), "the host's\n").expect("a file");
    let volumes = volume(&daemon, "volumes").display().to_string();
    for args in [
        ["-t", "tmpfs", "tmpfs", &volumes].as_slice(),
        &["--make-shared", &volumes],
    ] {
        let mounted = daemon.yard.command("mount").args(args).status().await;
        assert!(mounted.expect("mount").success());
    }
    let mount = |from: &str, to: &str, propagation| cri::Mount {
        host_path: from.to_owned(),
        container_path: to.to_owned(),
        propagation: i32::from(propagation),
        ..Default::default()
    };
    use cri::MountPropagation::{
        PropagationBidirectional, PropagationHostToContainer, PropagationPrivate,
    };
    let container = started(&pod, "driver", |c| {
        security(c).privileged = true;
        let devices = devices.display().to_string();
        c.mounts = vec![
            mount(&devices, "/dev", PropagationPrivate),
            mount(&volumes, "/volumes", PropagationBidirectional),
        ];
    })
    .await;
    let seen = "cat /dev/ptmx; ls /dev; grep -c ' /dev/shm ' /proc/mounts; ls /dev/pts";
    let names = "fd\nmqueue\nptmx\npts\nshm\n";
    assert_eq!(
        container.sh(seen).await,
        format!("the host's\n{names}1\nptmx")
    );
    fs::write(devices.join("new"), "").expect("a file");
    container
        .sh("test -e /dev/new && mkdir /volumes/one && mount -t tmpfs tmpfs /volumes/one && touch /volumes/one/file")
        .await;
    let other = started(&pod, "other", |c| {
        c.mounts = vec![mount(&volumes, "/volumes", PropagationHostToContainer)];
    })
    .await;
    assert_eq!(other.sh("ls /volumes/one").await, "file");
    container.sh("umount /volumes/one").await;
    assert_eq!(other.sh("ls /volumes/one").await, "");
    let mut left: Vec<_> = fs::read_dir(&devices)
        .expect("the directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["fd", "mqueue", "new", "ptmx", "pts", "shm"]);
    pod.end().await;
}

#[tokio::test]
async fn a_user_namespace_gets_any_device_at_any_path_with_its_owner() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut config = cri.pod_config("mapped");
    let options = pod_namespaces(&mut config);
    options.userns_options = Some(user_namespace());
    let options = options.clone();
    let pod = cri.try_pod(config).await.expect("RunPodSandbox");
    let odd = daemon.path("odd");
    let mut mknod = tokio::process::Command::new("mknod");
    let made = mknod.arg(&odd).args(["c", "1", "5"]).status().await;
    assert!(made.expect("mknod").success());
    std::os::unix::fs::chown(&odd, Some(3), Some(4)).expect("ours");
    let container = started(&pod, "c", |c| {
        security(c).namespace_options = Some(options);
        c.devices = ["/dev/odd", "/opt/vendor/odd"]
            .map(|at| cri::Device {
                container_path: at.to_owned(),
                host_path: odd.display().to_string(),
                permissions: "rw".to_owned(),
            })
            .into();
    })
    .await;
    let look = "stat -c %t:%T:%u:%g /dev/odd /opt/vendor/odd; head -c 3 /opt/vendor/odd | wc -c";
    assert_eq!(container.sh(look).await, "1:5:3:4\n1:5:3:4\n3");
    pod.end().await;
}

#[tokio::test]
async fn devices_are_the_default_ones_and_those_given() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("devices").await;
    let odd = daemon.path("odd");
    let mut mknod = tokio::process::Command::new("mknod");
    let made = mknod.arg(&odd).args(["c", "240", "11"]).status().await;
    assert!(made.expect("mknod").success());
    let container = started(&pod, "c", |c| {
        let device = |at: &str, host: &str, permissions: &str| cri::Device {
            container_path: at.into(),
            host_path: host.into(),
            permissions: permissions.into(),
        };
        let odd = odd.display().to_string();
        c.devices = vec![
            device("/dev/extra-null", "/dev/null", "rw"),
            // As device plugins ask for it: without the permission to make the node.
            device("/dev/odd", &odd, "r"),
            device("/opt/vendor/odd", &odd, "r"),
        ];
    })
    .await;
    assert_eq!(
        container.sh("stat -c %t:%T /dev/odd /opt/vendor/odd").await,
        "f0:b\nf0:b"
    );
    container.sh("for d in null zero full random urandom tty extra-null; do test -c /dev/$d || exit 1; done").await;
    container
        .sh("echo x > /dev/extra-null; head -c 4 /dev/zero > /dev/null")
        .await;
    // The machine's disk: its node may be made (MKNOD is a default capability), but not opened.
    let disk = fs::read_to_string("/proc/partitions").unwrap_or_default();
    let disk = disk.lines().skip(2).find_map(|l| {
        let mut words = l.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    });
    if let Some((major, minor)) = disk {
        let script = format!("mknod /tmp/disk b {major} {minor} && head -c 1 /tmp/disk");
        let denied = container
            .try_exec(&["sh", "-c", &script], 10)
            .await
            .expect("ExecSync");
        assert_ne!(
            denied.code, 0,
            "the disk of the machine can be read: {denied:?}"
        );
    }
    pod.end().await;
}

#[tokio::test]
async fn a_container_can_not_write_to_the_daemons_programs() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut config = cri.pod_config("escape");
    let shared = cri::NamespaceOption {
        pid: cri::NamespaceMode::Node.into(),
        ..Default::default()
    };
    pod_security(&mut config).namespace_options = Some(shared.clone());
    let pod = cri.try_pod(config).await.expect("RunPodSandbox");
    let container = started(&pod, "c", |c| {
        security(c).namespace_options = Some(shared);
        // Unconfined: otherwise an AppArmor profile, if the host has one, denies the access first.
        security(c).apparmor = Some(cri::SecurityProfile {
            profile_type: cri::security_profile::ProfileType::Unconfined.into(),
            ..Default::default()
        });
        security(c).capabilities = Some(cri::Capability {
            add_capabilities: vec!["SYS_PTRACE".into()],
            ..Default::default()
        });
    })
    .await;
    // Its parent is its monitor; with SYS_PTRACE it can reach the monitor's program.
    let script = "p=$(awk '/^PPid/{print $2}' /proc/$(pidof sleep | cut -d' ' -f1)/status); \
                  test -n \"$p\" && ls -l /proc/$p/exe >/dev/null && ! (: >> /proc/$p/exe) && ! chmod 755 /proc/$p/exe 2>/tmp/why; cat /tmp/why";
    let printed = container.sh(script).await;
    assert!(printed.contains("Read-only"), "{printed}");
    pod.end().await;
}

//! The settings of a container and the rejected ones, requirement by requirement.

use std::path::PathBuf;

use cairn::oci::{SeccompKind, image_volumes, log_path};
use oci_spec::runtime::{LinuxSeccomp, LinuxSeccompAction, Process};
use proto_cri::v1::{
    Capability, Int64Value, KeyValue, NamespaceMode, NamespaceOption, SecurityProfile, Signal,
    WindowsContainerConfig, security_profile::ProfileType,
};

use crate::support::Fixture;

fn process(f: &Fixture) -> Process {
    f.spec().spec.process().clone().expect("a process")
}

fn seccomp(f: &Fixture) -> Option<LinuxSeccomp> {
    f.spec().spec.linux().as_ref()?.seccomp().clone()
}

#[test]
fn without_any_linux_section_the_container_is_an_ordinary_one() {
    let mut f = Fixture::default();
    f.config.linux = None;
    assert_eq!(f.spec().spec, Fixture::default().spec().spec);
}

#[test]
fn a_windows_container_is_refused() {
    let mut f = Fixture::default();
    f.config.windows = Some(WindowsContainerConfig::default());
    assert!(f.refusal().starts_with("windows"));
}

#[test]
fn status_shows_the_ids_as_resolved() {
    let mut f = Fixture::default();
    f.image.user = "web".to_owned();
    f.context().supplemental_groups = vec![1234];
    let built = f.spec();
    assert_eq!((built.user.uid, built.user.gid), (1000, 1000));
    assert_eq!(built.user.supplemental_groups, [1000, 1234, 50000]);
    let user = built
        .spec
        .process()
        .as_ref()
        .expect("process")
        .user()
        .clone();
    assert_eq!(user.additional_gids(), &Some(vec![1000, 1234, 50000]));
    f.context().supplemental_groups_policy = 1;
    assert_eq!(f.spec().user.supplemental_groups, [1000, 1234]);
    f.context().supplemental_groups_policy = 9;
    assert!(f.refusal().contains("supplemental_groups_policy"));
}

#[test]
fn a_group_alone_is_refused() {
    let mut f = Fixture::default();
    f.context().run_as_group = Some(Int64Value { value: 5 });
    assert!(f.refusal().contains("run_as_group"));
}

#[test]
fn a_privileged_container_needs_a_privileged_pod() {
    let mut f = Fixture::default();
    f.context().privileged = true;
    assert!(f.refusal().contains("the pod is not privileged"));
}

#[test]
fn privilege_clears_paths_and_profiles() {
    let mut f = Fixture::default();
    f.sandbox.privileged = true;
    let context = f.context();
    context.privileged = true;
    context.masked_paths = vec!["/proc/kcore".to_owned()];
    context.readonly_paths = vec!["/proc/sys".to_owned()];
    context.seccomp = Some(SecurityProfile {
        profile_type: ProfileType::Localhost as i32,
        localhost_ref: "/no/such/file".to_owned(),
    });
    let built = f.spec();
    let linux = built.spec.linux().clone().expect("linux");
    assert_eq!(linux.masked_paths(), &None);
    assert_eq!(linux.readonly_paths(), &None);
    assert_eq!(linux.seccomp(), &None);
    assert_eq!(built.seccomp, SeccompKind::Unconfined);
}

#[test]
fn a_privileged_container_has_the_hosts_devices_unless_the_policy_says_no() {
    let mut f = Fixture::default();
    f.sandbox.privileged = true;
    f.context().privileged = true;
    f.host.devices = vec![cairn::oci::HostDevice {
        path: "/dev/sda".into(),
        kind: 'b',
        major: 8,
        minor: 0,
        mode: 0o660,
        uid: 0,
        gid: 6,
    }];
    let devices = |f: &Fixture| {
        let linux = f.spec().spec.linux().clone().expect("linux");
        let rules = linux
            .resources()
            .as_ref()
            .and_then(|r| r.devices().clone())
            .expect("rules");
        (
            linux.devices().as_ref().map_or(0, Vec::len),
            rules[0].allow(),
        )
    };
    assert_eq!(devices(&f), (1, true));
    f.host.devices[0].path = "/dev/console".into();
    assert_eq!(
        devices(&f),
        (0, true),
        "the container has a console of its own"
    );
    f.policy.privileged_without_host_devices = true;
    assert_eq!(devices(&f), (0, false));
}

#[test]
fn a_device_node_is_refused_where_the_create_helper_cannot_make_it() {
    let mut f = Fixture::default();
    f.view.devices = vec![cairn::oci::HostDevice {
        path: "/dev/fuse".into(),
        kind: 'c',
        major: 10,
        minor: 229,
        mode: 0o666,
        uid: 0,
        gid: 0,
    }];
    let at = |f: &mut Fixture, path: &str| {
        f.config.devices = vec![proto_cri::v1::Device {
            host_path: "/dev/fuse".to_owned(),
            container_path: path.to_owned(),
            permissions: "rw".to_owned(),
        }];
    };
    for path in ["/dev", "/proc/fuse", "/opt/../sys/fuse"] {
        at(&mut f, path);
        assert!(f.refusal().contains("node "), "{path}");
    }
    for path in ["/opt/fuse", "/dev/other", "/process/x"] {
        at(&mut f, path);
        assert!(f.build().is_ok(), "{path}");
    }
    f.sandbox.user_mapping = Some(cairn::oci::IdMap {
        host_id: 65536,
        container_id: 0,
        length: 65536,
    });
    assert!(f.build().is_ok());
    at(&mut f, "/dev/null");
    assert!(f.build().is_ok(), "its nodes are its own");
}

#[test]
fn masked_and_readonly_paths_are_exactly_those_given() {
    let mut f = Fixture::default();
    let linux = f.spec().spec.linux().clone().expect("linux");
    assert_eq!(
        (linux.masked_paths(), linux.readonly_paths()),
        (&None, &None)
    );
    f.context().masked_paths = vec!["/proc/keys".to_owned()];
    let linux = f.spec().spec.linux().clone().expect("linux");
    assert_eq!(linux.masked_paths(), &Some(vec!["/proc/keys".to_owned()]));
    f.context().masked_paths = vec!["relative".to_owned()];
    assert!(f.refusal().contains("masked_paths"));
}

#[test]
fn an_empty_list_is_the_default_where_the_policy_says_so_and_nothing_where_it_is_privileged() {
    let mut f = Fixture::default();
    f.policy.default_masks = true;
    f.context().masked_paths = vec!["/proc/keys".to_owned()];
    let linux = f.spec().spec.linux().clone().expect("linux");
    assert_eq!(linux.masked_paths(), &Some(vec!["/proc/keys".to_owned()]));
    let paths = linux.readonly_paths().clone().expect("the default");
    assert!(paths.contains(&"/proc/sys".to_owned()), "{paths:?}");
    f.context().masked_paths.clear();
    let linux = f.spec().spec.linux().clone().expect("linux");
    let paths = linux.masked_paths().clone().expect("the default");
    assert!(paths.contains(&"/proc/kcore".to_owned()), "{paths:?}");
    (f.sandbox.privileged, f.context().privileged) = (true, true);
    let linux = f.spec().spec.linux().clone().expect("linux");
    assert_eq!(
        (linux.masked_paths(), linux.readonly_paths()),
        (&None, &None)
    );
}

#[test]
fn a_user_or_group_without_an_id_in_the_user_namespace_is_refused() {
    let mut f = Fixture::default();
    f.sandbox.namespaces.user = Some("/ns/user".into());
    f.sandbox.user_mapping = Some(cairn::oci::IdMap {
        host_id: 100_000,
        container_id: 0,
        length: 60_000,
    });
    let user = |value| Some(proto_cri::v1::Int64Value { value });
    f.context().run_as_user = user(59_999);
    f.spec();
    f.context().run_as_user = user(60_000);
    assert!(f.refusal().contains("user 60000"), "{}", f.refusal());
    f.context().run_as_user = user(1);
    f.context().supplemental_groups = vec![70_000];
    assert!(f.refusal().contains("group 70000"), "{}", f.refusal());
}

#[test]
fn no_new_privileges_is_said_only_when_true() {
    let mut f = Fixture::default();
    assert_eq!(process(&f).no_new_privileges(), None);
    f.context().no_new_privs = true;
    assert_eq!(process(&f).no_new_privileges(), Some(true));
}

#[test]
fn an_absent_seccomp_field_means_what_the_policy_says() {
    let mut f = Fixture::default();
    assert_eq!(seccomp(&f), None);
    f.policy.seccomp_when_absent = SeccompKind::RuntimeDefault;
    assert!(seccomp(&f).is_some());
}

#[test]
#[expect(deprecated, reason = "the old string is what is tested")]
fn the_seccomp_field_wins_over_the_old_string() {
    let mut f = Fixture::default();
    f.context().seccomp_profile_path = "runtime/default".to_owned();
    assert_eq!(f.spec().seccomp, SeccompKind::RuntimeDefault);
    f.context().seccomp = Some(SecurityProfile {
        profile_type: ProfileType::Unconfined as i32,
        localhost_ref: String::new(),
    });
    assert_eq!(f.spec().seccomp, SeccompKind::Unconfined);
    f.context().seccomp = None;
    f.context().seccomp_profile_path = "localhost//p.json".to_owned();
    f.seccomp_profile = Some(r#"{"defaultAction":"SCMP_ACT_LOG"}"#.to_owned());
    assert_eq!(
        f.spec().seccomp,
        SeccompKind::Localhost("/p.json".to_owned())
    );
    f.context().seccomp_profile_path = "whatever".to_owned();
    assert!(f.refusal().contains("seccomp_profile_path"));
}

#[test]
fn a_localhost_profile_must_be_there_and_sane() {
    let mut f = Fixture::default();
    f.context().seccomp = Some(SecurityProfile {
        profile_type: ProfileType::Localhost as i32,
        localhost_ref: "/p.json".to_owned(),
    });
    assert!(f.refusal().contains("cannot be read"));
    for bad in [
        "{",
        r#"{"defaultAction":"SCMP_ACT_NOTIFY"}"#,
        r#"{"defaultAction":"SCMP_ACT_WHAT"}"#,
        r#"{"defaultAction":"SCMP_ACT_ALLOW","listenerPath":"/run/l.sock"}"#,
        r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["read"],"action":"SCMP_ACT_NOTIFY"}]}"#,
        r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":[],"action":"SCMP_ACT_ERRNO"}]}"#,
    ] {
        f.seccomp_profile = Some(bad.to_owned());
        assert!(f.refusal().contains("/p.json"), "{bad}");
    }
    f.seccomp_profile = Some(format!(
        "{{\"defaultAction\":\"SCMP_ACT_ALLOW\"{}}}",
        " ".repeat(1 << 20)
    ));
    assert!(f.refusal().contains("longer than"));
    f.context().seccomp = Some(SecurityProfile {
        profile_type: ProfileType::RuntimeDefault as i32,
        localhost_ref: "/p.json".to_owned(),
    });
    assert!(f.refusal().contains("localhost_ref"));
    f.host.seccomp = false;
    f.context().seccomp = Some(SecurityProfile::default());
    assert_eq!(seccomp(&f), None, "the default is best effort");
    f.context().seccomp.as_mut().expect("set").profile_type = ProfileType::Localhost as i32;
    f.context().seccomp.as_mut().expect("set").localhost_ref = "/p.json".to_owned();
    assert!(f.refusal().contains("no seccomp"));
}

#[test]
fn the_default_profile_opens_calls_by_capability() {
    let mut f = Fixture::default();
    f.context().seccomp = Some(SecurityProfile::default());
    let allowed = |f: &Fixture, name: &str| {
        let profile = seccomp(f).expect("a profile");
        let rules = profile.syscalls().clone().expect("rules");
        rules.iter().any(|r| {
            r.action() == LinuxSeccompAction::ScmpActAllow
                && r.args().is_none()
                && r.names().iter().any(|n| n == name)
        })
    };
    for name in ["read", "execve", "openat", "futex", "chroot"] {
        assert!(allowed(&f, name), "{name}");
    }
    for name in [
        "mount",
        "unshare",
        "setns",
        "bpf",
        "clone",
        "clone3",
        "keyctl",
        "add_key",
        "kexec_load",
        "io_uring_setup",
        "userfaultfd",
        "open_by_handle_at",
        "reboot",
        "init_module",
        "settimeofday",
        "perf_event_open",
        "socket",
        "personality",
        "swapon",
    ] {
        assert!(!allowed(&f, name), "{name}");
    }
    f.context().capabilities = Some(Capability {
        add_capabilities: vec!["SYS_ADMIN".to_owned()],
        drop_capabilities: vec!["SYS_CHROOT".to_owned()],
        ..Capability::default()
    });
    for name in ["mount", "unshare", "setns", "clone", "clone3"] {
        assert!(allowed(&f, name), "{name}");
    }
    assert!(!allowed(&f, "chroot"));
}

#[test]
fn the_stop_signal_is_the_containers_then_the_images() {
    let mut f = Fixture::default();
    f.image.stop_signal = "SIGQUIT".to_owned();
    assert_eq!(f.spec().stop_signal.number, 3);
    f.config.stop_signal = Signal::Sigusr1 as i32;
    assert_eq!(f.spec().stop_signal.cri, Signal::Sigusr1);
    f.config.stop_signal = 0;
    f.image.stop_signal = "nonsense".to_owned();
    assert_eq!(f.spec().warnings.len(), 1);
}

#[test]
fn the_log_path_needs_both_parts() {
    let path = |dir: &str, file: &str| log_path(dir, file).expect("valid");
    assert_eq!(
        path("/logs", "c/0.log"),
        Some(PathBuf::from("/logs/c/0.log"))
    );
    assert_eq!(path("", "c/0.log"), None);
    assert_eq!(path("/logs", ""), None);
    assert!(log_path("/logs", "../x").is_err());
    assert!(log_path("logs", "x").is_err());
}

#[test]
fn image_volumes_are_those_that_no_mount_covers() {
    let mut f = Fixture::default();
    f.image.volumes = vec![
        "/data/".to_owned(),
        "/cache".to_owned(),
        "/".to_owned(),
        "/data".to_owned(),
    ];
    f.config.mounts = vec![proto_cri::v1::Mount {
        container_path: "/cache".to_owned(),
        host_path: "/private/x".to_owned(),
        ..Default::default()
    }];
    assert_eq!(image_volumes(&f.config, &f.image), ["/data"]);
}

#[test]
fn the_cgroup_is_below_the_pods() {
    let mut f = Fixture::default();
    let path = |f: &Fixture| {
        f.spec()
            .spec
            .linux()
            .as_ref()
            .and_then(|l| l.cgroups_path().clone())
            .expect("a path")
    };
    assert_eq!(path(&f), PathBuf::from("/kubepods/podu-1/c1"));
    f.policy.cgroup_driver = cairn::oci::CgroupDriver::Systemd;
    f.sandbox.cgroup_parent = "/kubepods.slice/kubepods-pod1.slice".to_owned();
    assert_eq!(path(&f), PathBuf::from("kubepods-pod1.slice:cairn:c1"));
}

#[test]
fn annotations_say_whose_container_it_is_and_hide_the_rest() {
    let mut f = Fixture::default();
    f.config.annotations = [
        ("secret.io/x".to_owned(), "1".to_owned()),
        ("open.io/x".to_owned(), "2".to_owned()),
        (
            "io.kubernetes.cri.sandbox-id".to_owned(),
            "forged".to_owned(),
        ),
    ]
    .into();
    f.policy.annotation_prefixes = vec!["open.io/".to_owned(), "io.".to_owned()];
    let spec = f.spec().spec;
    let found = spec.annotations().as_ref().expect("annotations");
    assert_eq!(found["io.kubernetes.cri.sandbox-id"], "pod1");
    assert_eq!(found["io.kubernetes.cri.container-type"], "container");
    assert_eq!(found["io.kubernetes.cri.container-name"], "web");
    assert_eq!(found["io.kubernetes.cri.image-name"], "example/web:1");
    assert_eq!(found["open.io/x"], "2");
    assert!(!found.contains_key("secret.io/x"));
}

#[test]
fn a_target_container_is_joined() {
    let mut f = Fixture::default();
    f.context().namespace_options = Some(NamespaceOption {
        pid: NamespaceMode::Target as i32,
        target_id: "other".to_owned(),
        ..NamespaceOption::default()
    });
    assert!(f.refusal().contains("\"other\""));
    f.target = Some("/proc/7/ns/pid".into());
    let spec = f.spec().spec;
    let list = spec
        .linux()
        .as_ref()
        .and_then(|l| l.namespaces().clone())
        .expect("list");
    assert!(
        list.iter()
            .any(|n| n.path().as_deref() == f.target.as_deref())
    );
}

#[test]
fn rlimits_are_the_policys_or_inherited() {
    let mut f = Fixture::default();
    assert_eq!(process(&f).rlimits(), &None);
    f.policy.rlimits = vec![("nofile".to_owned(), 1024, 4096)];
    assert_eq!(process(&f).rlimits().as_ref().map(Vec::len), Some(1));
    f.policy.rlimits = vec![("nofile".to_owned(), 4096, 1024)];
    assert!(f.refusal().contains("RLIMIT_NOFILE"));
}

#[test]
fn no_environment_value_is_ever_shown() {
    let mut f = Fixture::default();
    f.image.env = vec!["TOKEN=image-secret".to_owned()];
    f.config.envs = vec![KeyValue {
        key: "PASSWORD".to_owned(),
        value: b"pod-secret\xff".to_vec(),
    }];
    let text = format!("{} {:?}", f.refusal(), f.image);
    assert!(text.contains("PASSWORD"));
    assert!(!text.contains("secret"), "{text}");
}

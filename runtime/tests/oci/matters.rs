//! Every handled field has an effect: changing it alone changes the result, or is rejected.

use cairn::oci::{CdiFile, CdiRegistry, HostDevice, IdMap, plan};
use proto_cri::v1 as cri;

use crate::{
    support::Fixture,
    walk::{CRI_HANDLED, CRI_OPAQUE, fields},
};

type Change = fn(&mut Fixture);

/// One change for each field below ContainerConfig in `CRI_HANDLED`.
const CHANGES: &[(&str, Change)] = &[
    ("CDIDevice.name", |f| {
        f.config.cdi_devices[0].name = "other.com/x=1".to_owned()
    }),
    ("Capability.add_ambient_capabilities", |f| {
        capability(f)
            .add_ambient_capabilities
            .push("SYS_TIME".to_owned());
    }),
    ("Capability.add_capabilities", |f| {
        capability(f).add_capabilities.push("SYS_TIME".to_owned())
    }),
    ("Capability.drop_capabilities", |f| {
        capability(f).drop_capabilities.push("CHOWN".to_owned())
    }),
    ("ContainerConfig.CDI_devices", |f| {
        f.config.cdi_devices.clear()
    }),
    ("ContainerConfig.annotations", |f| {
        f.config
            .annotations
            .insert("open/x".to_owned(), "1".to_owned());
    }),
    ("ContainerConfig.args", |f| {
        f.config.args.push("x".to_owned())
    }),
    ("ContainerConfig.command", |f| {
        f.config.command.push("x".to_owned())
    }),
    ("ContainerConfig.devices", |f| f.config.devices.clear()),
    ("ContainerConfig.envs", |f| f.config.envs.clear()),
    ("ContainerConfig.linux", |f| f.config.linux = None),
    ("ContainerConfig.log_path", |f| f.config.log_path.clear()),
    ("ContainerConfig.metadata", |f| f.config.metadata = None),
    ("ContainerConfig.mounts", |f| f.config.mounts.clear()),
    ("ContainerConfig.stop_signal", |f| f.config.stop_signal = 2),
    ("ContainerConfig.tty", |f| f.config.tty = true),
    ("ContainerConfig.working_dir", |f| {
        f.config.working_dir = "/w".to_owned()
    }),
    ("ContainerMetadata.name", |f| {
        f.config.metadata.as_mut().expect("set").name = "y".to_owned()
    }),
    ("Device.container_path", |f| {
        f.config.devices[0].container_path = "/dev/y".to_owned()
    }),
    ("Device.host_path", |f| {
        f.config.devices[0].host_path = "/dev/b".to_owned()
    }),
    ("Device.permissions", |f| {
        f.config.devices[0].permissions = "r".to_owned()
    }),
    ("HugepageLimit.limit", |f| {
        f.resources().hugepage_limits[0].limit = 9
    }),
    ("HugepageLimit.page_size", |f| {
        f.resources().hugepage_limits[0].page_size = "1GB".to_owned()
    }),
    ("IDMapping.container_id", |f| {
        f.config.mounts[0].uid_mappings[0].container_id = 1
    }),
    ("IDMapping.host_id", |f| {
        f.config.mounts[0].uid_mappings[0].host_id = 1
    }),
    ("IDMapping.length", |f| {
        f.config.mounts[0].uid_mappings[0].length = 1
    }),
    ("Int64Value.value", |f| {
        f.context().run_as_user.as_mut().expect("set").value = 8
    }),
    ("KeyValue.key", |f| f.config.envs[0].key = "B".to_owned()),
    ("KeyValue.value", |f| f.config.envs[0].value = b"c".to_vec()),
    ("LinuxContainerConfig.resources", |f| {
        f.linux().resources = None
    }),
    ("LinuxContainerConfig.security_context", |f| {
        f.linux().security_context = None
    }),
    ("LinuxContainerResources.cpu_period", |f| {
        f.resources().cpu_period = 5_000
    }),
    ("LinuxContainerResources.cpu_quota", |f| {
        f.resources().cpu_quota = 5_000
    }),
    ("LinuxContainerResources.cpu_shares", |f| {
        f.resources().cpu_shares = 5
    }),
    ("LinuxContainerResources.cpuset_cpus", |f| {
        f.resources().cpuset_cpus = "0".to_owned()
    }),
    ("LinuxContainerResources.cpuset_mems", |f| {
        f.resources().cpuset_mems = "0".to_owned()
    }),
    ("LinuxContainerResources.hugepage_limits", |f| {
        f.resources().hugepage_limits.clear()
    }),
    ("LinuxContainerResources.memory_limit_in_bytes", |f| {
        f.resources().memory_limit_in_bytes = 5 << 20
    }),
    ("LinuxContainerResources.memory_swap_limit_in_bytes", |f| {
        f.resources().memory_swap_limit_in_bytes = 5;
    }),
    ("LinuxContainerResources.oom_score_adj", |f| {
        f.resources().oom_score_adj = 5
    }),
    ("LinuxContainerResources.unified", |f| {
        f.resources()
            .unified
            .insert("memory.high".to_owned(), "5".to_owned());
    }),
    ("LinuxContainerSecurityContext.apparmor", |f| {
        f.context().apparmor = Some(profile(cri::security_profile::ProfileType::Unconfined));
    }),
    (
        "LinuxContainerSecurityContext.apparmor_profile",
        apparmor_string,
    ),
    ("LinuxContainerSecurityContext.capabilities", |f| {
        f.context().capabilities = None
    }),
    ("LinuxContainerSecurityContext.masked_paths", |f| {
        f.context().masked_paths.push("/m".to_owned());
    }),
    ("LinuxContainerSecurityContext.namespace_options", |f| {
        f.context().namespace_options = None;
    }),
    ("LinuxContainerSecurityContext.no_new_privs", |f| {
        f.context().no_new_privs = true
    }),
    ("LinuxContainerSecurityContext.privileged", |f| {
        f.context().privileged = true
    }),
    ("LinuxContainerSecurityContext.readonly_paths", |f| {
        f.context().readonly_paths.push("/r".to_owned());
    }),
    ("LinuxContainerSecurityContext.readonly_rootfs", |f| {
        f.context().readonly_rootfs = true
    }),
    ("LinuxContainerSecurityContext.run_as_group", |f| {
        f.context().run_as_group = Some(cri::Int64Value { value: 9 });
    }),
    ("LinuxContainerSecurityContext.run_as_user", |f| {
        f.context().run_as_user = None
    }),
    ("LinuxContainerSecurityContext.run_as_username", |f| {
        f.context().run_as_username = "web".to_owned();
    }),
    ("LinuxContainerSecurityContext.seccomp", |f| {
        f.context().seccomp = Some(cri::SecurityProfile::default());
    }),
    (
        "LinuxContainerSecurityContext.seccomp_profile_path",
        seccomp_string,
    ),
    ("LinuxContainerSecurityContext.supplemental_groups", |f| {
        f.context().supplemental_groups.push(77);
    }),
    (
        "LinuxContainerSecurityContext.supplemental_groups_policy",
        |f| {
            f.context().supplemental_groups_policy = 1;
        },
    ),
    ("Mount.container_path", |f| {
        f.config.mounts[0].container_path = "/y".to_owned()
    }),
    ("Mount.gidMappings", |f| {
        f.config.mounts[0].gid_mappings.clear()
    }),
    ("Mount.host_path", |f| {
        f.config.mounts[0].host_path = "/shared/z".to_owned()
    }),
    ("Mount.image", |f| {
        f.config.mounts[0].image = Some(cri::ImageSpec::default())
    }),
    ("Mount.image_sub_path", |f| {
        f.config.mounts[0].image_sub_path = "a".to_owned()
    }),
    ("Mount.mount_options", |f| {
        f.config.mounts[0].mount_options.push("nodev".to_owned())
    }),
    ("Mount.propagation", |f| f.config.mounts[0].propagation = 2),
    ("Mount.readonly", |f| f.config.mounts[0].readonly = false),
    ("Mount.recursive_read_only", |f| {
        f.config.mounts[0].recursive_read_only = true
    }),
    ("Mount.uidMappings", |f| {
        f.config.mounts[0].uid_mappings.clear()
    }),
    ("NamespaceOption.ipc", |f| options(f).ipc = 2),
    ("NamespaceOption.network", |f| options(f).network = 2),
    ("NamespaceOption.pid", |f| options(f).pid = 0),
    ("NamespaceOption.target_id", |f| {
        options(f).pid = 3;
        options(f).target_id = "other".to_owned();
    }),
    ("NamespaceOption.userns_options", |f| {
        options(f).userns_options = Some(cri::UserNamespace::default());
    }),
    ("SecurityProfile.localhost_ref", |f| {
        f.context().seccomp = Some(cri::SecurityProfile {
            localhost_ref: "/p".to_owned(),
            ..profile(cri::security_profile::ProfileType::Localhost)
        });
    }),
    ("SecurityProfile.profile_type", |f| {
        f.context().seccomp = Some(profile(cri::security_profile::ProfileType::RuntimeDefault));
    }),
    ("SELinuxOption.level", |f| selinux(f).level = "?".to_owned()),
    ("SELinuxOption.role", |f| selinux(f).role = "?".to_owned()),
    ("SELinuxOption.type", |f| selinux(f).r#type = "?".to_owned()),
    ("SELinuxOption.user", |f| selinux(f).user = "?".to_owned()),
    ("UserNamespace.gids", |f| user(f).gids.clear()),
    ("UserNamespace.mode", |f| user(f).mode = 1),
    ("UserNamespace.uids", |f| user(f).uids.clear()),
];

#[expect(deprecated, reason = "the old string is handled too")]
fn apparmor_string(f: &mut Fixture) {
    f.context().apparmor_profile = "unconfined".to_owned();
}

#[expect(deprecated, reason = "the old string is handled too")]
fn seccomp_string(f: &mut Fixture) {
    f.context().seccomp_profile_path = "runtime/default".to_owned();
}

fn profile(kind: cri::security_profile::ProfileType) -> cri::SecurityProfile {
    cri::SecurityProfile {
        profile_type: kind as i32,
        ..cri::SecurityProfile::default()
    }
}

fn capability(f: &mut Fixture) -> &mut cri::Capability {
    f.context().capabilities.get_or_insert_default()
}

fn options(f: &mut Fixture) -> &mut cri::NamespaceOption {
    f.context().namespace_options.get_or_insert_default()
}

fn selinux(f: &mut Fixture) -> &mut cri::SeLinuxOption {
    f.context().selinux_options.get_or_insert_default()
}

/// The pod's own user namespace in a container's configuration.
fn user(f: &mut Fixture) -> &mut cri::UserNamespace {
    options(f)
        .userns_options
        .get_or_insert_with(|| cri::UserNamespace {
            mode: 0,
            uids: vec![mapping()],
            gids: vec![mapping()],
        })
}

fn mapping() -> cri::IdMapping {
    cri::IdMapping {
        host_id: 65536,
        container_id: 0,
        length: 65536,
    }
}

const CDI: &str = r#"{"cdiVersion": "0.6.0", "kind": "vendor.com/x", "devices": [
    {"name": "1", "containerEdits": {"env": ["ONE=1"]}}, {"name": "2", "containerEdits": {"env": ["TWO=2"]}}]}"#;

/// A container with a value for every change.
fn baseline() -> Fixture {
    let device = |path: &str, minor| HostDevice {
        path: path.into(),
        kind: 'c',
        major: 10,
        minor,
        mode: 0o600,
        uid: 0,
        gid: 0,
    };
    let mut f = Fixture::default();
    f.host.apparmor = Some(Ok("ours".to_owned()));
    f.policy.annotation_prefixes = vec!["open/".to_owned()];
    f.view.devices = vec![device("/dev/a", 1), device("/dev/b", 2)];
    let cdi = CdiFile {
        priority: 0,
        path: "x.json".to_owned(),
        text: CDI.to_owned(),
    };
    f.view.cdi = CdiRegistry::load(&[cdi]).0;
    f.sandbox.user_mapping = Some(IdMap {
        host_id: 65536,
        container_id: 0,
        length: 65536,
    });
    f.sandbox.namespaces.user = Some("/ns/user".into());
    f.config.cdi_devices = vec![cri::CdiDevice {
        name: "vendor.com/x=1".to_owned(),
    }];
    f.config.devices = vec![cri::Device {
        container_path: "/dev/a".to_owned(),
        host_path: "/dev/a".to_owned(),
        permissions: "rw".to_owned(),
    }];
    f.config.envs = vec![cri::KeyValue {
        key: "A".to_owned(),
        value: b"b".to_vec(),
    }];
    f.config.mounts = vec![cri::Mount {
        host_path: "/shared/x".to_owned(),
        container_path: "/x".to_owned(),
        readonly: true,
        uid_mappings: vec![mapping()],
        gid_mappings: vec![mapping()],
        ..cri::Mount::default()
    }];
    f.resources().hugepage_limits = vec![cri::HugepageLimit {
        page_size: "2MB".to_owned(),
        limit: 1,
    }];
    let context = f.context();
    context.run_as_user = Some(cri::Int64Value { value: 1000 });
    context.namespace_options = Some(cri::NamespaceOption {
        pid: 1,
        ..cri::NamespaceOption::default()
    });
    context.capabilities = Some(cri::Capability {
        add_capabilities: vec!["NET_ADMIN".to_owned()],
        ..cri::Capability::default()
    });
    f
}

/// Returns the complete result, or the error.
fn outcome(f: &Fixture) -> Result<String, String> {
    let built = f.build().map_err(|e| e.to_string())?;
    let spec = serde_json::to_value(&built.spec).expect("serialisable");
    Ok(format!("{built:?} {}", crate::support::sorted(spec)))
}

#[test]
fn each_handled_field_of_a_container_changes_the_result_or_is_refused() {
    let before = outcome(&baseline()).expect("the baseline is valid");
    assert_eq!(
        outcome(&baseline()),
        Ok(before.clone()),
        "the comparison itself is stable"
    );
    for (field, change) in CHANGES {
        let mut f = baseline();
        change(&mut f);
        assert_ne!(
            outcome(&f),
            Ok(before.clone()),
            "{field} is called handled, and does nothing"
        );
    }
}

#[test]
fn no_handled_field_of_a_container_is_without_such_a_change() {
    let of_container = fields("cri/api.proto", &["ContainerConfig"], CRI_OPAQUE);
    let untried: Vec<_> = CRI_HANDLED
        .iter()
        .filter(|field| of_container.contains(**field))
        .filter(|field| !CHANGES.iter().any(|(tried, _)| tried == *field))
        .collect();
    assert!(untried.is_empty(), "{untried:#?}");
}

#[test]
fn each_security_field_of_a_pod_changes_its_plan_or_is_refused() {
    type PodChange = fn(&mut cri::PodSandboxConfig);
    fn context(c: &mut cri::PodSandboxConfig) -> &mut cri::LinuxSandboxSecurityContext {
        c.linux
            .get_or_insert_default()
            .security_context
            .get_or_insert_default()
    }
    #[expect(deprecated, reason = "the old string is handled too")]
    fn old(c: &mut cri::PodSandboxConfig) {
        context(c).seccomp_profile_path = "nonsense".to_owned();
    }
    let changes: &[(&str, PodChange)] = &[
        ("hostname", |c| c.hostname = "h".to_owned()),
        ("windows", |c| {
            c.windows = Some(cri::WindowsPodSandboxConfig::default())
        }),
        ("sysctls", |c| {
            let linux = c.linux.get_or_insert_default();
            linux
                .sysctls
                .insert("net.core.somaxconn".to_owned(), "1".to_owned());
        }),
        ("namespace_options", |c| {
            context(c).namespace_options.get_or_insert_default().network = 2
        }),
        ("run_as_group", |c| {
            context(c).run_as_group = Some(cri::Int64Value { value: 1 })
        }),
        ("selinux_options", |c| {
            context(c).selinux_options.get_or_insert_default().level = "?".to_owned();
        }),
        ("privileged", |c| context(c).privileged = true),
        // Of the pause process, whose filter is stricter than any profile: only validated.
        ("seccomp", |c| {
            let profile_type = 99;
            let localhost_ref = String::new();
            context(c).seccomp = Some(cri::SecurityProfile {
                profile_type,
                localhost_ref,
            });
        }),
        ("seccomp_profile_path", old),
    ];
    let f = Fixture::default();
    let before = plan(&cri::PodSandboxConfig::default(), &f.host, &f.policy);
    for (field, change) in changes {
        let mut config = cri::PodSandboxConfig::default();
        change(&mut config);
        assert_ne!(plan(&config, &f.host, &f.policy), before, "{field}");
    }
}

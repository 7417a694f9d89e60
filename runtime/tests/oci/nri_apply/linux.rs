//! Cgroups path, seccomp, namespaces, sysctls, memory policy.

use cairn::oci::{CgroupDriver, apply_adjustment};
use oci_spec::runtime::LinuxNamespaceType;
use proto_nri as nri;

use super::{applied, apply, context, every_linux, host, linux, of_linux, refused};

#[test]
fn the_cgroup_can_move_within_the_hierarchy() {
    let path = |path: &str| {
        of_linux(nri::LinuxContainerAdjustment {
            cgroups_path: path.to_owned(),
            ..Default::default()
        })
    };
    let mut systemd = host();
    systemd.policy.cgroup_driver = CgroupDriver::Systemd;
    systemd.sandbox.cgroup_parent = "/a.slice".to_owned();
    for (f, good, bad) in [
        (&host(), "/a/b", "x.slice:cairn:c1"),
        (&systemd, "x.slice:cairn:c1", "/a/b"),
    ] {
        let spec = apply(f, &path(good)).expect("applied");
        assert_eq!(linux(&spec).cgroups_path().as_deref(), Some(good.as_ref()));
        assert!(apply(f, &path(bad)).is_err(), "{bad}: of the other driver");
    }
    for bad in ["a/b", "/a/../..", "a:b", "a/../b:c:d"] {
        assert!(refused(&path(bad)).contains("cgroups_path"), "{bad}");
    }
}

#[test]
fn a_seccomp_policy_that_cannot_be_had_is_refused() {
    let good = every_linux().seccomp_policy.expect("a policy");
    let mut listener = good.clone();
    listener.listener_path = "/run/l.sock".to_owned();
    let mut notify = good.clone();
    notify.syscalls[0].action = "SCMP_ACT_NOTIFY".to_owned();
    let mut action = good.clone();
    action.default_action = "SCMP_ACT_DANCE".to_owned();
    let mut arch = good.clone();
    arch.architectures = vec!["SCMP_ARCH_VAX".to_owned()];
    let mut flag = good.clone();
    flag.flags = vec!["FLAG".to_owned()];
    let mut op = good.clone();
    op.syscalls[0].args[0].op = "SCMP_CMP_ISH".to_owned();
    let mut index = good;
    index.syscalls[0].args[0].index = 6;
    let mut metadata = every_linux().seccomp_policy.expect("a policy");
    metadata.listener_metadata = "for nobody".to_owned();
    let mut waits = every_linux().seccomp_policy.expect("a policy");
    waits.flags = vec!["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV".to_owned()];
    for bad in [
        listener, notify, action, arch, flag, op, index, metadata, waits,
    ] {
        let text = refused(&of_linux(nri::LinuxContainerAdjustment {
            seccomp_policy: Some(bad),
            ..Default::default()
        }));
        assert!(text.contains("adjust.linux.seccomp_policy"), "{text}");
    }
}

fn namespaces(list: &[(&str, &str)]) -> nri::ContainerAdjustment {
    of_linux(nri::LinuxContainerAdjustment {
        namespaces: list
            .iter()
            .map(|(kind, path)| nri::LinuxNamespace {
                r#type: (*kind).to_owned(),
                path: (*path).to_owned(),
            })
            .collect(),
        ..Default::default()
    })
}

#[test]
fn namespaces_are_added_replaced_and_removed_by_type() {
    let spec = applied(&namespaces(&[
        ("network", "/ns/net2"),
        ("-ipc", ""),
        ("-time", ""),
    ]));
    let list = linux(&spec).namespaces().clone().expect("list");
    let path = |kind| {
        list.iter()
            .find(|n| n.typ() == kind)
            .map(|n| n.path().clone())
    };
    assert_eq!(
        path(LinuxNamespaceType::Network),
        Some(Some("/ns/net2".into()))
    );
    assert_eq!(path(LinuxNamespaceType::Ipc), None);
    for bad in [
        ("net work", ""),
        ("-mount", ""),
        ("mount", "/ns/m"),
        ("user", "/ns/u"),
        ("user", ""),
        ("-user", ""),
        ("pid", "relative"),
    ] {
        assert!(
            refused(&namespaces(&[bad])).contains("adjust.linux.namespaces"),
            "{bad:?}"
        );
    }
}

#[test]
fn sysctls_must_be_of_a_namespace_that_is_not_the_hosts() {
    let sysctl = |list: &[(&str, &str)]| {
        of_linux(nri::LinuxContainerAdjustment {
            sysctl: list
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            ..Default::default()
        })
    };
    let f = host();
    let mut spec = applied(&sysctl(&[
        ("kernel.shmmax", "1"),
        ("net.core.somaxconn", "2"),
    ]));
    let again = sysctl(&[
        ("-kernel.shmmax", ""),
        ("net.core.somaxconn", "3"),
        ("-net.core.somaxconn", ""),
    ]);
    apply_adjustment(&mut spec, &again, &context(&f)).expect("applied");
    let found = linux(&spec).sysctl().clone().expect("sysctl");
    assert_eq!(found.len(), 1);
    assert_eq!(found["net.core.somaxconn"], "3");
    assert!(refused(&sysctl(&[("vm.swappiness", "1")])).contains("vm.swappiness"));
    let network = ("net.core.somaxconn", "network");
    let ipc = ("kernel.shmmax", "ipc");
    let own = f.sandbox.namespaces.clone();
    let own = |kind: &str| match kind {
        "network" => own.net.clone().expect("the pod's").display().to_string(),
        _ => own.ipc.clone().expect("the pod's").display().to_string(),
    };
    for (name, kind) in [network, ipc] {
        let with = |kind: &str, path: &str| {
            let mut adjust = sysctl(&[(name, "2")]);
            adjust.linux.as_mut().expect("linux").namespaces =
                namespaces(&[(kind, path)]).linux.expect("linux").namespaces;
            adjust
        };
        let kept = [
            with(kind, ""),
            with(kind, &own(kind)),
            with("uts", "/ns/uts2"),
        ];
        for adjust in kept {
            apply(&f, &adjust).expect("a new namespace, or the pod's");
        }
        let removed = format!("-{kind}");
        let of_others = [with(kind, &format!("/ns/{}9", &kind[..3]))];
        for adjust in [with(&removed, "")].iter().chain(&of_others) {
            let why = refused(adjust);
            assert!(why.contains("not the pod's") && why.contains(name), "{why}");
        }
    }
}

#[test]
fn the_default_memory_policy_is_kept_as_a_mode() {
    let policy = |mode, nodes: &str, flags: &[i32]| {
        of_linux(nri::LinuxContainerAdjustment {
            memory_policy: Some(nri::LinuxMemoryPolicy {
                mode,
                nodes: nodes.to_owned(),
                flags: flags.to_vec(),
            }),
            ..Default::default()
        })
    };
    let spec = applied(&policy(0, "", &[]));
    let found = linux(&spec).memory_policy().clone().expect("a policy");
    assert_eq!(found.mode().to_string(), "MPOL_DEFAULT");
    let mode = |mode: nri::MpolMode| mode as i32;
    let flag = |flag: nri::MpolFlag| flag as i32;
    for bad in [
        policy(99, "", &[]),
        policy(2, "all", &[]),
        policy(2, "0", &[9]),
        policy(mode(nri::MpolMode::MpolBind), "", &[]),
        policy(mode(nri::MpolMode::MpolDefault), "0", &[]),
        policy(
            mode(nri::MpolMode::MpolInterleave),
            "0",
            &[flag(nri::MpolFlag::MpolFNumaBalancing)],
        ),
        policy(
            mode(nri::MpolMode::MpolBind),
            "0",
            &[
                flag(nri::MpolFlag::MpolFStaticNodes),
                flag(nri::MpolFlag::MpolFRelativeNodes),
            ],
        ),
    ] {
        assert!(refused(&bad).contains("adjust.linux.memory_policy"));
    }
}

use proto_cri::v1::UserNamespace;

use super::*;
use crate::oci::facts::SandboxNamespaces;

fn sandbox() -> SandboxFacts {
    SandboxFacts {
        namespaces: SandboxNamespaces {
            net: Some("/n/net".into()),
            ipc: Some("/n/ipc".into()),
            uts: Some("/n/uts".into()),
            pid: Some("/n/pid".into()),
            user: None,
        },
        ..SandboxFacts::default()
    }
}

fn kinds(options: &NamespaceOption, sandbox: &SandboxFacts) -> Vec<(LinuxNamespaceType, bool)> {
    build(
        options,
        sandbox,
        &HostFacts::default(),
        false,
        Some(Path::new("/t/pid")),
    )
    .expect("valid")
    .iter()
    .map(|n| (n.typ(), n.path().is_some()))
    .collect()
}

fn with_pid(mode: NamespaceMode) -> NamespaceOption {
    NamespaceOption {
        pid: mode as i32,
        ..NamespaceOption::default()
    }
}

#[test]
fn no_options_mean_the_pods_namespaces() {
    let list = kinds(&NamespaceOption::default(), &sandbox());
    for kind in [
        LinuxNamespaceType::Pid,
        LinuxNamespaceType::Network,
        LinuxNamespaceType::Ipc,
        LinuxNamespaceType::Uts,
    ] {
        assert!(list.contains(&(kind, true)), "{kind:?}");
    }
    assert!(list.contains(&(LinuxNamespaceType::Mount, false)));
    assert!(list.contains(&(LinuxNamespaceType::Cgroup, false)));
}

#[test]
fn a_cgroup_namespace_exists_only_on_v2_and_without_privilege() {
    for (cgroup_v1, privileged, expected) in [
        (false, false, true),
        (false, true, false),
        (true, false, false),
    ] {
        let host = HostFacts {
            cgroup_v1,
            ..HostFacts::default()
        };
        let list = build(
            &NamespaceOption::default(),
            &sandbox(),
            &host,
            privileged,
            None,
        )
        .expect("valid");
        let found = list.iter().any(|n| n.typ() == LinuxNamespaceType::Cgroup);
        assert_eq!(found, expected, "v1: {cgroup_v1}, {privileged}");
    }
}

#[test]
fn the_pid_namespace_follows_the_option_and_the_pod() {
    let list = kinds(&with_pid(NamespaceMode::Container), &sandbox());
    assert!(list.contains(&(LinuxNamespaceType::Pid, false)));
    let list = kinds(&with_pid(NamespaceMode::Target), &sandbox());
    assert!(list.contains(&(LinuxNamespaceType::Pid, true)));
    let mut own = sandbox();
    own.namespace_options = with_pid(NamespaceMode::Container);
    assert_eq!(
        pid(&NamespaceOption::default(), &own),
        Ok(PidNamespace::Own)
    );
    let mut host = sandbox();
    host.namespace_options = with_pid(NamespaceMode::Node);
    assert_eq!(
        pid(&NamespaceOption::default(), &host),
        Ok(PidNamespace::Host)
    );
    assert_eq!(
        pid(&with_pid(NamespaceMode::Node), &host),
        Ok(PidNamespace::Host)
    );
    assert!(pid(&with_pid(NamespaceMode::Node), &sandbox()).is_err());
    assert!(
        pid(
            &NamespaceOption {
                pid: 17,
                ..Default::default()
            },
            &sandbox()
        )
        .is_err()
    );
}

#[test]
fn a_target_must_have_been_found() {
    let options = NamespaceOption {
        target_id: "abc".to_owned(),
        ..with_pid(NamespaceMode::Target)
    };
    let error =
        build(&options, &sandbox(), &HostFacts::default(), false, None).expect_err("refused");
    assert!(error.to_string().contains("\"abc\""), "{error}");
}

#[test]
fn the_hosts_network_or_ipc_cannot_be_had_in_a_pod_that_has_its_own() {
    for options in [
        NamespaceOption {
            network: NamespaceMode::Node as i32,
            ..NamespaceOption::default()
        },
        NamespaceOption {
            ipc: NamespaceMode::Node as i32,
            ..NamespaceOption::default()
        },
        NamespaceOption {
            network: NamespaceMode::Container as i32,
            ..NamespaceOption::default()
        },
        NamespaceOption {
            ipc: NamespaceMode::Target as i32,
            ..NamespaceOption::default()
        },
    ] {
        assert!(
            build(&options, &sandbox(), &HostFacts::default(), false, None).is_err(),
            "{options:?}"
        );
    }
}

fn user(
    mode: NamespaceMode,
    uids: &[(u32, u32, u32)],
    gids: &[(u32, u32, u32)],
) -> NamespaceOption {
    let list = |maps: &[(u32, u32, u32)]| {
        maps.iter()
            .map(|(container_id, host_id, length)| IdMap {
                container_id: *container_id,
                host_id: *host_id,
                length: *length,
            })
            .collect()
    };
    NamespaceOption {
        userns_options: Some(UserNamespace {
            mode: mode as i32,
            uids: list(uids),
            gids: list(gids),
        }),
        ..NamespaceOption::default()
    }
}

#[test]
fn only_one_sane_mapping_makes_a_user_namespace() {
    use NamespaceMode::{Container, Node, Pod, Target};
    let map = [(0, 65536, 65536)];
    let good = user_mapping(&user(Pod, &map, &map)).expect("valid");
    assert_eq!(good.map(|m| m.host_id), Some(65536));
    assert_eq!(user_mapping(&user(Node, &[], &[])), Ok(None));
    assert_eq!(user_mapping(&NamespaceOption::default()), Ok(None));
    for bad in [
        user(Pod, &[], &[]),
        user(Pod, &map, &[]),
        user(Pod, &[map[0], map[0]], &map),
        user(Pod, &[(0, 65536, 0)], &map),
        user(Pod, &[(1, 65536, 65536)], &[(1, 65536, 65536)]),
        user(Pod, &map, &[(0, 131_072, 65536)]),
        user(Pod, &[(0, u32::MAX, 2)], &[(0, u32::MAX, 2)]),
        user(Node, &map, &map),
        user(Container, &map, &map),
        user(Target, &map, &map),
    ] {
        assert!(user_mapping(&bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_containers_user_namespace_must_be_the_pods() {
    let map = [(0, 65536, 65536)];
    let options = user(NamespaceMode::Pod, &map, &map);
    let mut pod = sandbox();
    assert!(build(&options, &pod, &HostFacts::default(), false, None).is_err());
    pod.user_mapping = user_mapping(&options).expect("valid");
    pod.namespaces.user = Some("/n/user".into());
    let list = kinds(&options, &pod);
    assert!(list.contains(&(LinuxNamespaceType::User, true)));
}

//! Which namespaces a container joins, makes or shares with the host (CRI-200, CRI-225).

use std::path::Path;

use oci_spec::runtime::{LinuxNamespace, LinuxNamespaceType};
use proto_cri::v1::{IdMapping, NamespaceMode, NamespaceOption};

use super::{
    base::namespace,
    error::SpecError,
    facts::{CgroupMode, IdMap, SandboxFacts, SandboxNamespaces},
};

const FIELD: &str = "linux.security_context.namespace_options";

/// Whose PID namespace the container's processes are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidNamespace {
    /// The one of the pause process.
    Pod,
    /// Its own: PID 1 is the container's first process.
    Own,
    Host,
    /// That of another container of the pod.
    Target,
}

/// The mode of an option by its number; an unknown number is refused.
pub fn mode(value: i32, field: &str) -> Result<NamespaceMode, SpecError> {
    NamespaceMode::try_from(value).map_err(|_| {
        SpecError::invalid(
            format!("{FIELD}.{field}"),
            format!("unknown namespace mode {value}"),
        )
    })
}

/// PID namespace of a container. A container that asks for the pod's in a pod without a
/// shared one gets what the pod has: its own, or the host's.
pub fn pid(options: &NamespaceOption, sandbox: &SandboxFacts) -> Result<PidNamespace, SpecError> {
    let pod = mode(sandbox.namespace_options.pid, "pid")?;
    match mode(options.pid, "pid")? {
        NamespaceMode::Container => Ok(PidNamespace::Own),
        NamespaceMode::Target => Ok(PidNamespace::Target),
        NamespaceMode::Node if pod == NamespaceMode::Node => Ok(PidNamespace::Host),
        NamespaceMode::Node => Err(SpecError::invalid(
            format!("{FIELD}.pid"),
            "the pod does not use the host's PID namespace",
        )),
        NamespaceMode::Pod => Ok(match pod {
            NamespaceMode::Node => PidNamespace::Host,
            NamespaceMode::Pod => PidNamespace::Pod,
            NamespaceMode::Container | NamespaceMode::Target => PidNamespace::Own,
        }),
    }
}

/// The namespace list of a container. `target` is the PID namespace of the target container, which
/// the caller has found running in the same pod.
pub fn build(
    options: &NamespaceOption,
    sandbox: &SandboxFacts,
    cgroup: CgroupMode,
    privileged: bool,
    target: Option<&Path>,
) -> Result<Vec<LinuxNamespace>, SpecError> {
    same_as_pod(options.network, sandbox.host_network, "network")?;
    same_as_pod(options.ipc, sandbox.namespaces.ipc.is_none(), "ipc")?;
    check_user(options, sandbox)?;
    let mut list = vec![namespace(LinuxNamespaceType::Mount, None)];
    match pid(options, sandbox)? {
        PidNamespace::Own => list.push(namespace(LinuxNamespaceType::Pid, None)),
        PidNamespace::Host => {}
        PidNamespace::Pod => {
            let path = sandbox.namespaces.pid.as_deref().ok_or_else(|| {
                SpecError::not_found(
                    format!("{FIELD}.pid"),
                    "the pod's shared PID namespace is gone",
                )
            })?;
            list.push(namespace(LinuxNamespaceType::Pid, Some(path)));
        }
        PidNamespace::Target => {
            let path = target.ok_or_else(|| {
                SpecError::not_found(
                    format!("{FIELD}.target_id"),
                    format!(
                        "{:?} is not a running container of this pod",
                        options.target_id
                    ),
                )
            })?;
            list.push(namespace(LinuxNamespaceType::Pid, Some(path)));
        }
    }
    list.extend(joined(&sandbox.namespaces));
    if cgroup == CgroupMode::V2 && !privileged {
        list.push(namespace(LinuxNamespaceType::Cgroup, None));
    }
    Ok(list)
}

/// The pod's namespaces that all its processes join; whose process ids they see is decided one by one.
pub(super) fn joined(pod: &SandboxNamespaces) -> impl Iterator<Item = LinuxNamespace> {
    [
        (LinuxNamespaceType::Network, &pod.net),
        (LinuxNamespaceType::Ipc, &pod.ipc),
        (LinuxNamespaceType::Uts, &pod.uts),
        (LinuxNamespaceType::User, &pod.user),
    ]
    .into_iter()
    .filter_map(|(kind, path)| Some(namespace(kind, Some(path.as_deref()?))))
}

fn same_as_pod(value: i32, pod_uses_host: bool, field: &str) -> Result<(), SpecError> {
    match mode(value, field)? {
        NamespaceMode::Pod => Ok(()),
        NamespaceMode::Node if pod_uses_host => Ok(()),
        NamespaceMode::Node => Err(SpecError::invalid(
            format!("{FIELD}.{field}"),
            format!("the pod does not use the host's {field} namespace"),
        )),
        mode @ (NamespaceMode::Container | NamespaceMode::Target) => Err(SpecError::invalid(
            format!("{FIELD}.{field}"),
            format!("{} is not supported for {field}", mode.as_str_name()),
        )),
    }
}

/// A container's user namespace must be the pod's (CRI-225). Absent options say nothing.
fn check_user(options: &NamespaceOption, sandbox: &SandboxFacts) -> Result<(), SpecError> {
    if options.userns_options.is_none() {
        return Ok(());
    }
    if user_mapping(options)? == sandbox.user_mapping {
        return Ok(());
    }
    Err(SpecError::invalid(
        format!("{FIELD}.userns_options"),
        "differs from the pod's",
    ))
}

/// The mapping that a user namespace option asks for; `None` for the host's (CRI-225).
pub fn user_mapping(options: &NamespaceOption) -> Result<Option<IdMap>, SpecError> {
    let field = format!("{FIELD}.userns_options");
    let Some(user) = &options.userns_options else {
        return Ok(None);
    };
    match mode(user.mode, "userns_options.mode")? {
        NamespaceMode::Node if user.uids.is_empty() && user.gids.is_empty() => Ok(None),
        NamespaceMode::Node => Err(SpecError::invalid(field, "mode NODE takes no mappings")),
        NamespaceMode::Container | NamespaceMode::Target => {
            Err(SpecError::invalid(field, "mode must be POD or NODE"))
        }
        NamespaceMode::Pod => common_mapping(&user.uids, &user.gids, &field).map(Some),
    }
}

/// The single mapping of uids and gids alike.
pub(super) fn common_mapping(
    uids: &[IdMapping],
    gids: &[IdMapping],
    field: &str,
) -> Result<IdMap, SpecError> {
    let map = single(uids, field)?;
    if single(gids, field)? == map {
        return Ok(map);
    }
    Err(SpecError::unsupported(
        field,
        "uids and gids must have the same mapping",
    ))
}

/// The single mapping of a list; it must contain root and not run over the end of the ids.
fn single(list: &[IdMapping], field: &str) -> Result<IdMap, SpecError> {
    let [map] = list else {
        return Err(SpecError::invalid(
            field,
            format!("exactly one mapping is supported, not {}", list.len()),
        ));
    };
    let fits = |start: u32| start.checked_add(map.length).is_some();
    let cause = if map.length == 0 {
        "a mapping of length 0"
    } else if map.container_id != 0 {
        "root of the container is not mapped"
    } else if !fits(map.host_id) || !fits(map.container_id) {
        "the mapping exceeds the range of ids"
    } else {
        return Ok(IdMap {
            host_id: map.host_id,
            container_id: map.container_id,
            length: map.length,
        });
    };
    Err(SpecError::invalid(field, cause))
}

#[cfg(test)]
mod tests {
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
            CgroupMode::V2,
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
        for (mode, privileged, expected) in [
            (CgroupMode::V2, false, true),
            (CgroupMode::V2, true, false),
            (CgroupMode::V1, false, false),
            (CgroupMode::Hybrid, false, false),
        ] {
            let list = build(
                &NamespaceOption::default(),
                &sandbox(),
                mode,
                privileged,
                None,
            )
            .expect("valid");
            let found = list.iter().any(|n| n.typ() == LinuxNamespaceType::Cgroup);
            assert_eq!(found, expected, "{mode:?} {privileged}");
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
        let error = build(&options, &sandbox(), CgroupMode::V2, false, None).expect_err("refused");
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
                build(&options, &sandbox(), CgroupMode::V2, false, None).is_err(),
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
                .map(|(container_id, host_id, length)| IdMapping {
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
        assert!(build(&options, &pod, CgroupMode::V2, false, None).is_err());
        pod.user_mapping = user_mapping(&options).expect("valid");
        pod.namespaces.user = Some("/n/user".into());
        let list = kinds(&options, &pod);
        assert!(list.contains(&(LinuxNamespaceType::User, true)));
    }
}

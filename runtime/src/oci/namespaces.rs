//! The namespaces that a container joins, makes or shares with the host (CRI-200, CRI-225).

use std::path::Path;

use oci_spec::runtime::{LinuxNamespace, LinuxNamespaceType};
use proto_cri::v1::{NamespaceMode, NamespaceOption};

use super::{
    base::namespace,
    error::SpecError,
    facts::{HostFacts, IdMap, SandboxFacts, SandboxNamespaces},
};

const FIELD: &str = "linux.security_context.namespace_options";

/// The PID namespace of the container's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidNamespace {
    /// That of the pause process.
    Pod,
    /// A new one: PID 1 is the container's first process.
    Own,
    Host,
    /// That of another container of the pod.
    Target,
}

/// The mode of an option by its number; unknown numbers are refused.
pub fn mode(value: i32, field: &str) -> Result<NamespaceMode, SpecError> {
    NamespaceMode::try_from(value)
        .map_err(|_| wrong(field, format!("unknown namespace mode {value}")))
}

fn wrong(field: &str, cause: impl Into<String>) -> SpecError {
    SpecError::invalid(format!("{FIELD}.{field}"), cause)
}

/// The PID namespace of a container. A request for the pod's namespace, in a pod that shares none,
/// gets what the pod has: its own, or the host's.
pub fn pid(options: &NamespaceOption, sandbox: &SandboxFacts) -> Result<PidNamespace, SpecError> {
    let pod = mode(sandbox.namespace_options.pid, "pid")?;
    match mode(options.pid, "pid")? {
        NamespaceMode::Container => Ok(PidNamespace::Own),
        NamespaceMode::Target => Ok(PidNamespace::Target),
        NamespaceMode::Node if pod == NamespaceMode::Node => Ok(PidNamespace::Host),
        NamespaceMode::Node => {
            let cause = "the pod does not use the host's PID namespace";
            Err(wrong("pid", cause))
        }
        NamespaceMode::Pod => Ok(match pod {
            NamespaceMode::Node => PidNamespace::Host,
            NamespaceMode::Pod => PidNamespace::Pod,
            NamespaceMode::Container | NamespaceMode::Target => PidNamespace::Own,
        }),
    }
}

/// The namespaces of a container. `target`: the PID namespace of the target container, which the
/// caller has found running in the same pod.
pub fn build(
    options: &NamespaceOption,
    sandbox: &SandboxFacts,
    host: &HostFacts,
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
                    "the pod's shared PID namespace no longer exists",
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
    if !host.cgroup_v1 && !privileged {
        list.push(namespace(LinuxNamespaceType::Cgroup, None));
    }
    Ok(list)
}

/// The namespaces that all processes of the pod join. The PID namespace is decided per container.
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
        NamespaceMode::Node => {
            let cause = format!("the pod does not use the host's {field} namespace");
            Err(wrong(field, cause))
        }
        mode @ (NamespaceMode::Container | NamespaceMode::Target) => {
            let cause = format!("{} is not supported for {field}", mode.as_str_name());
            Err(wrong(field, cause))
        }
    }
}

/// Checks that a container's user namespace is the pod's (CRI-225). Absent options pass.
fn check_user(options: &NamespaceOption, sandbox: &SandboxFacts) -> Result<(), SpecError> {
    if options.userns_options.is_none() {
        return Ok(());
    }
    if user_mapping(options)? == sandbox.user_mapping {
        return Ok(());
    }
    Err(wrong("userns_options", "differs from the pod's"))
}

/// The mapping that a user namespace option requests; `None` for the host's (CRI-225).
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

/// The single mapping, which must be the same for uids and gids.
pub(super) fn common_mapping(
    uids: &[IdMap],
    gids: &[IdMap],
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

/// The single mapping of a list; it must contain root and stay within the range of ids.
fn single(list: &[IdMap], field: &str) -> Result<IdMap, SpecError> {
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
        return Ok(*map);
    };
    Err(SpecError::invalid(field, cause))
}

#[cfg(test)]
#[path = "namespaces_tests.rs"]
mod tests;

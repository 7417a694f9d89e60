//! The rows of NRI section 7 that change the `linux` section of a spec.

use std::collections::BTreeMap;

use oci_spec::runtime::{
    Linux, LinuxDevice, LinuxIntelRdt, LinuxMemoryPolicy, LinuxNamespace, LinuxNamespaceType,
    LinuxNetDevice, LinuxSeccomp, LinuxSeccompArgBuilder, LinuxSeccompFilterFlag,
    LinuxSeccompOperator, LinuxSyscall, MemoryPolicyFlagType, MemoryPolicyModeType, Spec,
};
use proto_nri as nri;

use super::{
    base::{clean_path, empty_linux, namespace},
    devices::{kind_of, rule},
    error::SpecError,
    facts::{CgroupDriver, HostFacts, HostView},
    nri_resources::kind_name,
    sandbox::check_sysctl,
    seccomp,
};
use ::nri::owners::removal;

fn linux(spec: &mut Spec) -> &mut Linux {
    spec.linux_mut().get_or_insert_with(empty_linux)
}

/// Per entry: the device with that path goes, with the rule that was made for it; unless it is a
/// removal, the new one comes, with a rule `rwm`. A fifo has none (NRI-704).
pub fn devices(
    spec: &mut Spec,
    asked: &[nri::LinuxDevice],
    view: &dyn HostView,
) -> Result<(), SpecError> {
    for entry in asked {
        let (path, remove) = match removal(&entry.path) {
            Some(path) => (path, true),
            None => (entry.path.as_str(), false),
        };
        let wrong = |cause: String| {
            Err(SpecError::invalid(
                format!("adjust.linux.devices[{path:?}]"),
                cause,
            ))
        };
        if !path.starts_with('/') || path.contains('\0') {
            return wrong("must be absolute".to_owned());
        }
        let path = clean_path(path);
        take_device(linux(spec), &path);
        if remove {
            continue;
        }
        let letter = entry.r#type.as_str();
        let kind = match letter.len() {
            1 => letter.chars().next().and_then(kind_of),
            _ => None,
        };
        let Some(kind) = kind else {
            return wrong(format!("unknown device type {letter:?}"));
        };
        if entry.major < 0 || entry.minor < 0 {
            return wrong("a device number is negative".to_owned());
        }
        if is_mapped(linux(spec)) && !is_as_the_hosts(entry, &path, view) {
            return Err(SpecError::unsupported(
                format!("adjust.linux.devices[{path:?}]"),
                "in a user namespace a node is the host's own, with its mode and its owner",
            ));
        }
        let mut device = LinuxDevice::default();
        device.set_path(path.clone().into());
        device.set_typ(kind);
        device.set_major(entry.major);
        device.set_minor(entry.minor);
        device.set_file_mode(entry.file_mode.as_ref().map(|m| m.value & 0o7777));
        device.set_uid(entry.uid.as_ref().map(|id| id.value));
        device.set_gid(entry.gid.as_ref().map(|id| id.value));
        let linux = linux(spec);
        linux.devices_mut().get_or_insert_default().push(device);
        if kind_name(kind) != "p" {
            let resources = linux.resources_mut().get_or_insert_default();
            resources.devices_mut().get_or_insert_default().push(rule(
                true,
                Some(kind),
                Some(entry.major),
                Some(entry.minor),
                "rwm",
            ));
        }
    }
    Ok(())
}

fn is_mapped(linux: &Linux) -> bool {
    let maps = linux.uid_mappings().as_ref();
    maps.is_some_and(|maps| !maps.is_empty())
}

/// Whether mode and owner, as far as they are given, are those of the host's node.
fn is_as_the_hosts(asked: &nri::LinuxDevice, path: &str, view: &dyn HostView) -> bool {
    let agrees = |asked: Option<u32>, has: u32| asked.is_none_or(|asked| asked == has);
    let mut nodes = view.devices(path).into_iter();
    let host = nodes.find(|d| (d.major, d.minor) == (asked.major, asked.minor));
    // That there is one at all is `devices::check_places`'s to say.
    host.is_none_or(|host| {
        agrees(
            asked.file_mode.as_ref().map(|m| m.value & 0o7777),
            host.mode,
        ) && agrees(asked.uid.as_ref().map(|id| id.value), host.uid)
            && agrees(asked.gid.as_ref().map(|id| id.value), host.gid)
    })
}

/// Takes the device at `path` out, and the last exact rule that allowed it: an earlier one of the
/// same numbers belongs to the defaults.
pub fn take_device(linux: &mut Linux, path: &str) {
    let Some(devices) = linux.devices_mut() else {
        return;
    };
    let same = |d: &LinuxDevice| clean_path(&d.path().to_string_lossy()) == path;
    let Some(place) = devices.iter().position(same) else {
        return;
    };
    let gone = devices.remove(place);
    let rules = linux
        .resources_mut()
        .as_mut()
        .and_then(|r| r.devices_mut().as_mut());
    if let Some(rules) = rules {
        let exact = rules.iter().rposition(|r| {
            r.allow()
                && r.typ() == Some(gone.typ())
                && r.major() == Some(gone.major())
                && r.minor() == Some(gone.minor())
        });
        if let Some(place) = exact {
            rules.remove(place);
        }
    }
}

/// Replaces the path of the cgroup; it must not lead out of the hierarchy.
pub fn cgroups_path(spec: &mut Spec, asked: &str, driver: CgroupDriver) -> Result<(), SpecError> {
    if asked.is_empty() {
        return Ok(());
    }
    let sane = match driver {
        CgroupDriver::Cgroupfs => asked.starts_with('/'),
        CgroupDriver::Systemd => asked.split(':').count() == 3 && !asked.contains('/'),
    };
    if !sane || asked.split('/').any(|p| p == "..") || asked.contains('\0') {
        return Err(SpecError::invalid(
            "adjust.linux.cgroups_path",
            match driver {
                CgroupDriver::Cgroupfs => format!("{asked:?} must be absolute"),
                CgroupDriver::Systemd => format!("{asked:?} must be of the form slice:prefix:name"),
            },
        ));
    }
    linux(spec).set_cgroups_path(Some(asked.into()));
    Ok(())
}

/// Replaces the filter as a whole, the default errno included (NRI-705).
pub fn seccomp(spec: &mut Spec, asked: Option<&nri::LinuxSeccomp>) -> Result<(), SpecError> {
    const FIELD: &str = "adjust.linux.seccomp_policy";
    let Some(asked) = asked else {
        return Ok(());
    };
    let wrong = |cause: String| SpecError::invalid(FIELD, cause);
    let listener = [
        (&asked.listener_path, "listener_path"),
        (&asked.listener_metadata, "listener_metadata"),
    ];
    if let Some((_, name)) = listener.iter().find(|(text, _)| !text.is_empty()) {
        return Err(SpecError::unsupported(
            format!("{FIELD}.{name}"),
            "a listener for system calls is not supported",
        ));
    }
    let mut policy = LinuxSeccomp::default();
    policy.set_default_action(constant(&asked.default_action, FIELD)?);
    policy.set_default_errno_ret(asked.default_errno.as_ref().map(|e| e.value));
    policy.set_architectures(list(&asked.architectures, FIELD)?);
    policy.set_flags(list(&asked.flags, FIELD)?);
    let waits = LinuxSeccompFilterFlag::SeccompFilterFlagWaitKillableRecv;
    if policy.flags().iter().flatten().any(|flag| *flag == waits) {
        return Err(SpecError::unsupported(
            format!("{FIELD}.flags"),
            format!("{waits} requires a listener"),
        ));
    }
    let rules: Vec<LinuxSyscall> = asked
        .syscalls
        .iter()
        .map(|s| syscall(s, FIELD))
        .collect::<Result<_, _>>()?;
    policy.set_syscalls(Some(rules).filter(|rules| !rules.is_empty()));
    seccomp::check(&policy).map_err(wrong)?;
    linux(spec).set_seccomp(Some(policy));
    Ok(())
}

fn syscall(asked: &nri::LinuxSyscall, field: &str) -> Result<LinuxSyscall, SpecError> {
    let mut args = Vec::new();
    for arg in &asked.args {
        let op: LinuxSeccompOperator = constant(&arg.op, field)?;
        let mut builder = LinuxSeccompArgBuilder::default()
            .index(arg.index as usize)
            .value(arg.value)
            .op(op);
        if arg.value_two != 0 || op == LinuxSeccompOperator::ScmpCmpMaskedEq {
            builder = builder.value_two(arg.value_two);
        }
        args.push(builder.build().expect("every field has a default"));
    }
    let mut rule = LinuxSyscall::default();
    rule.set_names(asked.names.clone());
    rule.set_action(constant(&asked.action, field)?);
    rule.set_errno_ret(asked.errno_ret.as_ref().map(|e| e.value));
    rule.set_args(Some(args).filter(|args| !args.is_empty()));
    Ok(rule)
}

fn list<T: std::str::FromStr>(names: &[String], field: &str) -> Result<Option<Vec<T>>, SpecError> {
    let list: Vec<T> = names
        .iter()
        .map(|name| constant(name, field))
        .collect::<Result<_, _>>()?;
    Ok(Some(list).filter(|list| !list.is_empty()))
}

/// A constant of OCI by its name, such as `SCMP_ACT_ERRNO`.
fn constant<T: std::str::FromStr>(name: &str, field: &str) -> Result<T, SpecError> {
    name.parse()
        .map_err(|_| SpecError::invalid(field, format!("{name:?} is unknown")))
}

/// A marked type goes; another is added, or gets the new path.
pub fn namespaces(spec: &mut Spec, asked: &[nri::LinuxNamespace]) -> Result<(), SpecError> {
    for entry in asked {
        let (name, remove) = match removal(&entry.r#type) {
            Some(name) => (name, true),
            None => (entry.r#type.as_str(), false),
        };
        let field = format!("adjust.linux.namespaces[{name:?}]");
        let kind = LinuxNamespaceType::try_from(name)
            .map_err(|_| SpecError::invalid(field.clone(), "unknown type of namespace"))?;
        if !(entry.path.is_empty() || entry.path.starts_with('/')) || entry.path.contains('\0') {
            return Err(SpecError::invalid(
                field,
                format!("{:?} must be absolute", entry.path),
            ));
        }
        let path = Some(std::path::Path::new(&entry.path)).filter(|p| !p.as_os_str().is_empty());
        let linux = linux(spec);
        match kind {
            LinuxNamespaceType::Mount if remove => {
                return Err(SpecError::unsupported(
                    field,
                    "a container without a mount namespace of its own would have the host's root",
                ));
            }
            LinuxNamespaceType::Mount if path.is_some() => {
                return Err(SpecError::unsupported(
                    field,
                    "the container's root would take the place of the root in the joined namespace",
                ));
            }
            LinuxNamespaceType::User if remove || !is_joined(linux, kind, path) => {
                return Err(SpecError::unsupported(
                    field,
                    "the user namespace is the pod's: it owns the others, and its mapping the files",
                ));
            }
            _ => {}
        }
        let list = linux.namespaces_mut().get_or_insert_default();
        let place = list.iter().position(|n: &LinuxNamespace| n.typ() == kind);
        match (place, remove) {
            (Some(place), true) => {
                list.remove(place);
            }
            (None, true) => {}
            (Some(place), false) => list[place] = namespace(kind, path),
            (None, false) => list.push(namespace(kind, path)),
        }
    }
    Ok(())
}

pub(super) fn has_namespace(spec: &Spec, kind: LinuxNamespaceType) -> bool {
    let linux = spec.linux().as_ref();
    linux
        .and_then(|l| l.namespaces().as_ref())
        .is_some_and(|list| list.iter().any(|n| n.typ() == kind))
}

/// Whether the container joins the namespace at `path` already.
fn is_joined(linux: &Linux, kind: LinuxNamespaceType, path: Option<&std::path::Path>) -> bool {
    let mut list = linux.namespaces().iter().flatten();
    path.is_some() && list.any(|n| n.typ() == kind && n.path().as_deref() == path)
}

/// First all removals, then all values (NRI-702); only what is the pod's own to set.
pub fn sysctl(spec: &mut Spec, asked: &BTreeMap<String, String>) -> Result<(), SpecError> {
    if asked.is_empty() {
        return Ok(());
    }
    let host_network = !has_namespace(spec, LinuxNamespaceType::Network);
    let host_ipc = !has_namespace(spec, LinuxNamespaceType::Ipc);
    let all = linux(spec).sysctl_mut().get_or_insert_default();
    for key in asked.keys().filter_map(|key| removal(key)) {
        all.remove(key);
    }
    for (key, value) in asked.iter().filter(|(key, _)| removal(key).is_none()) {
        check_sysctl(key, value, host_network, host_ipc)
            .map_err(|cause| SpecError::invalid(format!("adjust.linux.sysctl[{key:?}]"), cause))?;
        all.insert(key.clone(), value.clone());
    }
    Ok(())
}

/// Devices of the host that move into the container's network; first the removals.
pub fn net_devices(
    spec: &mut Spec,
    asked: &BTreeMap<String, nri::LinuxNetDevice>,
) -> Result<(), SpecError> {
    const FIELD: &str = "adjust.linux.net_devices";
    if asked.is_empty() {
        return Ok(());
    }
    let own_network = has_namespace(spec, LinuxNamespaceType::Network);
    let all = linux(spec).net_devices_mut().get_or_insert_default();
    for key in asked.keys().filter_map(|key| removal(key)) {
        all.remove(key);
    }
    for (host, device) in asked.iter().filter(|(key, _)| removal(key).is_none()) {
        let sane = |name: &str| {
            (1..16).contains(&name.len())
                && name != "."
                && name != ".."
                && !name.contains(['/', ':', '%', '\0'])
                && !name.contains(char::is_whitespace)
        };
        if !sane(host) || !(device.name.is_empty() || sane(&device.name)) {
            return Err(SpecError::invalid(
                FIELD,
                format!("invalid interface name: {host:?} as {:?}", device.name),
            ));
        }
        if !own_network {
            return Err(SpecError::invalid(
                FIELD,
                format!("{host:?} cannot move: the container is on the host's network"),
            ));
        }
        let mut oci = LinuxNetDevice::default();
        oci.set_name(Some(device.name.clone()).filter(|n| !n.is_empty()));
        all.insert(host.clone(), oci);
    }
    Ok(())
}

/// Replaces the policy as a whole; `MPOL_DEFAULT` is kept as a mode of its own.
pub fn memory_policy(
    spec: &mut Spec,
    asked: Option<&nri::LinuxMemoryPolicy>,
) -> Result<(), SpecError> {
    const FIELD: &str = "adjust.linux.memory_policy";
    let Some(asked) = asked else {
        return Ok(());
    };
    let unknown =
        |what: &str, value: i32| SpecError::invalid(FIELD, format!("unknown {what} {value}"));
    let mode: MemoryPolicyModeType = nri::MpolMode::try_from(asked.mode)
        .ok()
        .and_then(|mode| mode.as_str_name().parse().ok())
        .ok_or_else(|| unknown("mode", asked.mode))?;
    let mut flags: Vec<MemoryPolicyFlagType> = Vec::new();
    for flag in &asked.flags {
        let name = nri::MpolFlag::try_from(*flag).map_err(|_| unknown("flag", *flag))?;
        flags.push(
            name.as_str_name()
                .parse()
                .map_err(|_| unknown("flag", *flag))?,
        );
    }
    let nodes = match asked.nodes.as_str() {
        "" => None,
        nodes => Some(super::resources::cpuset(nodes, "nodes").map_err(|_| {
            SpecError::invalid(
                FIELD,
                format!("invalid list of nodes {nodes:?} (example: 0-1)"),
            )
        })?),
    };
    check_memory_policy(mode, nodes.as_deref(), &flags)
        .map_err(|cause| SpecError::invalid(FIELD, cause))?;
    let mut policy = LinuxMemoryPolicy::default();
    policy.set_mode(mode);
    policy.set_nodes(nodes);
    policy.set_flags(Some(flags).filter(|list| !list.is_empty()));
    linux(spec).set_memory_policy(Some(policy));
    Ok(())
}

/// What set_mempolicy(2) would refuse once the container starts.
fn check_memory_policy(
    mode: MemoryPolicyModeType,
    nodes: Option<&str>,
    flags: &[MemoryPolicyFlagType],
) -> Result<(), String> {
    use MemoryPolicyFlagType::{MpolFNumaBalancing, MpolFRelativeNodes, MpolFStaticNodes};
    use MemoryPolicyModeType::{MpolBind, MpolDefault, MpolLocal, MpolPreferred};
    let bare = matches!(mode, MpolDefault | MpolLocal);
    if bare && (nodes.is_some() || !flags.is_empty()) {
        return Err(format!("{mode} takes neither nodes nor flags"));
    }
    if nodes.is_none() && !bare && (mode != MpolPreferred || !flags.is_empty()) {
        return Err(format!("{mode} needs nodes"));
    }
    if flags.contains(&MpolFStaticNodes) && flags.contains(&MpolFRelativeNodes) {
        return Err("nodes are static or relative, not both".to_owned());
    }
    if flags.contains(&MpolFNumaBalancing) && mode != MpolBind {
        return Err("MPOL_F_NUMA_BALANCING requires MPOL_BIND".to_owned());
    }
    Ok(())
}

/// `remove` first, then each value that is present; an empty message does nothing (NRI-515).
pub fn rdt(spec: &mut Spec, asked: &nri::LinuxRdt, host: &HostFacts) -> Result<(), SpecError> {
    let linux = linux(spec);
    if asked.remove {
        linux.set_intel_rdt(None);
    }
    let given = [
        (asked.clos_id.is_some(), "clos_id"),
        (asked.schemata.is_some(), "schemata"),
        (asked.enable_monitoring.is_some(), "enable_monitoring"),
    ];
    let Some((_, first)) = given.into_iter().find(|(given, _)| *given) else {
        return Ok(());
    };
    let class = asked.clos_id.as_ref().map_or("", |c| &c.value);
    check_rdt(class, host, &format!("adjust.linux.rdt.{first}"))?;
    let mut rdt: LinuxIntelRdt = linux.intel_rdt().clone().unwrap_or_default();
    if let Some(class) = &asked.clos_id {
        rdt.set_clos_id(Some(class.value.clone()).filter(|c| !c.is_empty()));
    }
    if let Some(schemata) = &asked.schemata {
        rdt.set_schemata(Some(schemata.value.clone()));
    }
    if let Some(monitoring) = &asked.enable_monitoring {
        rdt.set_enable_monitoring(Some(monitoring.value));
    }
    linux.set_intel_rdt(Some(rdt));
    Ok(())
}

/// A class is one directory of resctrl, which must be there.
pub fn check_rdt(class: &str, host: &HostFacts, field: &str) -> Result<(), SpecError> {
    if class == "."
        || class == ".."
        || (class.len() > 1 && class.contains('/'))
        || class.contains('\0')
    {
        return Err(SpecError::invalid(
            field,
            format!("invalid class {class:?}"),
        ));
    }
    if !host.resctrl {
        return Err(SpecError::unsupported(
            field,
            "resctrl is not available on this host",
        ));
    }
    Ok(())
}

//! The fields of an adjustment that change the `linux` section of a spec (NRI-700…706). Seccomp,
//! scheduling and memory policy are in `apply_nri_seccomp` and `apply_nri_scheduling`.

use std::{collections::BTreeMap, path::Path};

use oci_spec::runtime::{
    Linux, LinuxDevice, LinuxIntelRdt, LinuxNamespace, LinuxNamespaceType, LinuxNetDevice, Spec,
};
use proto_nri::{self as nri, Field};

use super::{
    base::{clean_path, linux_of, marked, namespace},
    devices::{kind_of, refusal, rule_for},
    error::SpecError,
    facts::{CgroupDriver, HostFacts, HostView},
    sandbox::check_sysctl,
};
use ::nri::owners::removal;

/// The kernel has 12 bits for a major number and 20 for a minor one.
const MAJOR_MAX: i64 = 0xfff;
const MINOR_MAX: i64 = 0xf_ffff;

/// Replaces or removes the device at each entry's path, together with its rule. A new device gets a
/// rule `rwm`; a fifo gets none (NRI-704).
pub(super) fn devices(spec: &mut Spec, asked: &[nri::LinuxDevice]) -> Result<(), SpecError> {
    for entry in asked {
        let (path, remove) = marked(&entry.path);
        let subject = (Field::Devices, path);
        let wrong = |cause: String| Err(SpecError::invalid(subject, cause));
        if !path.starts_with('/') || path.contains('\0') {
            return wrong("must be absolute".to_owned());
        }
        let path = clean_path(path);
        if remove {
            take_device(linux_of(spec), &path);
            continue;
        }
        let letter = entry.r#type.as_str();
        let kind = match letter.len() {
            1 => letter.chars().next().and_then(kind_of),
            _ => None,
        };
        let Some(kind) = kind else {
            return wrong(format!("the device type {letter:?} must be b, c, u or p"));
        };
        let known =
            (0..=MAJOR_MAX).contains(&entry.major) && (0..=MINOR_MAX).contains(&entry.minor);
        if !known {
            return wrong(format!(
                "{}:{} is not a device number (0:0 to {MAJOR_MAX}:{MINOR_MAX})",
                entry.major, entry.minor
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
        let linux = linux_of(spec);
        if let Some(cause) = refusal(&device) {
            return Err(SpecError::unsupported(subject, cause));
        }
        put_device(linux, device, "rwm");
    }
    Ok(())
}

/// Adds a device with a rule of this access, replacing another device at its path.
pub(super) fn put_device(linux: &mut Linux, device: LinuxDevice, access: &str) {
    take_device(linux, &device.path().to_string_lossy());
    if let Some(rule) = rule_for(&device, access) {
        let resources = linux.resources_mut().get_or_insert_default();
        resources.devices_mut().get_or_insert_default().push(rule);
    }
    linux.devices_mut().get_or_insert_default().push(device);
}

/// Removes the device at `path` and the last exact rule that allows it: an earlier rule with the
/// same numbers belongs to the defaults.
fn take_device(linux: &mut Linux, path: &str) {
    let Some(devices) = linux.devices_mut() else {
        return;
    };
    let same = |d: &LinuxDevice| clean_path(&d.path().to_string_lossy()) == path;
    let Some(place) = devices.iter().position(same) else {
        return;
    };
    let removed = devices.remove(place);
    let rules = linux
        .resources_mut()
        .as_mut()
        .and_then(|r| r.devices_mut().as_mut());
    if let Some(rules) = rules {
        let exact = rules.iter().rposition(|r| {
            r.allow()
                && r.typ() == Some(removed.typ())
                && r.major() == Some(removed.major())
                && r.minor() == Some(removed.minor())
        });
        if let Some(place) = exact {
            rules.remove(place);
        }
    }
}

/// Replaces the cgroup path, which must not leave the hierarchy.
pub(super) fn cgroups_path(
    spec: &mut Spec,
    asked: &str,
    driver: CgroupDriver,
) -> Result<(), SpecError> {
    if asked.is_empty() {
        return Ok(());
    }
    let sane = match driver {
        CgroupDriver::Cgroupfs => asked.starts_with('/'),
        CgroupDriver::Systemd => asked.split(':').count() == 3 && !asked.contains('/'),
    };
    if !sane || asked.split('/').any(|p| p == "..") || asked.contains('\0') {
        return Err(SpecError::invalid(
            Field::CgroupsPath,
            match driver {
                CgroupDriver::Cgroupfs => format!("{asked:?} must be absolute"),
                CgroupDriver::Systemd => format!("{asked:?} must be of the form slice:prefix:name"),
            },
        ));
    }
    linux_of(spec).set_cgroups_path(Some(asked.into()));
    Ok(())
}

/// Removes a marked type; adds any other type, or replaces its path.
pub(super) fn namespaces(
    spec: &mut Spec,
    asked: &[nri::LinuxNamespace],
    view: &dyn HostView,
) -> Result<(), SpecError> {
    for entry in asked {
        let (name, remove) = marked(&entry.r#type);
        let field = (Field::Namespace, name);
        let kind = LinuxNamespaceType::try_from(name)
            .map_err(|_| SpecError::invalid(field, "unknown type of namespace"))?;
        if !(entry.path.is_empty() || entry.path.starts_with('/')) || entry.path.contains('\0') {
            return Err(SpecError::invalid(
                field,
                format!("{:?} must be absolute", entry.path),
            ));
        }
        let path = Some(Path::new(&entry.path)).filter(|p| !p.as_os_str().is_empty());
        let linux = linux_of(spec);
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
        if let (Some(path), false) = (path, remove) {
            check_namespace(kind, path, view).map_err(|cause| SpecError::invalid(field, cause))?;
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

/// Checks that the path is a namespace of this type.
fn check_namespace(
    kind: LinuxNamespaceType,
    path: &Path,
    view: &dyn HostView,
) -> Result<(), String> {
    let wanted = match kind {
        LinuxNamespaceType::Network => "net",
        LinuxNamespaceType::Mount => "mnt",
        LinuxNamespaceType::Ipc => "ipc",
        LinuxNamespaceType::Uts => "uts",
        LinuxNamespaceType::Pid => "pid",
        LinuxNamespaceType::User => "user",
        LinuxNamespaceType::Cgroup => "cgroup",
        LinuxNamespaceType::Time => "time",
    };
    match view.namespace(&path.to_string_lossy()) {
        None => Err(format!("{path:?} is not a namespace")),
        Some(found) if !found.is_empty() && found != wanted => {
            Err(format!("{path:?} is a namespace of another type, {found}"))
        }
        Some(_) => Ok(()),
    }
}

pub(super) fn has_namespace(spec: &Spec, kind: LinuxNamespaceType) -> bool {
    let linux = spec.linux().as_ref();
    linux
        .and_then(|l| l.namespaces().as_ref())
        .is_some_and(|list| list.iter().any(|n| n.typ() == kind))
}

/// Whether the container already joins the namespace at `path`.
fn is_joined(linux: &Linux, kind: LinuxNamespaceType, path: Option<&Path>) -> bool {
    let mut list = linux.namespaces().iter().flatten();
    path.is_some() && list.any(|n| n.typ() == kind && n.path().as_deref() == path)
}

/// Whether the container's namespace of this type is new or its pod's. One that a plugin joins by a
/// path may be the node's or another pod's.
fn is_own(spec: &Spec, kind: LinuxNamespaceType, of_pod: &[LinuxNamespace]) -> bool {
    let linux = spec.linux().as_ref();
    let mut all = linux
        .and_then(|l| l.namespaces().as_ref())
        .into_iter()
        .flatten();
    let found = all.find(|n| n.typ() == kind);
    found.is_some_and(|n| n.path().is_none() || of_pod.contains(n))
}

/// Applies all removals, then all values (NRI-702). The sysctl's namespace must be new, or one of
/// `of_pod`, which the container had before plugins changed it.
pub(super) fn sysctl(
    spec: &mut Spec,
    asked: &BTreeMap<String, String>,
    of_pod: &[LinuxNamespace],
) -> Result<(), SpecError> {
    if asked.is_empty() {
        return Ok(());
    }
    let foreign_network = !is_own(spec, LinuxNamespaceType::Network, of_pod);
    let foreign_ipc = !is_own(spec, LinuxNamespaceType::Ipc, of_pod);
    let all = linux_of(spec).sysctl_mut().get_or_insert_default();
    for key in asked.keys().filter_map(|key| removal(key)) {
        all.remove(key);
    }
    for (key, value) in asked.iter().filter(|(key, _)| removal(key).is_none()) {
        check_sysctl(key, value, foreign_network, foreign_ipc)
            .map_err(|cause| SpecError::invalid((Field::Sysctl, &**key), cause))?;
        all.insert(key.clone(), value.clone());
    }
    Ok(())
}

/// Moves host interfaces into the container's network; removals come first.
pub(super) fn net_devices(
    spec: &mut Spec,
    asked: &BTreeMap<String, nri::LinuxNetDevice>,
) -> Result<(), SpecError> {
    if asked.is_empty() {
        return Ok(());
    }
    let own_network = has_namespace(spec, LinuxNamespaceType::Network);
    let all = linux_of(spec).net_devices_mut().get_or_insert_default();
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
            let cause = format!("invalid interface name: {host:?} as {:?}", device.name);
            return Err(SpecError::invalid((Field::LinuxNetDevices, &**host), cause));
        }
        if !own_network {
            let cause = format!("{host:?} cannot move: the container is on the host's network");
            return Err(SpecError::invalid((Field::LinuxNetDevices, &**host), cause));
        }
        let mut oci = LinuxNetDevice::default();
        oci.set_name(Some(device.name.clone()).filter(|n| !n.is_empty()));
        all.insert(host.clone(), oci);
    }
    Ok(())
}

/// Applies `remove`, then each value that is present. An empty message changes nothing (NRI-515).
pub(super) fn rdt(
    spec: &mut Spec,
    asked: &nri::LinuxRdt,
    host: &HostFacts,
) -> Result<(), SpecError> {
    let linux = linux_of(spec);
    if asked.remove {
        linux.set_intel_rdt(None);
    }
    let given = [
        (asked.clos_id.is_some(), Field::RdtClosId),
        (asked.schemata.is_some(), Field::RdtSchemata),
        (
            asked.enable_monitoring.is_some(),
            Field::RdtEnableMonitoring,
        ),
    ];
    let Some((_, first)) = given.into_iter().find(|(given, _)| *given) else {
        return Ok(());
    };
    let class = asked.clos_id.as_ref().map_or("", |c| &c.value);
    check_rdt(class, host).map_err(|error| error.about(first))?;
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

/// Checks that the class can name a directory of resctrl, and that the host has resctrl.
pub(super) fn check_rdt(class: &str, host: &HostFacts) -> Result<(), SpecError> {
    if class == "."
        || class == ".."
        || (class.len() > 1 && class.contains('/'))
        || class.contains('\0')
    {
        return Err(SpecError::invalid(
            Field::RdtClass,
            format!("invalid class {class:?}"),
        ));
    }
    if !host.resctrl {
        return Err(SpecError::unsupported(
            Field::RdtClass,
            "resctrl is not available on this host",
        ));
    }
    Ok(())
}

//! Device nodes and the rules of the device cgroup (CRI-218, CRI-226).

use std::path::{Path, PathBuf};

use oci_spec::runtime::{LinuxDevice, LinuxDeviceCgroup, LinuxDeviceType, Spec};
use proto_cri::v1::Device;

use super::{
    base::clean_path,
    error::SpecError,
    facts::{HostDevice, HostView},
    mounts::{OF_THE_KERNEL, below},
};

const DIRECTORY: &str = "/dev";

/// Rules of the nodes that every container has: null, zero, full, random, urandom, tty, ptmx,
/// pts/*. The create helper makes the nodes. A container's console is its own pts (136); 5:1 would
/// be the node's.
const ALWAYS: &[(i64, Option<i64>)] = &[
    (1, Some(3)),
    (1, Some(5)),
    (1, Some(7)),
    (1, Some(8)),
    (1, Some(9)),
    (5, Some(0)),
    (5, Some(2)),
    (136, None),
];

/// Devices of a container with their rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    pub nodes: Vec<LinuxDevice>,
    pub rules: Vec<LinuxDeviceCgroup>,
}

/// A rule; `None` as a number means all.
pub fn rule(
    allow: bool,
    kind: Option<LinuxDeviceType>,
    major: Option<i64>,
    minor: Option<i64>,
    access: &str,
) -> LinuxDeviceCgroup {
    let mut rule = LinuxDeviceCgroup::default();
    rule.set_allow(allow);
    rule.set_typ(kind);
    rule.set_major(major);
    rule.set_minor(minor);
    rule.set_access(Some(access.to_owned()));
    rule
}

/// The rule that allows a node; a fifo needs none (NRI-704). It always allows making the node: the
/// create helper makes it in the container's cgroup, and another node gives the container no more.
pub fn rule_for(node: &LinuxDevice, access: &str) -> Option<LinuxDeviceCgroup> {
    let (kind, major, minor) = (node.typ(), node.major(), node.minor());
    let access = format!("{}m", access.replace('m', ""));
    (kind != LinuxDeviceType::P).then(|| rule(true, Some(kind), Some(major), Some(minor), &access))
}

/// Denies all devices, then allows those that every container has.
pub fn default_rules() -> Vec<LinuxDeviceCgroup> {
    let mut rules = vec![rule(false, None, None, None, "rwm")];
    rules.extend(
        ALWAYS.iter().map(|(major, minor)| {
            rule(true, Some(LinuxDeviceType::C), Some(*major), *minor, "rwm")
        }),
    );
    rules
}

/// The requested devices of a container; `all` adds every device of the host. `owner` replaces the
/// host's owner of each requested node (CRI-226).
pub fn build(
    asked: &[Device],
    all: bool,
    of_host: &[HostDevice],
    owner: Option<(u32, u32)>,
    view: &dyn HostView,
) -> Result<Devices, SpecError> {
    let mut devices = Devices::default();
    if all {
        devices.rules.push(rule(true, None, None, None, "rwm"));
        // The container has its own console and ptmx.
        let own = |d: &&HostDevice| {
            ["/dev/console", "/dev/ptmx"]
                .iter()
                .any(|own| d.path == Path::new(own))
        };
        for device in of_host.iter().filter(|d| !own(d)) {
            devices.nodes.push(node(device, device.path.clone(), None)?);
        }
    } else {
        devices.rules = default_rules();
    }
    for device in asked {
        add(&mut devices, device, owner, view)?;
    }
    Ok(devices)
}

fn add(
    devices: &mut Devices,
    asked: &Device,
    owner: Option<(u32, u32)>,
    view: &dyn HostView,
) -> Result<(), SpecError> {
    let access = permissions(&asked.permissions)?;
    let container_path = if asked.container_path.is_empty() {
        &asked.host_path
    } else {
        &asked.container_path
    };
    if !container_path.starts_with('/') {
        return Err(SpecError::invalid(
            "devices",
            format!("container path {container_path:?} must be absolute"),
        ));
    }
    let found = view.devices(&asked.host_path);
    if found.is_empty() {
        return Err(SpecError::not_found(
            "devices",
            format!("{:?} is not a device on this host", asked.host_path),
        ));
    }
    let directory = directory(&found, &asked.host_path, view);
    for device in &found {
        // A node below a directory keeps its relative path.
        let mut path = PathBuf::from(clean_path(container_path));
        if let Some(rest) = directory
            .as_ref()
            .and_then(|d| device.path.strip_prefix(d).ok())
        {
            path.push(rest);
        }
        let node = node(device, path, owner)?;
        devices.rules.extend(rule_for(&node, access));
        devices.nodes.retain(|n| n.path() != node.path());
        devices.nodes.push(node);
    }
    Ok(())
}

/// The directory that contains all found nodes; `None` if the path is itself a node.
fn directory(found: &[HostDevice], host_path: &str, view: &dyn HostView) -> Option<PathBuf> {
    let below = |base: &Path| {
        found
            .iter()
            .all(|d| d.path != base && d.path.starts_with(base))
    };
    let asked = PathBuf::from(host_path);
    if below(&asked) {
        return Some(asked);
    }
    view.bind_source(host_path)
        .filter(|s| s.is_dir && below(&s.resolved))
        .map(|s| s.resolved)
}

fn permissions(text: &str) -> Result<&str, SpecError> {
    if text.is_empty() {
        return Ok("rwm");
    }
    if text.chars().all(|c| "rwm".contains(c)) {
        return Ok(text);
    }
    Err(SpecError::invalid(
        "devices",
        format!("invalid permissions {text:?} (must be of \"rwm\")"),
    ))
}

fn node(
    device: &HostDevice,
    path: PathBuf,
    owner: Option<(u32, u32)>,
) -> Result<LinuxDevice, SpecError> {
    let (uid, gid) = owner.unwrap_or((device.uid, device.gid));
    let mut node = LinuxDevice::default();
    node.set_typ(kind_of(device.kind).ok_or_else(|| {
        SpecError::invalid("devices", format!("unknown device type {:?}", device.kind))
    })?);
    node.set_path(path);
    node.set_major(device.major);
    node.set_minor(device.minor);
    node.set_file_mode(Some(device.mode & 0o7777));
    node.set_uid(Some(uid));
    node.set_gid(Some(gid));
    Ok(node)
}

/// Refuses nodes that the create helper cannot make.
pub fn check_nodes(spec: &Spec) -> Result<(), SpecError> {
    let Some(linux) = spec.linux() else {
        return Ok(());
    };
    for device in linux.devices().iter().flatten() {
        if let Some(cause) = refusal(device) {
            let cause = format!("node {}: {cause}", device.path().display());
            return Err(SpecError::unsupported("devices", cause));
        }
    }
    Ok(())
}

/// The reason why this node cannot be made.
pub(super) fn refusal(device: &LinuxDevice) -> Option<&'static str> {
    let path = device.path().to_string_lossy();
    let is_file = path.starts_with('/') && !path.ends_with('/') && path != DIRECTORY;
    if !is_file || path.split('/').any(|part| part == "..") {
        return Some("the path must be absolute, without \"..\", and not /dev itself");
    }
    let is_kernels = |path: &str| {
        let mut of = OF_THE_KERNEL.iter().filter(|of| **of != DIRECTORY);
        of.any(|of| below(path, of).is_some())
    };
    if is_kernels(&path) {
        return Some("no node can be made in /proc or /sys");
    }
    None
}

/// The type of a device by its letter: `b`, `c` (or `u`), `p`.
pub fn kind_of(kind: char) -> Option<LinuxDeviceType> {
    match kind {
        'b' => Some(LinuxDeviceType::B),
        'c' | 'u' => Some(LinuxDeviceType::C),
        'p' => Some(LinuxDeviceType::P),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::facts::{BindSource, Propagation};

    struct View(Vec<HostDevice>);

    impl HostView for View {
        fn bind_source(&self, host_path: &str) -> Option<BindSource> {
            (host_path == "/dev/dirlink").then(|| BindSource {
                resolved: "/dev/snd".into(),
                is_dir: true,
                propagation: Propagation::Private,
                is_procfs: false,
            })
        }

        fn devices(&self, host_path: &str) -> Vec<HostDevice> {
            let host_path = host_path.replace("dirlink", "snd");
            let matches =
                |d: &&HostDevice| d.path.starts_with(&host_path) || host_path == "/dev/link";
            self.0.iter().filter(matches).cloned().collect()
        }
    }

    fn device(path: &str, kind: char, minor: i64) -> HostDevice {
        HostDevice {
            path: path.into(),
            kind,
            major: 10,
            minor,
            mode: 0o100_660,
            uid: 0,
            gid: 44,
        }
    }

    fn ask(host: &str, container: &str, permissions: &str) -> Device {
        Device {
            host_path: host.to_owned(),
            container_path: container.to_owned(),
            permissions: permissions.to_owned(),
        }
    }

    #[test]
    fn everything_is_denied_but_the_usual_nodes() {
        let devices = build(&[], false, &[], None, &View(vec![])).expect("valid");
        assert_eq!(devices.nodes, []);
        assert_eq!(devices.rules.len(), 1 + ALWAYS.len());
        assert_eq!(devices.rules[0].to_string(), "a *:* rwm");
        assert!(!devices.rules[0].allow());
        assert!(devices.rules[1..].iter().all(LinuxDeviceCgroup::allow));
    }

    #[test]
    fn a_device_gets_a_node_with_the_hosts_mode_and_a_rule() {
        let view = View(vec![device("/dev/fuse", 'c', 229)]);
        let devices =
            build(&[ask("/dev/fuse", "/dev/x", "rw")], false, &[], None, &view).expect("valid");
        let node = &devices.nodes[0];
        assert_eq!(node.path(), &PathBuf::from("/dev/x"));
        assert_eq!((node.file_mode(), node.gid()), (Some(0o660), Some(44)));
        assert_eq!(
            devices.rules.last().expect("a rule").to_string(),
            "c 10:229 rwm"
        );
    }

    #[test]
    fn a_symlink_to_a_node_takes_the_container_path() {
        let view = View(vec![device("/dev/real", 'c', 1)]);
        let devices =
            build(&[ask("/dev/link", "/dev/x", "r")], false, &[], None, &view).expect("valid");
        assert_eq!(devices.nodes[0].path(), &PathBuf::from("/dev/x"));
    }

    #[test]
    fn a_directory_stands_for_the_nodes_below_it() {
        let view = View(vec![
            device("/dev/snd/a", 'c', 1),
            device("/dev/snd/by/b", 'b', 2),
        ]);
        let devices =
            build(&[ask("/dev/snd", "/dev/s", "rwm")], false, &[], None, &view).expect("valid");
        let paths: Vec<_> = devices.nodes.iter().map(|n| n.path().clone()).collect();
        assert_eq!(
            paths,
            [PathBuf::from("/dev/s/a"), PathBuf::from("/dev/s/by/b")]
        );
    }

    #[test]
    fn a_link_to_a_directory_stands_for_the_nodes_below_it_too() {
        let view = View(vec![device("/dev/snd/a", 'c', 1)]);
        let asked = ask("/dev/dirlink", "/dev/s", "rwm");
        let devices = build(&[asked], false, &[], None, &view).expect("valid");
        assert_eq!(devices.nodes[0].path(), &PathBuf::from("/dev/s/a"));
    }

    #[test]
    fn a_fifo_has_a_node_and_no_rule() {
        let view = View(vec![device("/dev/fifo", 'p', 0)]);
        let devices =
            build(&[ask("/dev/fifo", "", "rwm")], false, &[], None, &view).expect("valid");
        assert_eq!(devices.nodes.len(), 1);
        assert_eq!(devices.rules.len(), default_rules().len());
    }

    #[test]
    fn the_policy_can_give_nodes_to_the_containers_user() {
        let view = View(vec![device("/dev/fuse", 'c', 229)]);
        let devices =
            build(&[ask("/dev/fuse", "", "")], false, &[], Some((7, 8)), &view).expect("valid");
        assert_eq!(
            (devices.nodes[0].uid(), devices.nodes[0].gid()),
            (Some(7), Some(8))
        );
    }

    #[test]
    fn a_privileged_container_has_all_devices_and_one_rule() {
        let devices = build(
            &[],
            true,
            &[device("/dev/sda", 'b', 0)],
            None,
            &View(vec![]),
        )
        .expect("valid");
        assert_eq!(devices.nodes.len(), 1);
        assert_eq!(devices.rules.len(), 1);
        assert!(devices.rules[0].allow());
    }

    #[test]
    fn what_is_no_device_or_no_permission_is_refused() {
        let view = View(vec![device("/dev/fuse", 'c', 229)]);
        for bad in [
            ask("/dev/none", "/dev/x", "rw"),
            ask("/dev/fuse", "/dev/x", "rwx"),
            ask("/dev/fuse", "x", "rw"),
        ] {
            assert!(build(&[bad], false, &[], None, &view).is_err());
        }
    }
}

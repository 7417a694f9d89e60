//! The container's `/dev`: its mount, device nodes and links.
//!
//! Pure. `place.rs` makes it as a detached tree before the container's root is in reach, so nothing
//! is made by a path that others may change.

use std::path::{Path, PathBuf};

use cairn_monitor::DEFAULT_DEVICES;
use oci_spec::runtime::{
    LinuxDevice, LinuxDeviceType, LinuxIdMapping, LinuxNamespaceType as Ns, Mount, Spec,
};

use crate::mount_option::{access_time, attribute, options, propagation};
use crate::strip::has_namespace;

pub(crate) const DEVICES: &str = "/dev";

/// A tmpfs with nodes and [`LINKS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DevTree {
    /// MOUNT_ATTR_* bits, except the next.
    pub(crate) attributes: u64,
    /// Set once the mounts below have their places.
    pub(crate) read_only: bool,
    /// Options of the file system: a name, and its value if it has one.
    pub(crate) options: Vec<(String, Option<String>)>,
    /// Their paths are relative.
    pub(crate) nodes: Vec<Node>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) at: PathBuf,
    pub(crate) kind: LinuxDeviceType,
    pub(crate) numbers: (u32, u32),
    pub(crate) mode: u32,
    /// Ids of the host.
    pub(crate) owner: (u32, u32),
    pub(crate) label: Option<String>,
}

/// Links of every `/dev`: name and target. A node of the same name takes its place.
pub(crate) const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// A link to a file that some kernels lack.
pub(crate) const CORE: (&str, &str) = ("kcore", "/proc/kcore");

/// The mount that becomes a [`DevTree`], and whether another mount is on `/dev`: that has its own
/// nodes, and nothing is made in it.
pub(crate) fn find(mounts: &[Mount]) -> (Option<usize>, bool) {
    let mut at = mounts.iter().enumerate().rev();
    match at.find(|(_, mount)| mount.destination() == Path::new(DEVICES)) {
        Some((number, mount)) if mount.typ().as_deref() == Some("tmpfs") => (Some(number), false),
        Some(_) => (None, true),
        None => (None, false),
    }
}

/// The mount of a spec that has none.
pub(crate) fn default_mount() -> Mount {
    let mut mount = Mount::default();
    mount.set_destination(DEVICES.into());
    mount.set_typ(Some("tmpfs".to_owned()));
    let words = ["nosuid", "strictatime", "mode=755", "size=65536k"];
    mount.set_options(Some(words.map(str::to_owned).to_vec()));
    mount
}

pub(crate) fn tree(
    spec: &Spec,
    mount: &Mount,
    mounts: &[Mount],
    label: Option<&str>,
) -> Result<DevTree, String> {
    let mut tree = DevTree {
        attributes: 0,
        read_only: false,
        options: Vec::new(),
        nodes: Vec::new(),
    };
    for word in options(mount) {
        // Recursive forms mean the same for one mount.
        let plain = word.strip_prefix('r').and_then(attribute);
        match attribute(word).or(plain) {
            Some(libc::MOUNT_ATTR_RDONLY) => tree.read_only = true,
            Some(bit) => tree.attributes |= bit | access_time(word),
            None if propagation(word).is_some() => {}
            None => tree.options.push(match word.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (word.clone(), None),
            }),
        }
    }
    let given = |name: &str, tree: &DevTree| tree.options.iter().any(|(n, _)| n == name);
    if let Some(label) = label.filter(|_| !given("context", &tree)) {
        let context = ("context".to_owned(), Some(label.to_owned()));
        tree.options.push(context);
    }
    // The host's root makes it, for the container's.
    let (uid, gid) = owner(spec, None, None);
    for (name, id) in [("uid", uid), ("gid", gid)] {
        match tree.options.iter_mut().find(|(n, _)| n == name) {
            Some((_, value)) => {
                let of_container = value.as_deref().and_then(|v| v.parse().ok());
                let (uid, gid) = owner(spec, of_container, of_container);
                *value = Some(if name == "uid" { uid } else { gid }.to_string());
            }
            None => tree.options.push((name.to_owned(), Some(id.to_string()))),
        }
    }
    for device in own(spec, mounts) {
        let path = device.path();
        let at = path.strip_prefix(DEVICES).map_err(|e| e.to_string())?;
        tree.nodes.push(node(spec, &device, at.to_owned(), None)?);
    }
    Ok(tree)
}

/// Requested nodes outside of `/dev`, or in another mount below it: each is made on the stage, and
/// bound. A mount on `/dev` (`bound`) has its own nodes.
pub(crate) fn apart(spec: &Spec, mounts: &[Mount], bound: bool) -> Vec<LinuxDevice> {
    let mut apart = requested(spec);
    apart.retain(|device| {
        let below = device.path().starts_with(DEVICES);
        !below || (!bound && is_within(device, mounts))
    });
    apart
}

/// The nodes in the tree: the requested ones, and the default ones that are not requested.
fn own(spec: &Spec, mounts: &[Mount]) -> Vec<LinuxDevice> {
    let requested = requested(spec);
    let default = DEFAULT_DEVICES.iter().map(|(path, numbers)| {
        let mut device = LinuxDevice::default();
        device.set_path((*path).into());
        device.set_typ(LinuxDeviceType::C);
        device.set_major(numbers.0);
        device.set_minor(numbers.1);
        device
    });
    let default = default.filter(|d| requested.iter().all(|r| r.path() != d.path()));
    let below = requested
        .iter()
        .filter(|d| d.path().starts_with(DEVICES) && !is_within(d, mounts));
    below.cloned().chain(default).collect()
}

fn requested(spec: &Spec) -> Vec<LinuxDevice> {
    let linux = spec.linux().as_ref();
    linux.and_then(|l| l.devices().clone()).unwrap_or_default()
}

/// Whether its path is in a mount below `/dev`.
fn is_within(device: &LinuxDevice, mounts: &[Mount]) -> bool {
    mounts.iter().any(|mount| {
        let at = mount.destination();
        at != Path::new(DEVICES) && device.path().starts_with(at)
    })
}

pub(crate) fn node(
    spec: &Spec,
    device: &LinuxDevice,
    at: PathBuf,
    label: Option<&str>,
) -> Result<Node, String> {
    let number = |n: i64| {
        let path = device.path().display();
        u32::try_from(n).map_err(|e| format!("device node {path}: number {n}: {e}"))
    };
    Ok(Node {
        at,
        kind: device.typ(),
        numbers: (number(device.major())?, number(device.minor())?),
        mode: device.file_mode().unwrap_or(0o666) & 0o7777,
        owner: owner(spec, device.uid(), device.gid()),
        label: label.map(str::to_owned),
    })
}

/// The ids on the host of a user and a group of the container, by default of its root.
pub(crate) fn owner(spec: &Spec, uid: Option<u32>, gid: Option<u32>) -> (u32, u32) {
    let mapped = has_namespace(spec, Ns::User);
    let linux = spec.linux().as_ref().filter(|_| mapped);
    let id = |id: Option<u32>, maps: Option<&Option<Vec<LinuxIdMapping>>>| {
        let id = id.unwrap_or(0);
        maps.and_then(Option::as_ref)
            .map_or(id, |maps| on_host(id, maps))
    };
    (
        id(uid, linux.map(|l| l.uid_mappings())),
        id(gid, linux.map(|l| l.gid_mappings())),
    )
}

/// The host's id of a container's id; an id without one belongs to the host's root.
fn on_host(id: u32, maps: &[LinuxIdMapping]) -> u32 {
    let mut found = maps.iter().filter_map(|map| {
        let offset = id.checked_sub(map.container_id())?;
        (offset < map.size()).then(|| map.host_id().checked_add(offset))?
    });
    found.next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(mapped: bool) -> Spec {
        let devices = ["/dev/null", "/dev/x", "/dev/shm/x", "/opt/x"]
            .map(|path| json!({"path": path, "type": "c", "major": 1, "minor": 3, "uid": 7}));
        let spec = json!({
            "ociVersion": "1.2.0",
            "linux": {
                "namespaces": if mapped { json!([{"type": "user"}]) } else { json!([]) },
                "uidMappings": [{"containerID": 0, "hostID": 100_000, "size": 10}],
                "gidMappings": [{"containerID": 0, "hostID": 200_000, "size": 10}],
                "devices": devices,
            },
        });
        serde_json::from_value(spec).expect("a spec")
    }

    fn mounts(kind: &str, options: &[&str]) -> Vec<Mount> {
        let mounts = json!([
            {"destination": "/dev", "type": kind, "source": "/x", "options": options},
            {"destination": "/dev/shm", "type": "bind", "source": "/shm"},
        ]);
        serde_json::from_value(mounts).expect("mounts")
    }

    /// The nodes of `/dev` and the others, with their owners on the host.
    fn nodes(mapped: bool, kind: &str) -> (Vec<(String, u32)>, Vec<String>) {
        let (spec, mounts) = (spec(mapped), mounts(kind, &[]));
        let (own, bound) = find(&mounts);
        let inside = own.map(|own| tree(&spec, &mounts[own], &mounts, None).expect("a tree"));
        let inside = inside.iter().flat_map(|tree| &tree.nodes);
        let inside = inside.map(|node| (node.at.display().to_string(), node.owner.0));
        let apart = apart(&spec, &mounts, bound).into_iter();
        (
            inside.collect(),
            apart.map(|d| d.path().display().to_string()).collect(),
        )
    }

    #[test]
    fn nodes_are_in_the_tree_unless_another_mount_has_their_place() {
        let apart = ["/dev/shm/x".to_owned(), "/opt/x".to_owned()];
        let expect = |requested: u32, default: u32| -> Vec<(String, u32)> {
            let requested = ["null", "x"].map(|name| (name.to_owned(), requested));
            let default =
                ["zero", "full", "tty", "random", "urandom"].map(|name| (name.to_owned(), default));
            requested.into_iter().chain(default).collect()
        };
        assert_eq!(nodes(false, "tmpfs"), (expect(7, 0), apart.to_vec()));
        assert_eq!(
            nodes(true, "tmpfs"),
            (expect(100_007, 100_000), apart.to_vec())
        );
        for mapped in [false, true] {
            assert_eq!(nodes(mapped, "bind"), (Vec::new(), apart[1..].to_vec()));
        }
    }

    #[test]
    fn options_are_attributes_or_belong_to_the_file_system() {
        let words = [
            "nosuid",
            "rnoexec",
            "strictatime",
            "mode=755",
            "ro",
            "rprivate",
            "huge",
            "gid=5",
        ];
        let mounts = mounts("tmpfs", &words);
        let tree = tree(&spec(true), &mounts[0], &mounts, Some("label")).expect("a tree");
        let attributes =
            libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC | libc::MOUNT_ATTR_STRICTATIME;
        assert_eq!((tree.attributes, tree.read_only), (attributes, true));
        let option = |name: &str, value: Option<&str>| (name.to_owned(), value.map(str::to_owned));
        let options = [
            option("mode", Some("755")),
            option("huge", None),
            option("gid", Some("200005")),
            option("context", Some("label")),
            option("uid", Some("100000")),
        ];
        assert_eq!(tree.options, options);
    }

    #[test]
    fn without_a_mount_there_is_a_default_one() {
        assert_eq!(find(&[]), (None, false));
        let mount = default_mount();
        assert_eq!(find(&[mount]), (Some(0), false));
    }
}

//! The mounts of a container: defaults, the pod's files, image volumes and the container's own
//! (CRI-204, CRI-240 to CRI-248). Parents come first.

use std::{collections::BTreeMap, path::PathBuf};

use cairn_monitor::mount_tree::PROC_FILES;
use oci_spec::runtime::Mount;
use proto_cri::v1::{Mount as CriMount, MountPropagation};

use super::{
    base::{clean_path, depth, id_mappings, kernel_mount, mount},
    error::SpecError,
    facts::{HostFacts, HostView, IdMap, Propagation, SandboxFacts},
    namespaces::common_mapping,
};

/// The group that owns terminals in every known distribution.
const TTY_GROUP: u32 = 5;

/// The kernel's own places, where a VOLUME of an image is refused.
pub(super) const OF_THE_KERNEL: [&str; 3] = ["/proc", "/sys", "/dev"];

pub struct MountInputs<'a> {
    pub mounts: &'a [CriMount],
    pub sandbox: &'a SandboxFacts,
    pub host: &'a HostFacts,
    pub view: &'a dyn HostView,
    /// The container's files get labels.
    pub labelled: bool,
    pub privileged: bool,
    pub readonly_rootfs: bool,
    /// Container path of an image's `VOLUME` → the host directory prepared for it (CRI-129).
    pub volumes: &'a BTreeMap<String, PathBuf>,
    /// Container path of an image mount → its prepared read-only tree, subpath included (CRI-245).
    pub image_mounts: &'a BTreeMap<String, PathBuf>,
}

/// The list, and the propagation that it requires of the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounts {
    pub list: Vec<Mount>,
    /// `slave` or `shared` if a mount needs it: the create helper knows the form without `r`.
    pub rootfs_propagation: Option<&'static str>,
    /// Sources that get the container's SELinux label (CRI-244).
    pub relabel: Vec<PathBuf>,
}

/// Builds the list. A mount of the container replaces a default or injected one at its destination;
/// of two of its own at one destination both stay, the later on top.
pub fn build(inputs: &MountInputs<'_>) -> Result<Mounts, SpecError> {
    let mut own = Vec::new();
    let mut propagation = Propagation::Private;
    let mut relabel = Vec::new();
    for cri in inputs.mounts {
        let (mount, needs) = container_mount(cri, inputs)?;
        propagation = propagation.max(needs);
        if cri.selinux_relabel && cri.image.is_none() {
            relabel.extend(mount.source().clone());
        }
        own.push(mount);
    }
    let mut list = default_mounts(inputs);
    list.extend(injected(inputs));
    list.extend(volumes(inputs));
    list.retain(|m| !own.iter().any(|o| o.destination() == m.destination()));
    list.extend(own);
    sort(&mut list);
    Ok(Mounts {
        list,
        rootfs_propagation: match propagation {
            Propagation::Private => None,
            Propagation::Slave => Some("slave"),
            Propagation::Shared => Some("shared"),
        },
        relabel,
    })
}

/// `/proc`, `/dev`, `/dev/pts`, `/dev/mqueue`, `/sys`, `/sys/fs/cgroup` (CRI-240). No `/run`.
fn default_mounts(inputs: &MountInputs<'_>) -> Vec<Mount> {
    let mapping = inputs.sandbox.user_mapping;
    let mut pts = vec![
        "nosuid",
        "noexec",
        "newinstance",
        "ptmxmode=0666",
        "mode=0620",
    ];
    // The user namespace maps the group of terminals.
    if mapping.is_none_or(|m| m.length > TTY_GROUP) {
        pts.push("gid=5");
    }
    // `/sys` and `/sys/fs/cgroup` are writable with privilege (CRI-218).
    let access = if inputs.privileged { "rw" } else { "ro" };
    let dev = ["nosuid", "strictatime", "mode=755", "size=65536k"];
    let plain = ["nosuid", "noexec", "nodev"];
    let cgroup = ["nosuid", "noexec", "nodev", "relatime", access];
    // In a user namespace the sysfs of the host's network can only be bound (CRI-225).
    let sys = if inputs.sandbox.host_network && mapping.is_some() {
        let readonly = if inputs.host.recursive_readonly {
            "rro"
        } else {
            "ro"
        };
        let options = ["rbind", "rprivate", "nosuid", "noexec", "nodev", readonly];
        mount("/sys", "bind", "/sys", &options)
    } else {
        kernel_mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", access])
    };
    vec![
        kernel_mount("/proc", "proc", &plain),
        kernel_mount("/dev", "tmpfs", &dev),
        kernel_mount("/dev/pts", "devpts", &pts),
        kernel_mount("/dev/mqueue", "mqueue", &plain),
        sys,
        kernel_mount("/sys/fs/cgroup", "cgroup", &cgroup),
    ]
}

/// Parents first, otherwise as given.
fn sort(list: &mut [Mount]) {
    list.sort_by_key(|m| depth(&m.destination().to_string_lossy()));
}

/// The pod's files (CRI-204). They follow the root's access; `/dev/shm` is always writable.
fn injected(inputs: &MountInputs<'_>) -> Vec<Mount> {
    let files = &inputs.sandbox.files;
    let access = if inputs.readonly_rootfs { "ro" } else { "rw" };
    let mut list: Vec<Mount> = [
        ("/etc/hostname", &files.hostname),
        ("/etc/hosts", &files.hosts),
        ("/etc/resolv.conf", &files.resolv_conf),
    ]
    .into_iter()
    .filter(|(_, source)| !source.as_os_str().is_empty())
    .map(|(destination, source)| mount(destination, "bind", source, &["rbind", "rprivate", access]))
    .collect();
    if !files.shm.as_os_str().is_empty() {
        list.push(mount(
            "/dev/shm",
            "bind",
            &files.shm,
            &["rbind", "rprivate", "nosuid", "noexec", "nodev", "rw"],
        ));
    }
    list
}

/// Volumes of the image, except the root.
fn volumes(inputs: &MountInputs<'_>) -> Vec<Mount> {
    let mut list = Vec::new();
    for (destination, source) in inputs.volumes {
        let destination = clean_path(destination);
        if destination == "/" {
            continue;
        }
        let mut volume = mount(&destination, "bind", source, &["rbind", "rprivate", "rw"]);
        if let Some(map) = inputs.sandbox.user_mapping {
            set_mapping(&mut volume, map);
        }
        list.push(volume);
    }
    list
}

fn container_mount(
    cri: &CriMount,
    inputs: &MountInputs<'_>,
) -> Result<(Mount, Propagation), SpecError> {
    if !cri.container_path.starts_with('/') {
        return Err(wrong(cri, "container_path must be absolute"));
    }
    let destination = clean_path(&cri.container_path);
    if destination == "/" {
        return Err(wrong(cri, "the root itself cannot be mounted over"));
    }
    let enforcing = inputs.host.selinux.as_ref().filter(|s| s.enforcing);
    if let (true, false, Some(selinux)) = (cri.selinux_relabel, inputs.labelled, enforcing) {
        let why = selinux.contexts.as_ref().err();
        let why = why.map_or("the pod was made without labels", String::as_str);
        return Err(SpecError::unsupported(
            format!("mount {destination}"),
            format!("selinux_relabel: SELinux is enforcing, and no label can be set: {why}"),
        ));
    }
    let (source, propagation, is_procfs) = match &cri.image {
        Some(_) => (image_source(cri, inputs)?, Propagation::Private, false),
        None => host_source(cri, inputs)?,
    };
    check_place(&destination, is_procfs).map_err(|cause| wrong(cri, cause))?;
    let mut options = vec!["rbind"];
    options.push(match propagation {
        Propagation::Private => "rprivate",
        Propagation::Slave => "rslave",
        Propagation::Shared => "rshared",
    });
    options.push(access(cri, inputs.host, propagation)?);
    options.extend(extra_options(cri)?);
    let mut mount = mount(&destination, "bind", source, &options);
    if let Some(map) = mapping(cri, inputs)? {
        set_mapping(&mut mount, map);
    }
    Ok((mount, propagation))
}

fn wrong(cri: &CriMount, cause: impl Into<String>) -> SpecError {
    SpecError::invalid(format!("mount {}", cri.container_path), cause)
}

fn host_source(
    cri: &CriMount,
    inputs: &MountInputs<'_>,
) -> Result<(PathBuf, Propagation, bool), SpecError> {
    if cri.host_path.is_empty() {
        return Err(wrong(cri, "host_path is empty"));
    }
    if !cri.image_sub_path.is_empty() {
        return Err(wrong(cri, "image_sub_path without image"));
    }
    let source = inputs.view.made_source(&cri.host_path).ok_or_else(|| {
        SpecError::not_found(
            format!("mount {}", cri.container_path),
            format!(
                "host path {:?} does not exist and cannot be made",
                cri.host_path
            ),
        )
    })?;
    let asked = MountPropagation::try_from(cri.propagation)
        .map_err(|_| wrong(cri, format!("unknown propagation {}", cri.propagation)))?;
    let propagation = match asked {
        MountPropagation::PropagationPrivate => Propagation::Private,
        MountPropagation::PropagationHostToContainer => Propagation::Slave,
        MountPropagation::PropagationBidirectional => Propagation::Shared,
    };
    check_propagation(propagation, source.propagation)
        .map_err(|cause| wrong(cri, format!("host path {:?} {cause}", cri.host_path)))?;
    Ok((source.resolved, propagation, source.is_procfs))
}

/// Refuses a mount inside or over `/proc`, as runc does: it would replace kernel files, also those
/// that labels and settings are written to. `is_procfs`: the mount is a procfs. Links are checked at
/// the start, where they lead then (`create/src/root.rs`).
pub(super) fn check_place(destination: &str, is_procfs: bool) -> Result<(), String> {
    match below(destination, "/proc") {
        None => Ok(()),
        Some("") if is_procfs => Ok(()),
        Some("") => Err("/proc can only be replaced by a procfs".to_owned()),
        Some(file) if PROC_FILES.contains(&file) => Ok(()),
        Some(_) => {
            Err("inside /proc only the files that lxcfs replaces can be mounted over".to_owned())
        }
    }
}

/// Refuses VOLUMEs of an image at or below the kernel's places. A client may mount there.
pub fn check_volumes(paths: &[String]) -> Result<(), SpecError> {
    for path in paths {
        let is_inside = |of: &&&str| below(path, of).is_some();
        if let Some(of) = OF_THE_KERNEL.iter().find(is_inside) {
            return Err(SpecError::invalid(
                format!("image VOLUME {path:?}"),
                format!("an image cannot have a VOLUME at or below {of}: mount something there"),
            ));
        }
    }
    Ok(())
}

/// The rest of `path` below `base`, empty for `base` itself.
pub(super) fn below<'a>(path: &'a str, base: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(base)?;
    let inside = rest.strip_prefix('/');
    inside.or_else(|| rest.is_empty().then_some(rest))
}

/// Checks that a source with this propagation allows the requested one (CRI-242, NRI-721).
pub(super) fn check_propagation(
    asked: Propagation,
    source: Propagation,
) -> Result<(), &'static str> {
    match (asked, source) {
        (Propagation::Private, _)
        | (_, Propagation::Shared)
        | (Propagation::Slave, Propagation::Slave) => Ok(()),
        (Propagation::Slave, Propagation::Private) => Err("is not on a shared or slave mount"),
        (Propagation::Shared, _) => Err("is not on a shared mount"),
    }
}

fn image_source(cri: &CriMount, inputs: &MountInputs<'_>) -> Result<PathBuf, SpecError> {
    let wrong = |cause: &str| {
        Err(SpecError::ImageVolume {
            destination: cri.container_path.clone(),
            cause: cause.to_owned(),
        })
    };
    if !cri.host_path.is_empty() {
        return wrong("host_path and image are mutually exclusive");
    }
    if !cri.readonly {
        return wrong("an image can only be mounted with readonly");
    }
    if cri.propagation != MountPropagation::PropagationPrivate as i32 {
        return wrong("an image can only be mounted with private propagation");
    }
    match inputs.image_mounts.get(&cri.container_path) {
        Some(path) => Ok(path.clone()),
        None => wrong("the image has not been prepared"),
    }
}

/// `rw`, `ro` (this mount only) or `rro` (also all mounts below it), CRI-243.
fn access(
    cri: &CriMount,
    host: &HostFacts,
    propagation: Propagation,
) -> Result<&'static str, SpecError> {
    if !cri.recursive_read_only {
        return Ok(if cri.readonly { "ro" } else { "rw" });
    }
    if !cri.readonly {
        return Err(wrong(cri, "recursive_read_only needs readonly"));
    }
    if propagation != Propagation::Private {
        return Err(wrong(cri, "recursive_read_only needs private propagation"));
    }
    if !host.recursive_readonly {
        return Err(SpecError::RroUnsupported {
            destination: cri.container_path.clone(),
            cause: "the kernel cannot make a mount recursively read-only".to_owned(),
        });
    }
    Ok("rro")
}

/// Field 11: the options that kubelet may add (CRI-246).
fn extra_options(cri: &CriMount) -> Result<Vec<&'static str>, SpecError> {
    let known = |option: &str| {
        ["nodev", "nosuid", "noexec"]
            .into_iter()
            .find(|k| *k == option)
    };
    cri.mount_options
        .iter()
        .map(|option| {
            known(option).ok_or_else(|| {
                let cause = format!("mount option {option:?} is not one of nodev, nosuid, noexec");
                wrong(cri, cause)
            })
        })
        .collect()
}

/// The mapping of an idmapped mount (CRI-247). The tree of an image has the pod's mapping already.
fn mapping(cri: &CriMount, inputs: &MountInputs<'_>) -> Result<Option<IdMap>, SpecError> {
    if cri.uid_mappings.is_empty() && cri.gid_mappings.is_empty() {
        return Ok(None);
    }
    let field = format!("mount {}", cri.container_path);
    if inputs.sandbox.user_mapping.is_none() {
        return Err(SpecError::invalid(
            field,
            "id mappings require a pod with a user namespace",
        ));
    }
    let map = common_mapping(&cri.uid_mappings, &cri.gid_mappings, &field)?;
    if cri.image.is_some() {
        return if inputs.sandbox.user_mapping == Some(map) {
            Ok(None)
        } else {
            Err(SpecError::unsupported(
                field,
                "an image can only be mounted with the id mappings of the pod",
            ))
        };
    }
    if let Some(why) = &inputs.host.no_user_namespaces {
        return Err(SpecError::unsupported(
            field,
            format!("idmapped mounts are not available on this host: {why}"),
        ));
    }
    Ok(Some(map))
}

fn set_mapping(mount: &mut Mount, map: IdMap) {
    mount.set_uid_mappings(Some(id_mappings(map)));
    mount.set_gid_mappings(Some(id_mappings(map)));
}

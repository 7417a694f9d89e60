//! Changes the container's spec to one that libcontainer 0.7 implements, and plans the rest.
//!
//! Pure. Removed, as missing or wrong in libcontainer: the tail of the process and its scheduling
//! (`init.rs`), cgroups (already joined), mount propagation (set after its mounts), the cgroup
//! mount, a joined PID namespace with its procfs (`proc_view.rs`, `birth.rs`). Bind sources become
//! places on a stage, which `place.rs` fills, with shifted owners if requested: libcontainer does
//! not see the host's file systems. Unsupported parts are rejected by name.

use std::path::{Path, PathBuf};

use cairn_monitor::{DEFAULT_DEVICES, record::CgroupDir};
use oci_spec::runtime::{
    LinuxDeviceType, LinuxIdMapping, LinuxNamespace, LinuxNamespaceType as Ns, Mount,
    ProcessBuilder, Spec, UserBuilder,
};

use crate::{
    cgroup_view::{CgroupView, cgroup_view},
    mount_option::propagation,
    proc_view::{self, ProcView},
};

/// Propagation to set on a mount of the finished container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Propagation {
    pub(crate) destination: PathBuf,
    /// MS_* flags.
    pub(crate) flags: u64,
}

/// A bind whose source is mounted on the stage first; libcontainer binds it from there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Staged {
    pub(crate) at: PathBuf,
    pub(crate) source: PathBuf,
    pub(crate) destination: PathBuf,
    pub(crate) recursive: bool,
    /// Mounts below it propagate to the host.
    pub(crate) shared: bool,
    pub(crate) shifted: Option<Owners>,
}

/// A device node that is made on the stage; libcontainer binds it from there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) at: PathBuf,
    pub(crate) destination: PathBuf,
    pub(crate) kind: LinuxDeviceType,
    pub(crate) numbers: (i64, i64),
    pub(crate) mode: u32,
    /// Ids of the host.
    pub(crate) owner: (u32, u32),
    pub(crate) label: Option<String>,
}

/// The ids that its files appear to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owners {
    pub(crate) uids: Vec<LinuxIdMapping>,
    pub(crate) gids: Vec<LinuxIdMapping>,
}

/// The changed spec, and the steps beside libcontainer.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) spec: Spec,
    pub(crate) rootfs: PathBuf,
    pub(crate) propagation: Vec<Propagation>,
    /// The mount point of message queues, and their SELinux label.
    pub(crate) queues: Option<(PathBuf, String)>,
    pub(crate) stage: Vec<Staged>,
    pub(crate) nodes: Vec<Node>,
    /// A tmpfs is on the bound [`DEVICES`], for init to remove.
    pub(crate) covered: bool,
    pub(crate) cgroup_view: Option<CgroupView>,
    /// The PID namespace to join, and the procfs views of it.
    pub(crate) join: Option<PathBuf>,
    pub(crate) procs: Vec<ProcView>,
    /// Only with `join`: libcontainer's init would look for sysctls at a missing `/proc`.
    pub(crate) sysctls: Vec<(String, String)>,
    /// OCI hooks run beside the container. They find their programs and the container's root by the
    /// host's paths.
    pub(crate) hooks: bool,
}

/// The stage: a tmpfs instead of the hierarchies, where libcgroups expects one.
pub(crate) const STAGE: &str = "/sys/fs/cgroup";
/// The container's root and its directory, on the stage.
pub(crate) const ROOT: &str = "root";
pub(crate) const DIRECTORY: &str = "dir";
/// Where libcontainer makes devices and links.
pub(crate) const DEVICES: &str = "/dev";

pub(crate) fn plan(mut spec: Spec, cgroups: &[CgroupDir]) -> Result<Plan, String> {
    let root = spec
        .root()
        .as_ref()
        .ok_or("the spec has no root")?
        .path()
        .clone();
    if !root.is_absolute() {
        return Err(format!("root {} must be absolute", root.display()));
    }
    let hooks = has_hooks(&spec);
    strip_process(&mut spec)?;
    let label = strip_linux(&mut spec, cgroups)?;
    strip_names(&mut spec);
    let join = take_pid_namespace(&mut spec);
    let mut plan = Plan {
        spec,
        rootfs: root,
        propagation: Vec::new(),
        queues: None,
        stage: Vec::new(),
        nodes: Vec::new(),
        covered: false,
        cgroup_view: None,
        join,
        procs: Vec::new(),
        sysctls: Vec::new(),
        hooks,
    };
    if plan.join.is_some() {
        plan.take_sysctls();
    }
    let mounts = plan.spec.mounts().clone().unwrap_or_default();
    let mut kept = Vec::with_capacity(mounts.len());
    for mount in mounts {
        plan.mount(mount, cgroups, &mut kept)?;
    }
    plan.covered = cover_devices(&mut kept);
    plan.take_nodes(&mut kept, label.as_deref());
    if let Some(label) = label {
        kept.iter_mut().for_each(|mount| set_label(mount, &label));
        // Without an IPC namespace the queues are the host's.
        let own = has_namespace(&plan.spec, Ns::Ipc);
        let queues = |m: &&Mount| own && m.typ().as_deref() == Some("mqueue");
        let queues = kept.iter().find(queues);
        plan.queues = queues.map(|mount| (mount.destination().clone(), label));
    }
    plan.spec.set_mounts(Some(kept));
    if let Some(linux) = plan.spec.linux_mut() {
        proc_view::cover(&mut plan.procs, linux);
    }
    if !hooks {
        let at = Path::new(STAGE).join(ROOT);
        plan.spec.set_root(plan.spec.root().clone().map(|mut root| {
            root.set_path(at);
            root
        }));
    }
    Ok(plan)
}

fn has_hooks(spec: &Spec) -> bool {
    spec.hooks().as_ref().is_some_and(|h| {
        let lists = [h.prestart(), h.create_runtime(), h.create_container()];
        lists
            .iter()
            .any(|l| l.as_ref().is_some_and(|l| !l.is_empty()))
    })
}

/// Covers a bind at `/dev`, such as the host's, by a tmpfs: libcontainer makes its links and devices
/// in the topmost mount there. Returns whether it did. The tmpfs does not propagate to the host: the
/// bind is a slave of the host's mount, since a shared one is refused.
fn cover_devices(mounts: &mut Vec<Mount>) -> bool {
    let bound = |m: &Mount| m.destination() == Path::new(DEVICES) && is_bind(m);
    if !mounts.iter().any(bound) {
        return false;
    }
    let mut cover = Mount::default();
    cover.set_destination(DEVICES.into());
    cover.set_typ(Some("tmpfs".to_owned()));
    cover.set_source(Some("tmpfs".into()));
    let options = ["nosuid", "mode=755", "size=64k"];
    cover.set_options(Some(options.map(str::to_owned).to_vec()));
    mounts.push(cover);
    true
}

fn bind_of(source: &Path, destination: &Path) -> Mount {
    let mut mount = Mount::default();
    mount.set_destination(destination.into());
    mount.set_typ(Some("bind".to_owned()));
    mount.set_source(Some(source.into()));
    mount.set_options(Some(vec!["bind".to_owned()]));
    mount
}

fn is_bind(mount: &Mount) -> bool {
    let words = options(mount);
    mount.typ().as_deref() == Some("bind") || words.iter().any(|o| o == "bind" || o == "rbind")
}

/// Labels the file systems that are made for this container. libcontainer would label every file
/// system except procfs and sysfs; the kernel refuses that for an mqueue, whose root is labelled
/// later.
fn set_label(mount: &mut Mount, label: &str) {
    let labelled = options(mount).iter().any(|o| o.starts_with("context="));
    if matches!(mount.typ().as_deref(), Some("tmpfs" | "devpts")) && !labelled {
        let mut options = options(mount).to_vec();
        options.push(format!("context={label}"));
        mount.set_options(Some(options));
    }
}

fn options(mount: &Mount) -> &[String] {
    mount.options().as_deref().unwrap_or_default()
}

/// Removes the tail's work from the process: libcontainer's init keeps every privilege until then.
fn strip_process(spec: &mut Spec) -> Result<(), String> {
    let process = spec.process().as_ref().ok_or("the spec has no process")?;
    let text = |s: &str| vec![s.to_owned()];
    let user = UserBuilder::default().uid(0u32).gid(0u32).build();
    let builder = ProcessBuilder::default()
        .terminal(process.terminal().unwrap_or(false))
        .user(user.map_err(|e| e.to_string())?)
        // Never executed. HOME keeps libcontainer from asking the container's name services.
        .args(text("cairn"))
        .env(vec!["PATH=/bin".to_owned(), "HOME=/".to_owned()])
        .cwd("/")
        .oom_score_adj(process.oom_score_adj().unwrap_or(0));
    let mut stripped = builder.build().map_err(|e| e.to_string())?;
    stripped.set_capabilities(None);
    stripped.set_no_new_privileges(None);
    stripped.set_rlimits(None);
    spec.set_process(Some(stripped));
    Ok(())
}

/// Returns the mounts' SELinux label.
fn strip_linux(spec: &mut Spec, cgroups: &[CgroupDir]) -> Result<Option<String>, String> {
    let Some(linux) = spec.linux_mut() else {
        return Err("the spec has no linux section".to_owned());
    };
    let label = linux.mount_label().clone().filter(|l| !l.is_empty());
    linux.set_mount_label(None);
    linux.set_seccomp(None);
    linux.set_resources(None);
    linux.set_memory_policy(None);
    // If libcontainer's cgroup code finds a bound hierarchy, it must move init to its present cgroup.
    if let Some(path) = common_path(cgroups) {
        linux.set_cgroups_path(Some(path));
    }
    if linux
        .cgroups_path()
        .as_ref()
        .is_none_or(|p| !p.is_absolute())
    {
        return Err("linux.cgroupsPath must be absolute".to_owned());
    }
    let propagation = match linux.rootfs_propagation().as_deref() {
        Some(p @ ("rshared" | "rslave" | "rprivate" | "runbindable")) => Some(p[1..].to_owned()),
        Some("") | None => None,
        Some(p) => Some(p.to_owned()),
    };
    linux.set_rootfs_propagation(propagation);
    Ok(label)
}

/// The container's path below the mount points of its hierarchies.
fn common_path(cgroups: &[CgroupDir]) -> Option<PathBuf> {
    let v1 = cgroups.iter().find(|c| !c.unified());
    let dir = Path::new(&v1.or(cgroups.first())?.path);
    let mut below = dir.strip_prefix(STAGE).ok()?.components();
    if v1.is_some() {
        below.next()?;
    }
    Some(Path::new("/").join(below.as_path()))
}

/// Removes the names for a joined UTS namespace, which has its own.
fn strip_names(spec: &mut Spec) {
    let namespaces = spec.linux().as_ref().and_then(|l| l.namespaces().as_ref());
    let own =
        namespaces.is_some_and(|n| n.iter().any(|n| n.typ() == Ns::Uts && n.path().is_none()));
    if !own {
        spec.set_hostname(None);
        spec.set_domainname(None);
    }
}

fn has_namespace(spec: &Spec, kind: Ns) -> bool {
    let namespaces = spec.linux().as_ref().and_then(|l| l.namespaces().as_ref());
    namespaces.is_some_and(|list| list.iter().any(|n| n.typ() == kind))
}

fn take_pid_namespace(spec: &mut Spec) -> Option<PathBuf> {
    let namespaces = spec.linux_mut().as_mut()?.namespaces_mut().as_mut()?;
    let joined = |n: &LinuxNamespace| n.typ() == Ns::Pid && n.path().is_some();
    let at = namespaces.iter().position(joined)?;
    namespaces.remove(at).path().clone()
}

/// The host's id of a container's id; an id without one belongs to the host's root.
fn on_host(id: u32, maps: &[LinuxIdMapping]) -> u32 {
    let mut found = maps.iter().filter_map(|map| {
        let offset = id.checked_sub(map.container_id())?;
        (offset < map.size()).then(|| map.host_id().checked_add(offset))?
    });
    found.next().unwrap_or(0)
}

impl Plan {
    /// Takes the nodes that libcontainer would not make, or not safely: those outside of `/dev`; in
    /// a user namespace, where it binds the host's node of the same path; and those in another mount
    /// below `/dev`, where other containers may swap directories for links meanwhile. A bind at
    /// `/dev` has its own nodes.
    fn take_nodes(&mut self, mounts: &mut Vec<Mount>, label: Option<&str>) {
        let mapped = has_namespace(&self.spec, Ns::User);
        let Some(linux) = self.spec.linux_mut() else {
            return;
        };
        let devices = linux.devices_mut().take().unwrap_or_default();
        let within = |mount: &Mount, path: &Path| {
            mount.destination() != Path::new(DEVICES) && path.starts_with(mount.destination())
        };
        let maps = |maps: &Option<Vec<LinuxIdMapping>>, id: Option<u32>| match maps {
            Some(maps) if mapped => on_host(id.unwrap_or(0), maps),
            _ => id.unwrap_or(0),
        };
        let mut left = Vec::new();
        let mut binds = Vec::new();
        for device in devices {
            let path = device.path();
            let is_below = path.starts_with(DEVICES);
            if is_below && self.covered {
                continue;
            }
            let is_default = mapped && DEFAULT_DEVICES.iter().any(|name| path == Path::new(name));
            let staged = !is_below || mapped || mounts.iter().any(|mount| within(mount, path));
            if is_default || !staged {
                left.push(device);
                continue;
            }
            let at = Path::new(STAGE).join(format!("n{}", self.nodes.len()));
            binds.push(bind_of(&at, path));
            self.nodes.push(Node {
                at,
                destination: path.clone(),
                kind: device.typ(),
                numbers: (device.major(), device.minor()),
                mode: device.file_mode().unwrap_or(0o666) & 0o7777,
                owner: (
                    maps(linux.uid_mappings(), device.uid()),
                    maps(linux.gid_mappings(), device.gid()),
                ),
                label: label.map(str::to_owned),
            });
        }
        linux.set_devices(Some(left));
        mounts.extend(binds);
    }

    fn take_sysctls(&mut self) {
        if let Some(linux) = self.spec.linux_mut() {
            self.sysctls
                .extend(linux.sysctl().clone().unwrap_or_default());
            linux.set_sysctl(None);
        }
    }

    fn mount(
        &mut self,
        mut mount: Mount,
        cgroups: &[CgroupDir],
        kept: &mut Vec<Mount>,
    ) -> Result<(), String> {
        let destination = mount.destination().clone();
        let mut options = options(&mount).to_vec();
        if options.iter().any(|o| o == "tmpcopyup") {
            return Err(format!(
                "mount {}: tmpcopyup is not supported",
                destination.display()
            ));
        }
        let flags = options
            .iter()
            .filter_map(|o| propagation(o))
            .fold(0, |all, f| all | f);
        if flags != 0 {
            self.propagation.push(Propagation {
                destination: destination.clone(),
                flags,
            });
            options.retain(|o| propagation(o).is_none());
        }
        let shared = flags & libc::MS_SHARED != 0;
        if shared && destination == Path::new(DEVICES) {
            // The container's own mounts below, such as its shm, would appear on the host.
            return Err(format!("mount {DEVICES}: it cannot be shared"));
        }
        if matches!(mount.typ().as_deref(), Some("cgroup" | "cgroup2")) {
            self.cgroup_view = cgroup_view(&destination, &options, cgroups);
            return Ok(());
        }
        if self.join.is_some() && proc_view::take(&mut self.procs, &mount, &options)? {
            return Ok(());
        }
        if mount.source().is_none() {
            // libcontainer requires a source; the kernel ignores it.
            mount.set_source(Some(PathBuf::from(
                mount.typ().as_deref().unwrap_or("none"),
            )));
        }
        let shifted = self.owners(&mut mount, &mut options)?;
        if let Some((recursive, owners)) = shifted {
            self.stage(&mut mount, recursive, shared, Some(owners));
        } else if is_bind(&mount) {
            let recursive = options.iter().any(|o| o == "rbind");
            self.stage(&mut mount, recursive, shared, None);
        }
        mount.set_options(Some(options));
        kept.push(mount);
        Ok(())
    }

    /// The owners to shift to, if any, and whether to shift the mounts below.
    fn owners(
        &self,
        mount: &mut Mount,
        options: &mut Vec<String>,
    ) -> Result<Option<(bool, Owners)>, String> {
        let asked = options.iter().any(|o| o == "idmap" || o == "ridmap");
        let recursive = options.iter().any(|o| o == "ridmap");
        options.retain(|o| o != "idmap" && o != "ridmap");
        let mut uids = mount.uid_mappings().clone().unwrap_or_default();
        let mut gids = mount.gid_mappings().clone().unwrap_or_default();
        if asked && uids.is_empty() {
            let linux = self.spec.linux().as_ref();
            uids = linux
                .and_then(|l| l.uid_mappings().clone())
                .unwrap_or_default();
            gids = linux
                .and_then(|l| l.gid_mappings().clone())
                .unwrap_or_default();
        }
        mount.set_uid_mappings(None);
        mount.set_gid_mappings(None);
        if uids.is_empty() && gids.is_empty() && !asked {
            return Ok(None);
        }
        if uids.is_empty() || gids.is_empty() {
            let at = mount.destination().display();
            return Err(format!(
                "mount {at}: uid and gid mappings must be given together"
            ));
        }
        Ok(Some((recursive, Owners { uids, gids })))
    }

    fn stage(&mut self, mount: &mut Mount, recursive: bool, shared: bool, shifted: Option<Owners>) {
        let at = self.place();
        self.stage.push(Staged {
            at: at.clone(),
            source: mount.source().clone().unwrap_or_default(),
            destination: mount.destination().clone(),
            recursive,
            shared,
            shifted,
        });
        mount.set_source(Some(at));
    }

    /// Numbered, because libcgroups takes a mount path with a controller's name for a hierarchy.
    fn place(&self) -> PathBuf {
        Path::new(STAGE).join(format!("s{}", self.stage.len()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The staged nodes with their owner on the host, and those left to libcontainer.
    fn nodes(mapped: bool, bound: bool) -> (Vec<(String, u32)>, Vec<String>) {
        let devices = ["/dev/null", "/dev/x", "/dev/shm/x", "/opt/x"]
            .map(|path| json!({"path": path, "type": "c", "major": 1, "minor": 3, "uid": 7}));
        let spec = json!({
            "ociVersion": "1.2.0",
            "root": {"path": "/root"},
            "process": {"cwd": "/", "args": ["true"], "user": {"uid": 0, "gid": 0}},
            "mounts": [
                {"destination": "/dev", "type": if bound { "bind" } else { "tmpfs" }, "source": "/x"},
                {"destination": "/dev/shm", "type": "bind", "source": "/shm"},
            ],
            "linux": {
                "cgroupsPath": "/c",
                "namespaces": if mapped { json!([{"type": "user"}]) } else { json!([]) },
                "uidMappings": [{"containerID": 0, "hostID": 100_000, "size": 10}],
                "devices": devices,
            },
        });
        let spec = serde_json::from_value(spec).expect("a spec");
        let plan = plan(spec, &[]).expect("a plan");
        let made = plan.nodes.iter();
        let made = made.map(|node| (node.destination.display().to_string(), node.owner.0));
        let left = plan.spec.linux().iter().flat_map(|linux| linux.devices());
        let left = left
            .flatten()
            .map(|device| device.path().display().to_string());
        (made.collect(), left.collect())
    }

    #[test]
    fn nodes_are_staged_where_libcontainer_does_not_make_them_or_not_safely() {
        let of = |paths: &[&str], owner| -> Vec<_> {
            paths
                .iter()
                .map(|path| ((*path).to_owned(), owner))
                .collect()
        };
        let words = |paths: &[&str]| -> Vec<_> { paths.iter().map(|p| (*p).to_owned()).collect() };
        assert_eq!(
            nodes(false, false),
            (
                of(&["/dev/shm/x", "/opt/x"], 7),
                words(&["/dev/null", "/dev/x"])
            )
        );
        assert_eq!(
            nodes(true, false),
            (
                of(&["/dev/x", "/dev/shm/x", "/opt/x"], 100_007),
                words(&["/dev/null"])
            )
        );
        assert_eq!(nodes(false, true), (of(&["/opt/x"], 7), Vec::new()));
        assert_eq!(nodes(true, true), (of(&["/opt/x"], 100_007), Vec::new()));
    }

    fn mount(source: &str, words: &[&str], shifted: bool) -> Mount {
        let mut mount = Mount::default();
        mount.set_typ(Some("bind".to_owned()));
        mount.set_source(Some(source.into()));
        mount.set_options(Some(words.iter().map(|word| (*word).to_owned()).collect()));
        mount.set_uid_mappings(shifted.then(|| vec![LinuxIdMapping::default()]));
        mount
    }

    #[test]
    fn a_bind_at_dev_is_covered_by_a_tmpfs_that_comes_last() {
        let at = |destination: &str, mut mount: Mount| {
            mount.set_destination(destination.into());
            mount
        };
        let mut mounts = vec![
            at("/dev", mount("/dev", &["rbind"], false)),
            at("/dev/shm", mount("/shm", &["rbind"], false)),
        ];
        assert!(cover_devices(&mut mounts));
        let last = mounts
            .last()
            .map(|m| (m.destination().clone(), m.typ().clone()));
        assert_eq!(last, Some(("/dev".into(), Some("tmpfs".to_owned()))));
        let mut own = vec![
            at("/dev", Mount::default()),
            at("/dev/shm", mount("/shm", &["rbind"], false)),
        ];
        assert!(!cover_devices(&mut own));
        assert_eq!(own.len(), 2);
    }
}

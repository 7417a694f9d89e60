//! Changes the container's spec to one that libcontainer 0.7 implements, and plans the rest.
//!
//! Pure. libcontainer never sees the container's root: it makes every mount at a numbered place of
//! the *shell*, an empty root of ours ([`SHELL`]), and init moves each to its destination
//! (`root.rs`). Removed, as missing or wrong in libcontainer: the tail of the process and its
//! scheduling (`init.rs`), cgroups (already joined), `/dev` and its nodes, the cgroup mount, masked
//! and read-only paths, propagation, sysctls, hooks, and a joined PID namespace (`birth.rs`). Bind
//! sources become places on a stage, which `place.rs` fills, with shifted owners if requested:
//! libcontainer does not see the host's file systems. Unsupported parts are rejected by name.

use std::path::{Component, Path, PathBuf};

use cairn_monitor::{mount_tree::PROC_FILES, record::CgroupDir};
use oci_spec::runtime::{LinuxIdMapping, LinuxNamespaceType as Ns, Mount, Spec};

use crate::{
    cgroup_view::{CgroupView, cgroup_view},
    devices::{self, DEVICES, DevTree, Node},
    mount_option::{attribute, attributes, is_bind, options, propagation},
    strip::{
        STAGE, Settings, has_namespace, strip_linux, strip_names, strip_process,
        take_pid_namespace, take_sysctls,
    },
};

/// A mount of the container's root. They are placed in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) from: Origin,
    pub(crate) destination: PathBuf,
    /// MS_* flags; 0 changes nothing.
    pub(crate) propagation: u64,
    /// A file system of message queues to label.
    pub(crate) queues: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A mount that libcontainer made at this path of the shell.
    Shell(PathBuf),
    /// The number of a detached tree, in [`Plan::trees`].
    Tree(usize),
}

/// A detached tree, which `place.rs` assembles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tree {
    Devices(DevTree),
    /// The procfs of the joined PID namespace, with MOUNT_ATTR_* bits.
    Proc(u64),
    Cgroups(CgroupView),
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
    pub(crate) settings: Settings,
    pub(crate) places: Vec<Place>,
    pub(crate) trees: Vec<Tree>,
    pub(crate) stage: Vec<Staged>,
    pub(crate) nodes: Vec<Node>,
    /// The container's root user and group on the host.
    pub(crate) owner: (u32, u32),
    /// The PID namespace to join.
    pub(crate) join: Option<PathBuf>,
    pub(crate) sysctls: Vec<(String, String)>,
}

/// On the stage: the shell, the container's root and its directory.
pub(crate) const SHELL: &str = "shell";
pub(crate) const ROOT: &str = "root";
pub(crate) const DIRECTORY: &str = "dir";
/// The container's root in the shell.
pub(crate) const ROOT_IN_SHELL: &str = "/root";
/// Where libcontainer finds and leaves the terminal's parts, in the shell and in the container.
const TERMINALS: &str = "/dev/pts";
const CONSOLE: &str = "/dev/console";
/// The kernel's own places: only a mount whose destination names one is placed in it.
const KERNELS: [&str; 3] = ["/proc", "/sys", DEVICES];

fn has_parent(path: &Path) -> bool {
    path.components().any(|part| part == Component::ParentDir)
}

/// The kernel's place that a destination names, by its text.
pub(crate) fn kernels_place(destination: &Path) -> Option<&'static str> {
    let mut clean = PathBuf::from("/");
    for part in destination.components() {
        match part {
            Component::Normal(part) => clean.push(part),
            Component::ParentDir => drop(clean.pop()),
            _ => {}
        }
    }
    KERNELS.into_iter().find(|place| clean.starts_with(place))
}

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
    let tty = spec.process().as_ref().and_then(|p| p.terminal());
    strip_process(&mut spec)?;
    let settings = strip_linux(&mut spec, cgroups)?;
    strip_names(&mut spec);
    let join = take_pid_namespace(&mut spec);
    let mut plan = Plan {
        owner: devices::owner(&spec, None, None),
        sysctls: take_sysctls(&mut spec),
        spec,
        rootfs: root,
        settings,
        places: Vec::new(),
        trees: Vec::new(),
        stage: Vec::new(),
        nodes: Vec::new(),
        join,
    };
    let mounts = plan.spec.mounts().clone().unwrap_or_default();
    if let Some(mount) = mounts.iter().find(|m| has_parent(m.destination())) {
        let at = mount.destination().display();
        return Err(format!(
            "mount {at}: the destination must not contain \"..\""
        ));
    }
    let (own, bound) = devices::find(&mounts);
    let mut shell = vec![bind_of(
        &Path::new(STAGE).join(ROOT),
        ROOT_IN_SHELL,
        "rbind",
    )];
    if own.is_none() && !bound {
        plan.place_devices(&devices::default_mount(), &mounts)?;
    }
    for (number, mount) in mounts.iter().enumerate() {
        if own == Some(number) {
            plan.place_devices(mount, &mounts)?;
        } else {
            plan.mount(mount.clone(), cgroups, &mut shell)?;
        }
    }
    let nodes = devices::apart(&plan.spec, &mounts, bound);
    for (number, device) in nodes.into_iter().enumerate() {
        let at = Path::new(STAGE).join(format!("n{number}"));
        let label = plan.settings.label.as_deref();
        let node = devices::node(&plan.spec, &device, at.clone(), label)?;
        plan.nodes.push(node);
        plan.place_made(bind_of(&at, device.path(), "bind"), 0, &mut shell);
    }
    if tty == Some(true) && !bound {
        // Made by libcontainer, from the terminals above.
        plan.place(Origin::Shell(CONSOLE.into()), Path::new(CONSOLE), 0);
    }
    plan.finish(shell);
    Ok(plan)
}

fn bind_of(source: &Path, destination: impl AsRef<Path>, option: &str) -> Mount {
    let mut mount = Mount::default();
    mount.set_destination(destination.as_ref().into());
    mount.set_typ(Some("bind".to_owned()));
    mount.set_source(Some(source.into()));
    mount.set_options(Some(vec![option.to_owned()]));
    mount
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

/// Refuses a mount inside `/proc`, except on the files that lxcfs replaces. `root.rs` checks that a
/// mount on `/proc` is a procfs.
fn check_proc(mount: &Mount) -> Result<(), String> {
    let destination = mount.destination();
    let Ok(inside) = destination.strip_prefix("/proc") else {
        return Ok(());
    };
    let is_file = PROC_FILES.iter().any(|file| Path::new(file) == inside);
    if inside.as_os_str().is_empty() || (is_file && is_bind(mount)) {
        return Ok(());
    }
    Err(format!(
        "mount {}: inside /proc only the files that lxcfs replaces can be mounted over",
        destination.display()
    ))
}

impl Plan {
    fn place(&mut self, from: Origin, destination: &Path, propagation: u64) {
        self.places.push(Place {
            from,
            destination: destination.into(),
            propagation,
            queues: false,
        });
    }

    fn place_tree(&mut self, tree: Tree, destination: &Path, propagation: u64) {
        self.place(Origin::Tree(self.trees.len()), destination, propagation);
        self.trees.push(tree);
    }

    fn place_devices(&mut self, mount: &Mount, mounts: &[Mount]) -> Result<(), String> {
        let label = self.settings.label.as_deref();
        let tree = devices::tree(&self.spec, mount, mounts, label)?;
        let words = options(mount).iter();
        let flags = words
            .filter_map(|o| propagation(o))
            .fold(0, |all, f| all | f);
        self.place_tree(Tree::Devices(tree), Path::new(DEVICES), flags);
        Ok(())
    }

    /// Has libcontainer make the mount, at a place of the shell.
    fn place_made(&mut self, mut mount: Mount, propagation: u64, shell: &mut Vec<Mount>) {
        let destination = mount.destination().clone();
        let terminals = mount.typ().as_deref() == Some("devpts");
        let at = if terminals && destination == Path::new(TERMINALS) {
            TERMINALS.into()
        } else {
            PathBuf::from(format!("/{}", shell.len()))
        };
        mount.set_destination(at.clone());
        self.place(Origin::Shell(at), &destination, propagation);
        shell.push(mount);
    }

    fn mount(
        &mut self,
        mut mount: Mount,
        cgroups: &[CgroupDir],
        shell: &mut Vec<Mount>,
    ) -> Result<(), String> {
        let destination = mount.destination().clone();
        let mut options = options(&mount).to_vec();
        if options.iter().any(|o| o == "tmpcopyup") {
            return Err(format!(
                "mount {}: tmpcopyup is not supported",
                destination.display()
            ));
        }
        check_proc(&mount)?;
        let flags = options
            .iter()
            .filter_map(|o| propagation(o))
            .fold(0, |all, f| all | f);
        options.retain(|o| propagation(o).is_none());
        let shared = flags & libc::MS_SHARED != 0;
        if shared && destination == Path::new(DEVICES) {
            // The container's own mounts below, such as its shm, would appear on the host.
            return Err(format!("mount {DEVICES}: it cannot be shared"));
        }
        if matches!(mount.typ().as_deref(), Some("cgroup" | "cgroup2")) {
            if let Some(view) = cgroup_view(&options, cgroups) {
                self.place_tree(Tree::Cgroups(view), &destination, flags);
            }
            return Ok(());
        }
        if self.join.is_some() && mount.typ().as_deref() == Some("proc") {
            if let Some(option) = options.iter().find(|o| attribute(o).is_none()) {
                let at = destination.display();
                return Err(format!(
                    "mount {at}: option {option} is not supported in a PID namespace that is joined"
                ));
            }
            self.place_tree(Tree::Proc(attributes(&options)), &destination, flags);
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
        let mut queues = false;
        if let Some(label) = &self.settings.label {
            set_label(&mut mount, label);
            // Without an IPC namespace the queues are the host's.
            queues = mount.typ().as_deref() == Some("mqueue") && has_namespace(&self.spec, Ns::Ipc);
        }
        self.place_made(mount, flags, shell);
        if let Some(place) = self.places.last_mut() {
            place.queues = queues;
        }
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
        // Numbered, because libcgroups takes a mount path with a controller's name for a hierarchy.
        let at = Path::new(STAGE).join(format!("s{}", self.stage.len()));
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

    /// Gives libcontainer the shell as the root, with its mounts alone.
    fn finish(&mut self, shell: Vec<Mount>) {
        self.spec.set_mounts(Some(shell));
        let at = Path::new(STAGE).join(SHELL);
        self.spec.set_root(self.spec.root().clone().map(|mut root| {
            root.set_path(at);
            root.set_readonly(Some(false));
            root
        }));
        if let Some(linux) = self.spec.linux_mut() {
            linux.set_devices(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn planned(mounts: serde_json::Value) -> Result<Plan, String> {
        let spec = json!({
            "ociVersion": "1.2.0",
            "root": {"path": "/root/of/it", "readonly": true},
            "process": {"cwd": "/", "args": ["true"], "user": {"uid": 0, "gid": 0}},
            "mounts": mounts,
            "linux": {
                "cgroupsPath": "/c",
                "namespaces": [],
                "maskedPaths": ["/proc/kcore"],
                "devices": [{"path": "/opt/x", "type": "c", "major": 1, "minor": 3}],
            },
        });
        plan(serde_json::from_value(spec).expect("a spec"), &[])
    }

    #[test]
    fn libcontainer_gets_numbered_places_of_an_empty_root_and_no_path_of_the_container() {
        let plan = planned(json!([
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/dev/pts", "type": "devpts", "source": "devpts"},
            {"destination": "/v/x", "type": "bind", "source": "/h", "options": ["rbind", "rslave"]},
        ]))
        .expect("a plan");
        let mounts = plan.spec.mounts().iter().flatten();
        let mounts: Vec<_> = mounts.map(|m| m.destination().clone()).collect();
        let places = ["/root", "/1", "/dev/pts", "/3", "/4"].map(PathBuf::from);
        assert_eq!(mounts, places);
        let root = plan.spec.root().clone().expect("a root");
        assert_eq!(root.path(), &Path::new(STAGE).join(SHELL));
        assert_eq!(root.readonly(), Some(false));
        let linux = plan.spec.linux().clone().expect("a section");
        assert!(linux.devices().is_none() && linux.masked_paths().is_none());
        assert!(plan.settings.read_only && plan.settings.masked == ["/proc/kcore"]);
        let placed = plan.places.iter();
        let placed: Vec<_> = placed
            .map(|p| (p.destination.to_str().expect("UTF-8"), p.propagation))
            .collect();
        let slave = libc::MS_SLAVE | libc::MS_REC;
        let expected = [
            ("/proc", 0),
            ("/dev", 0),
            ("/dev/pts", 0),
            ("/v/x", slave),
            ("/opt/x", 0),
        ];
        assert_eq!(placed, expected);
        assert_eq!(plan.places[1].from, Origin::Tree(0));
        assert_eq!(plan.stage[0].source, Path::new("/h"));
    }

    #[test]
    fn a_mount_inside_proc_is_refused_except_on_what_lxcfs_replaces() {
        let bind = |at: &str| {
            planned(json!([{"destination": at, "type": "bind", "source": "/h"}])).map(drop)
        };
        bind("/proc/meminfo").expect("allowed");
        bind("/process").expect("elsewhere");
        for refused in ["/proc/1", "/proc/sys", "/proc/sys/kernel/core_pattern"] {
            bind(refused).expect_err(refused);
        }
        planned(json!([{"destination": "/proc/uptime", "type": "tmpfs"}])).expect_err("no bind");
        bind("/a/../proc/sys").expect_err("not clean");
    }

    #[test]
    fn a_kernels_place_is_named_by_the_text_of_a_destination() {
        for (destination, place) in [
            ("/dev", Some("/dev")),
            ("/dev/shm/x", Some("/dev")),
            ("/a/../sys/fs", Some("/sys")),
            ("/sys/../a", None),
            ("/device", None),
            ("/", None),
        ] {
            assert_eq!(
                kernels_place(Path::new(destination)),
                place,
                "{destination}"
            );
        }
    }
}

//! From the container's spec to one that libcontainer 0.7 carries out rightly, and to what is done beside it.
//!
//! Pure. What libcontainer does wrongly or not at all is taken out here: the tail of the process and its scheduling
//! (`init.rs`), cgroups (joined already), mount propagation (set after its mounts), idmapped mounts and the cgroup mount (staged by
//! `place.rs` as plain binds). What neither can do is refused by name.

use std::path::{Path, PathBuf};

use cairn_monitor::record::CgroupDir;
use oci_spec::runtime::{
    LinuxIdMapping, LinuxNamespaceType as Ns, Mount, ProcessBuilder, Spec, UserBuilder,
};

/// Set on a mount of the finished container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Propagation {
    pub destination: PathBuf,
    /// MS_* flags.
    pub flags: u64,
}

/// What the container shall see of its own cgroups. Attached as one tree at the very end: as a dozen binds it would be
/// the larger half of libcontainer's system calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupView {
    pub destination: PathBuf,
    /// MOUNT_ATTR_* bits.
    pub attributes: u64,
    /// With v2 its directory alone; with v1 a frame of directories, a name each.
    pub hierarchies: Hierarchies,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hierarchies {
    V2(PathBuf),
    V1 {
        directories: Vec<(String, PathBuf)>,
        /// For hierarchies that hold several controllers: link, directory.
        links: Vec<(String, String)>,
    },
}

/// A mount made before libcontainer's, to be bound by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Staged {
    /// A copy of `source` with shifted owners.
    Idmapped {
        at: PathBuf,
        source: PathBuf,
        recursive: bool,
        uids: Vec<LinuxIdMapping>,
        gids: Vec<LinuxIdMapping>,
    },
}

/// What is to be done.
#[derive(Debug)]
pub struct Plan {
    pub spec: Spec,
    pub rootfs: PathBuf,
    pub propagation: Vec<Propagation>,
    pub stage: Vec<Staged>,
    pub cgroup_view: Option<CgroupView>,
    /// Stay in the host's mount namespace, with libcontainer's slower way through cgroups: OCI hooks run there, a
    /// shared mount must reach it, or a bind takes the host's cgroup hierarchies along.
    pub host_mounts: bool,
}

/// Where mounts are staged: a tmpfs that stands in for the hierarchies (libcgroups wants one there).
pub const STAGE: &str = "/sys/fs/cgroup";

pub fn plan(mut spec: Spec, cgroups: &[CgroupDir]) -> Result<Plan, String> {
    let root = spec
        .root()
        .as_ref()
        .ok_or("the spec has no root")?
        .path()
        .clone();
    if !root.is_absolute() {
        return Err(format!("root {} is not absolute", root.display()));
    }
    let host_mounts = needs_host_mounts(&spec);
    strip_process(&mut spec)?;
    strip_linux(&mut spec, cgroups)?;
    strip_names(&mut spec);
    let mut plan = Plan {
        spec,
        rootfs: root,
        propagation: Vec::new(),
        stage: Vec::new(),
        cgroup_view: None,
        host_mounts,
    };
    let mounts = plan.spec.mounts().clone().unwrap_or_default();
    let mut kept = Vec::with_capacity(mounts.len());
    for mount in mounts {
        plan.mount(mount, cgroups, &mut kept)?;
    }
    plan.spec.set_mounts(Some(kept));
    if host_mounts && !plan.stage.is_empty() {
        return Err("an idmapped mount together with OCI hooks, a shared mount or the host's /sys is not supported"
            .to_owned());
    }
    Ok(plan)
}

fn needs_host_mounts(spec: &Spec) -> bool {
    let hooks = spec.hooks().as_ref().is_some_and(|h| {
        let lists = [h.prestart(), h.create_runtime(), h.create_container()];
        lists
            .iter()
            .any(|l| l.as_ref().is_some_and(|l| !l.is_empty()))
    });
    let mounts = spec.mounts().iter().flatten();
    let reaching = mounts
        .filter(|m| m.typ().as_deref() != Some("cgroup"))
        .any(|m| {
            let shared = options(m).iter().any(|o| o == "shared" || o == "rshared");
            let source = m.source().as_deref().unwrap_or(Path::new(""));
            let whole = Path::new(STAGE).starts_with(source) && source.is_absolute();
            shared || whole || source.starts_with(STAGE)
        });
    hooks || reaching
}

fn options(mount: &Mount) -> &[String] {
    mount.options().as_deref().unwrap_or_default()
}

/// All that the tail does: libcontainer's init then keeps every privilege until it comes there.
fn strip_process(spec: &mut Spec) -> Result<(), String> {
    let process = spec.process().as_ref().ok_or("the spec has no process")?;
    let text = |s: &str| vec![s.to_owned()];
    let user = UserBuilder::default().uid(0u32).gid(0u32).build();
    let mut builder = ProcessBuilder::default()
        .terminal(process.terminal().unwrap_or(false))
        .user(user.map_err(|e| e.to_string())?)
        // Never executed. HOME, so that libcontainer does not ask the container's name services for it.
        .args(text("cairn"))
        .env(vec!["PATH=/bin".to_owned(), "HOME=/".to_owned()])
        .cwd("/")
        .oom_score_adj(process.oom_score_adj().unwrap_or(0));
    if let Some(profile) = process.apparmor_profile().clone().filter(|p| !p.is_empty()) {
        builder = builder.apparmor_profile(profile);
    }
    let mut stripped = builder.build().map_err(|e| e.to_string())?;
    stripped.set_capabilities(None);
    stripped.set_no_new_privileges(None);
    stripped.set_rlimits(None);
    spec.set_process(Some(stripped));
    Ok(())
}

fn strip_linux(spec: &mut Spec, cgroups: &[CgroupDir]) -> Result<(), String> {
    let Some(linux) = spec.linux_mut() else {
        return Err("the spec has no linux part".to_owned());
    };
    if linux
        .mount_label()
        .as_deref()
        .is_some_and(|l| !l.is_empty())
    {
        return Err("SELinux mount labels are not supported".to_owned());
    }
    linux.set_mount_label(None);
    linux.set_seccomp(None);
    linux.set_resources(None);
    linux.set_memory_policy(None);
    // Where libcontainer's own cgroup code works (host_mounts), it shall move init to where it is already.
    if let Some(path) = common_path(cgroups) {
        linux.set_cgroups_path(Some(path));
    }
    if linux
        .cgroups_path()
        .as_ref()
        .is_none_or(|p| !p.is_absolute())
    {
        return Err("linux.cgroupsPath is not absolute".to_owned());
    }
    let propagation = match linux.rootfs_propagation().as_deref() {
        Some(p @ ("rshared" | "rslave" | "rprivate" | "runbindable")) => Some(p[1..].to_owned()),
        Some("") | None => None,
        Some(p) => Some(p.to_owned()),
    };
    linux.set_rootfs_propagation(propagation);
    Ok(())
}

/// The container's path below its hierarchies' mount points.
fn common_path(cgroups: &[CgroupDir]) -> Option<PathBuf> {
    let v1 = cgroups.iter().find(|c| !c.unified());
    let dir = Path::new(&v1.or(cgroups.first())?.path);
    let mut below = dir.strip_prefix(STAGE).ok()?.components();
    if v1.is_some() {
        below.next()?;
    }
    Some(Path::new("/").join(below.as_path()))
}

/// A joined UTS namespace has its names already.
fn strip_names(spec: &mut Spec) {
    let namespaces = spec.linux().as_ref().and_then(|l| l.namespaces().as_ref());
    let own =
        namespaces.is_some_and(|n| n.iter().any(|n| n.typ() == Ns::Uts && n.path().is_none()));
    if !own {
        spec.set_hostname(None);
        spec.set_domainname(None);
    }
}

impl Plan {
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
        if matches!(mount.typ().as_deref(), Some("cgroup" | "cgroup2")) {
            self.cgroup_view = cgroup_view(&destination, &options, cgroups);
            return Ok(());
        }
        if mount.source().is_none() {
            // libcontainer wants one; the kernel does not care.
            mount.set_source(Some(PathBuf::from(
                mount.typ().as_deref().unwrap_or("none"),
            )));
        }
        self.idmap(&mut mount, &mut options)?;
        mount.set_options(Some(options));
        kept.push(mount);
        Ok(())
    }

    fn idmap(&mut self, mount: &mut Mount, options: &mut Vec<String>) -> Result<(), String> {
        let asked = options.iter().any(|o| o == "idmap" || o == "ridmap");
        let recursive = options.iter().any(|o| o == "ridmap");
        options.retain(|o| o != "idmap" && o != "ridmap");
        let mut uids = mount.uid_mappings().clone().unwrap_or_default();
        let mut gids = mount.gid_mappings().clone().unwrap_or_default();
        if asked && uids.is_empty() {
            // The container's own mapping.
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
            return Ok(());
        }
        if uids.is_empty() || gids.is_empty() {
            let at = mount.destination().display();
            return Err(format!(
                "mount {at}: uid and gid mappings must be given together"
            ));
        }
        let at = self.place();
        let source = mount.source().clone().unwrap_or_default();
        self.stage.push(Staged::Idmapped {
            at: at.clone(),
            source,
            recursive,
            uids,
            gids,
        });
        mount.set_source(Some(at));
        Ok(())
    }

    /// A fresh path on the stage. Numbers only: libcgroups takes a cgroup mount whose path ends with a controller's name
    /// for a hierarchy.
    fn place(&self) -> PathBuf {
        Path::new(STAGE).join(format!("s{}", self.stage.len()))
    }
}

fn cgroup_view(
    destination: &Path,
    options: &[String],
    cgroups: &[CgroupDir],
) -> Option<CgroupView> {
    let bits = options.iter().map(|o| match o.as_str() {
        "ro" => libc::MOUNT_ATTR_RDONLY,
        "nosuid" => libc::MOUNT_ATTR_NOSUID,
        "nodev" => libc::MOUNT_ATTR_NODEV,
        "noexec" => libc::MOUNT_ATTR_NOEXEC,
        // Access times of cgroup files mean nothing.
        _ => 0,
    });
    let only_v2 = cgroups.iter().all(CgroupDir::unified);
    let hierarchies = if only_v2 {
        Hierarchies::V2(PathBuf::from(&cgroups.first()?.path))
    } else {
        let directories = cgroups
            .iter()
            .map(|c| (directory_name(c), PathBuf::from(&c.path)));
        let directories: Vec<(String, PathBuf)> = directories.collect();
        let several = directories.iter().filter(|(name, _)| name.contains(','));
        let links = several.flat_map(|(name, _)| {
            name.split(',')
                .map(move |part| (part.to_owned(), name.clone()))
        });
        Hierarchies::V1 {
            links: links.collect(),
            directories,
        }
    };
    let attributes = bits.fold(0, |all, bit| all | bit);
    Some(CgroupView {
        destination: destination.to_owned(),
        attributes,
        hierarchies,
    })
}

/// Under /sys/fs/cgroup in the container.
fn directory_name(dir: &CgroupDir) -> String {
    if dir.unified() {
        return "unified".to_owned();
    }
    dir.controller
        .strip_prefix("name=")
        .unwrap_or(&dir.controller)
        .to_owned()
}

fn propagation(option: &str) -> Option<u64> {
    let (kind, recursive) = match option.strip_prefix('r') {
        Some(rest @ ("private" | "shared" | "slave" | "unbindable")) => (rest, libc::MS_REC),
        _ => (option, 0),
    };
    let flag = match kind {
        "private" => libc::MS_PRIVATE,
        "shared" => libc::MS_SHARED,
        "slave" => libc::MS_SLAVE,
        "unbindable" => libc::MS_UNBINDABLE,
        _ => return None,
    };
    Some(flag | recursive)
}

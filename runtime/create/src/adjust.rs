//! Changes the container's spec to one that libcontainer 0.7 implements, and plans the rest.
//!
//! Pure. Removed, as missing or wrong in libcontainer: the tail of the process and its scheduling
//! (`init.rs`), cgroups (already joined), mount propagation (set after its mounts), the cgroup
//! mount, a joined PID namespace with its procfs (`proc_view.rs`, `birth.rs`). Bind sources become
//! places on a stage, which `place.rs` fills, with shifted owners if requested: libcontainer does
//! not see the host's file systems. Unsupported parts are rejected by name.

use std::path::{Path, PathBuf};

use cairn_monitor::record::CgroupDir;
use oci_spec::runtime::{
    LinuxIdMapping, LinuxNamespace, LinuxNamespaceType as Ns, Mount, ProcessBuilder, Spec,
    UserBuilder,
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
    pub(crate) propagation: Vec<Propagation>,
    /// The mount point of message queues, and their SELinux label.
    pub(crate) queues: Option<(PathBuf, String)>,
    pub(crate) stage: Vec<Staged>,
    /// A tmpfs is on the bound [`DEVICES`], for init to remove.
    pub(crate) covered: bool,
    pub(crate) cgroup_view: Option<CgroupView>,
    /// The PID namespace to join, and the procfs views of it.
    pub(crate) join: Option<PathBuf>,
    pub(crate) procs: Vec<ProcView>,
    /// Only with `join`: libcontainer's init would look for sysctls at a missing `/proc`.
    pub(crate) sysctls: Vec<(String, String)>,
    /// Stay in the host's mount namespace, slower by libcontainer's cgroup code and the host's
    /// mounts: for OCI hooks that run there, shared mounts, and binds with the host's cgroups
    /// without shifted owners, which need the stage.
    pub(crate) host_mounts: bool,
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
    let host_mounts = needs_host_mounts(&spec);
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
        covered: false,
        cgroup_view: None,
        join,
        procs: Vec::new(),
        sysctls: Vec::new(),
        host_mounts,
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
    if plan.covered && host_mounts {
        return Err(format!(
            "a bind at {DEVICES} together with OCI hooks or a shared mount is not supported"
        ));
    }
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
    if !host_mounts {
        let at = Path::new(STAGE).join(ROOT);
        plan.spec.set_root(plan.spec.root().clone().map(|mut root| {
            root.set_path(at);
            root
        }));
    } else if !plan.stage.is_empty() {
        return Err(
            "an idmapped mount together with OCI hooks or a shared mount is not supported"
                .to_owned(),
        );
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
    let mounts = || spec.mounts().iter().flatten();
    let has = |m: &Mount, words: &[&str]| options(m).iter().any(|o| words.contains(&o.as_str()));
    let shifted = mounts().any(|m| {
        has(m, &["idmap", "ridmap"]) || m.uid_mappings().iter().flatten().next().is_some()
    });
    let not_cgroup = |m: &&Mount| m.typ().as_deref() != Some("cgroup");
    let reaching = mounts().filter(not_cgroup).any(|m| {
        let source = m.source().as_deref().unwrap_or(Path::new(""));
        let covers = Path::new(STAGE).starts_with(source) && source.is_absolute();
        has(m, &["shared", "rshared"]) || !shifted && (covers || source.starts_with(STAGE))
    });
    hooks || reaching
}

/// Covers a bind at `/dev`, such as the host's, by a tmpfs: libcontainer makes its links and devices
/// in the topmost mount there. Returns whether it did. Mounts of ours must be slaves of the host's,
/// where the tmpfs would appear otherwise.
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
    // If libcontainer's cgroup code runs (host_mounts), it must move init to its present cgroup.
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

impl Plan {
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
            self.stage(&mut mount, recursive, Some(owners));
        } else if is_bind(&mount) && !self.host_mounts {
            let recursive = options.iter().any(|o| o == "rbind");
            self.stage(&mut mount, recursive, None);
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

    fn stage(&mut self, mount: &mut Mount, recursive: bool, shifted: Option<Owners>) {
        let at = self.place();
        self.stage.push(Staged {
            at: at.clone(),
            source: mount.source().clone().unwrap_or_default(),
            destination: mount.destination().clone(),
            recursive,
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
    use oci_spec::runtime::LinuxIdMapping;

    use super::*;

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

    #[test]
    fn a_bind_of_the_hosts_cgroups_is_staged_only_beside_a_mount_with_shifted_owners() {
        let needs = |mounts: &[Mount]| {
            let mut spec = Spec::default();
            spec.set_mounts(Some(mounts.to_vec()));
            needs_host_mounts(&spec)
        };
        let volume = mount("/volume", &["rbind"], true);
        for source in ["/", "/sys", STAGE, "/sys/fs/cgroup/memory"] {
            let host = mount(source, &["rbind"], false);
            assert!(needs(std::slice::from_ref(&host)), "{source}");
            assert!(!needs(&[host, volume.clone()]), "{source}");
        }
        assert!(!needs(&[mount("/sys/kernel", &["rbind"], false)]));
        assert!(!needs(&[mount("relative", &["rbind"], false)]));
        for words in [["rbind", "shared"], ["bind", "rshared"]] {
            assert!(needs(&[mount("/volume", &words, false)]));
            assert!(needs(&[mount("/volume", &words, true)]));
        }
        assert!(!needs(&[
            mount("/volume", &["idmap"], false),
            mount("/sys", &["rbind"], false)
        ]));
    }
}

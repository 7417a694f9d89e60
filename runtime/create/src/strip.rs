//! Removes from the container's spec what libcontainer must not do, or does wrongly.
//!
//! Pure.

use std::path::{Path, PathBuf};

use cairn_monitor::record::CgroupDir;
use oci_spec::runtime::{
    LinuxNamespace, LinuxNamespaceType as Ns, ProcessBuilder, Spec, UserBuilder,
};

/// The stage: a tmpfs instead of the hierarchies, where libcgroups expects one.
pub(crate) const STAGE: &str = "/sys/fs/cgroup";

/// Settings of the complete root.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) read_only: bool,
    /// MS_* flags; 0 changes nothing.
    pub(crate) propagation: u64,
    pub(crate) masked: Vec<String>,
    pub(crate) read_only_paths: Vec<String>,
    /// The SELinux label of its files.
    pub(crate) label: Option<String>,
}

/// Removes the tail's work from the process: libcontainer's init keeps every privilege until then.
pub(crate) fn strip_process(spec: &mut Spec) -> Result<(), String> {
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

/// Returns the settings that init applies.
pub(crate) fn strip_linux(spec: &mut Spec, cgroups: &[CgroupDir]) -> Result<Settings, String> {
    let read_only = spec.root().as_ref().and_then(|root| root.readonly());
    let Some(linux) = spec.linux_mut() else {
        return Err("the spec has no linux section".to_owned());
    };
    let wanted = linux.rootfs_propagation().clone().unwrap_or_default();
    let settings = Settings {
        read_only: read_only.unwrap_or(false),
        propagation: match wanted.trim_start_matches('r') {
            "shared" => libc::MS_SHARED,
            "unbindable" => libc::MS_UNBINDABLE,
            _ => 0,
        },
        masked: linux.masked_paths().clone().unwrap_or_default(),
        read_only_paths: linux.readonly_paths().clone().unwrap_or_default(),
        label: linux.mount_label().clone().filter(|l| !l.is_empty()),
    };
    linux.set_mount_label(None);
    linux.set_seccomp(None);
    linux.set_resources(None);
    linux.set_memory_policy(None);
    linux.set_masked_paths(None);
    linux.set_readonly_paths(None);
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
    let propagation = match wanted.as_str() {
        "rshared" | "rslave" | "rprivate" | "runbindable" => Some(wanted[1..].to_owned()),
        "" => None,
        _ => Some(wanted),
    };
    linux.set_rootfs_propagation(propagation);
    Ok(settings)
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
pub(crate) fn strip_names(spec: &mut Spec) {
    let namespaces = spec.linux().as_ref().and_then(|l| l.namespaces().as_ref());
    let own =
        namespaces.is_some_and(|n| n.iter().any(|n| n.typ() == Ns::Uts && n.path().is_none()));
    if !own {
        spec.set_hostname(None);
        spec.set_domainname(None);
    }
}

pub(crate) fn has_namespace(spec: &Spec, kind: Ns) -> bool {
    let namespaces = spec.linux().as_ref().and_then(|l| l.namespaces().as_ref());
    namespaces.is_some_and(|list| list.iter().any(|n| n.typ() == kind))
}

pub(crate) fn take_pid_namespace(spec: &mut Spec) -> Option<PathBuf> {
    let namespaces = spec.linux_mut().as_mut()?.namespaces_mut().as_mut()?;
    let joined = |n: &LinuxNamespace| n.typ() == Ns::Pid && n.path().is_some();
    let at = namespaces.iter().position(joined)?;
    namespaces.remove(at).path().clone()
}

pub(crate) fn take_sysctls(spec: &mut Spec) -> Vec<(String, String)> {
    let Some(linux) = spec.linux_mut() else {
        return Vec::new();
    };
    let taken = linux.sysctl().clone().unwrap_or_default();
    linux.set_sysctl(None);
    taken.into_iter().collect()
}

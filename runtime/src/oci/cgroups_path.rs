//! `linux.cgroupsPath` of a container: a path for cgroupfs, `slice:prefix:id` for systemd.

use super::{
    base::clean_path,
    error::SpecError,
    facts::{CgroupDriver, Policy, SandboxFacts},
};

const FIELD: &str = "linux.cgroup_parent";
/// Of our scopes with systemd: `<slice>:<prefix>:<id>`.
const SCOPE_PREFIX: &str = "cairn";

/// The `cgroupsPath` of a pod's leaf `id`.
pub fn of_pod(sandbox: &SandboxFacts, policy: &Policy, id: &str) -> Result<String, SpecError> {
    cgroups_path(
        policy.cgroup_driver,
        &sandbox.cgroup_parent,
        &policy.default_cgroup_parent,
        id,
    )
}

/// That of the leaf `id` below `parent`, or below `default` where `parent` is empty.
fn cgroups_path(
    driver: CgroupDriver,
    parent: &str,
    default: &str,
    id: &str,
) -> Result<String, SpecError> {
    let parent = if parent.is_empty() { default } else { parent };
    if parent.split('/').any(|part| part == "..") || parent.contains('\0') {
        return Err(SpecError::invalid(
            FIELD,
            format!("{parent:?} leads out of the hierarchy"),
        ));
    }
    let clean = clean_path(parent);
    let last = clean.rsplit('/').next().unwrap_or_default();
    match driver {
        CgroupDriver::Systemd if last.ends_with(".slice") => {
            Ok(format!("{last}:{SCOPE_PREFIX}:{id}"))
        }
        // Also of a pod that was made before the driver was changed.
        _ => Ok(format!("{}/{id}", clean.trim_end_matches('/'))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(driver: CgroupDriver, parent: &str) -> Result<String, SpecError> {
        let default = match driver {
            CgroupDriver::Cgroupfs => "/",
            CgroupDriver::Systemd => "system.slice",
        };
        cgroups_path(driver, parent, default, "abc")
    }

    #[test]
    fn cgroupfs_puts_the_leaf_below_the_parent() {
        let make = |parent| path(CgroupDriver::Cgroupfs, parent).expect("valid");
        assert_eq!(
            make("/kubepods/burstable/pod1"),
            "/kubepods/burstable/pod1/abc"
        );
        assert_eq!(make("kubepods//pod1/"), "/kubepods/pod1/abc");
        assert_eq!(make(""), "/abc");
    }

    #[test]
    fn systemd_names_the_last_slice_and_a_scope() {
        let make = |parent| path(CgroupDriver::Systemd, parent);
        assert_eq!(
            make("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice")
                .expect("valid"),
            "kubepods-burstable-pod1_2.slice:cairn:abc"
        );
        assert_eq!(make("").expect("valid"), "system.slice:cairn:abc");
        // A pod of the time before.
        assert_eq!(make("/kubepods/pod1").expect("valid"), "/kubepods/pod1/abc");
    }

    #[test]
    fn a_parent_cannot_leave_the_hierarchy() {
        assert!(path(CgroupDriver::Cgroupfs, "/kubepods/../..").is_err());
        assert!(path(CgroupDriver::Systemd, "/../x.slice").is_err());
    }
}

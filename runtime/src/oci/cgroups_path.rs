//! The field `linux.cgroupsPath` of a container's spec, in the form that plugins and OCI hooks
//! read: a path for cgroupfs, `slice:prefix:id` for systemd. The cgroup that cairn makes is chosen
//! in `cgroup/group.rs`.

use super::{
    base::clean_path,
    error::SpecError,
    facts::{CgroupDriver, Policy, SandboxFacts},
};

const FIELD: &str = "linux.cgroup_parent";
/// Prefix of our systemd scopes: `<slice>:<prefix>:<id>`.
const SCOPE_PREFIX: &str = "cairn";

/// The `cgroupsPath` of a pod's leaf `id`.
pub fn of_pod(sandbox: &SandboxFacts, policy: &Policy, id: &str) -> Result<String, SpecError> {
    let parent = match sandbox.cgroup_parent.as_str() {
        "" => policy.default_cgroup_parent.as_str(),
        parent => parent,
    };
    if parent.split('/').any(|part| part == "..") || parent.contains('\0') {
        return Err(SpecError::invalid(
            FIELD,
            format!("{parent:?} leads out of the hierarchy"),
        ));
    }
    let clean = clean_path(parent);
    let last = clean.rsplit('/').next().unwrap_or_default();
    match policy.cgroup_driver {
        CgroupDriver::Systemd if last.ends_with(".slice") => {
            Ok(format!("{last}:{SCOPE_PREFIX}:{id}"))
        }
        // Also a pod created before the driver changed.
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
        let sandbox = SandboxFacts {
            cgroup_parent: parent.to_owned(),
            ..SandboxFacts::default()
        };
        let policy = Policy {
            cgroup_driver: driver,
            default_cgroup_parent: default.to_owned(),
            ..Policy::default()
        };
        of_pod(&sandbox, &policy, "abc")
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
        // A pod from before a change of the driver.
        assert_eq!(make("/kubepods/pod1").expect("valid"), "/kubepods/pod1/abc");
    }

    #[test]
    fn a_parent_cannot_leave_the_hierarchy() {
        assert!(path(CgroupDriver::Cgroupfs, "/kubepods/../..").is_err());
        assert!(path(CgroupDriver::Systemd, "/../x.slice").is_err());
    }
}

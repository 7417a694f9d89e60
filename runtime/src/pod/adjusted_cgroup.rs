//! A container whose plugin chose its cgroup (NRI-700, "cgroups path").
//!
//! The path must be free: limits, signals and removal apply to the entire cgroup.

use proto_nri::Field;

use super::{
    error::{Error, Result},
    pods::Pods,
    record::ContainerPhase,
    spec::Specs,
    state::Container,
};
use crate::{
    cgroup::{self, CgroupPath},
    oci::SpecError,
};

/// Puts the container where its adjustment asks for, if it does; the record has it then.
///
/// # Errors
/// Names the field: the path is invalid or in use. Or the record cannot be written.
#[expect(
    clippy::await_holding_invalid_type,
    reason = "in a step of a driver, which nobody drops"
)]
pub async fn place(cx: &Pods, container: &Container, specs: &Specs) -> Result<()> {
    let linux = specs.adjustment.linux.as_ref();
    let asked = linux.map_or("", |linux| linux.cgroups_path.as_str());
    if asked.is_empty() {
        return Ok(());
    }
    let refused = |cause: String| {
        let error = SpecError::invalid(Field::CgroupsPath, cause);
        Error::from(error.set_by(&specs.owners_of(&container.id)))
    };
    let path = cgroup::from_oci(asked).map_err(|error| refused(error.to_string()))?;
    // Two requests for the same path would both find it free.
    let _placing = cx.placing.lock().await;
    if is_taken(cx, &container.id, &path) {
        return Err(refused(format!(
            "{path} is there already: what is in it would be limited and killed with the container"
        )));
    }
    let path = path.as_str().to_owned();
    container.cell.change(|record| record.cgroup = path).await?;
    Ok(())
}

/// Whether a container has this cgroup, or will have it when it starts.
#[expect(clippy::disallowed_methods, reason = "cgroups are in memory")]
fn is_taken(cx: &Pods, id: &str, path: &CgroupPath) -> bool {
    let group = cx.node.cgroups.cgroup(path.clone());
    let there = group.dirs().iter().any(|dir| dir.exists());
    there
        || cx.registry.all().iter().any(|pod| {
            pod.containers().iter().any(|other| {
                let record = other.cell.get();
                other.id != id
                    && record.phase != ContainerPhase::Exited
                    && overlap(&record.cgroup, path.as_str())
            })
        })
}

/// Whether one path contains the other.
fn overlap(one: &str, other: &str) -> bool {
    let inside = |inner: &str, outer: &str| {
        let rest = inner.strip_prefix(outer);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    inside(one, other) || inside(other, one)
}

#[cfg(test)]
mod tests {
    use super::overlap;

    #[test]
    fn a_cgroup_overlaps_itself_and_what_lies_in_it() {
        assert!(overlap("/a/b", "/a/b") && overlap("/a/b/c", "/a/b") && overlap("/a", "/a/b"));
        assert!(!overlap("/a/b", "/a/bc") && !overlap("/a/b", "/a/c"));
    }
}

//! A container whose cgroup a plugin put elsewhere (NRI-700, "cgroups path").
//!
//! The place must be free: limits, signals and the removal at the end go to all that is in a container's cgroup.

use super::super::{
    error::{Error, Result},
    record::ContainerPhase,
    spec::Specs,
};
use crate::{cgroup::CgroupPath, services::Services};

const FIELD: &str = "adjust.linux.cgroups_path";

/// The path that the adjustment asks for, if it asks for one.
///
/// # Errors
/// Names the field: it is no path of a cgroup, or something is there already.
pub fn cgroup(services: &Services, id: &str, specs: &Specs) -> Result<Option<String>> {
    let linux = specs.adjustment.linux.as_ref();
    let asked = linux.map_or("", |linux| linux.cgroups_path.as_str());
    if asked.is_empty() {
        return Ok(None);
    }
    let path =
        CgroupPath::parse(asked).map_err(|error| Error::invalid(format!("{FIELD}: {error}")))?;
    let group = services.cgroups.cgroup(path.clone());
    let there = group.dirs().iter().any(|dir| dir.exists());
    let promised = services.registry.all().iter().any(|pod| {
        pod.containers().iter().any(|other| {
            let record = other.cell.get();
            other.id != id
                && record.phase != ContainerPhase::Exited
                && overlap(&record.cgroup, path.as_str())
        })
    });
    if there || promised {
        return Err(Error::invalid(format!(
            "{FIELD}: {path} is there already: what is in it would be limited and killed with the container"
        )));
    }
    Ok(Some(path.as_str().to_owned()))
}

/// Whether one lies in the other.
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

//! What can happen to a container: one file each. Every function here runs as a step of the
//! pod's driver, except exec, which uses no queue.

pub mod create;
pub mod exec;
pub mod exit;
pub mod remove;
pub mod start;
pub mod stop;
pub mod update;

use std::path::PathBuf;

use super::error::{Result, Step as _};
use crate::{cgroup, services::Services};

/// The container's own directory below `state`: bundle, sockets, exit file.
pub fn dir(services: &Services, id: &str) -> PathBuf {
    services.config.state.join("containers").join(id)
}

/// The cgroup of a path from a record.
///
/// # Errors
/// A path that is no cgroup path; records hold none such.
pub fn cgroup(services: &Services, path: &str) -> Result<cgroup::Cgroup> {
    let path = cgroup::CgroupPath::parse(path).step("cgroup path")?;
    Ok(services.cgroups.cgroup(path))
}

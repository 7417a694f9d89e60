//! Cgroups v1, hybrid and v2 behind one face.
//!
//! [`Host::detect`] reads the mount table once and knows for each controller where it lives: a v1
//! hierarchy of its own or the unified tree. A [`Cgroup`] is only a path below all of those trees;
//! whoever holds it may create, limit, read, freeze, kill and remove what is there. Nothing is
//! mounted, and nothing outside the named path is changed, except that on v2 controllers are handed
//! down the path (`cgroup.subtree_control`).
//!
//! ```text
//!   absent --create--> empty --(monitor joins by JoinPaths)--> populated --kill_all--> empty --remove--> absent
//! ```
//! Processes are never moved by pid: a write to `cgroup.procs` waits 7 to 20 ms for RCU. They are
//! born in the unified tree (`CLONE_INTO_CGROUP`) and write `0` into each v1 `tasks` themselves;
//! [`Cgroup::join_paths`] says where.
//!
//! The driver is cgroupfs. A systemd slice as parent is recognised and refused by name (CRI-710).

mod apply;
mod bpf;
mod devices;
mod group;
mod host;
mod io;
mod kill;
mod path;
mod plan;
mod plan_cpu;
mod plan_memory;
mod pressure_io;
mod remove;
mod stats;
mod values;

pub use group::{Cgroup, JoinPaths};
pub use host::{Host, Mode};
pub use path::CgroupPath;
pub use stats::{
    Cpu, Detail, HugePages, IoDevice, Limits, Memory, Pids, Pressure, PressureLine, Psi, Stats,
    Swap,
};

use std::path::PathBuf;
use std::time::Duration;

/// What can go wrong with a cgroup. Each is one line naming the object, the step and the cause.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation below a hierarchy failed.
    #[error("cgroup {}: {step}: {source}", path.display())]
    Io {
        path: PathBuf,
        step: &'static str,
        source: std::io::Error,
    },
    /// The mount table has no cgroup hierarchy at all.
    #[error("no cgroup hierarchy is mounted")]
    NoHierarchy,
    /// The path cannot name a cgroup.
    #[error("cgroup path {path:?}: {why}")]
    BadPath { path: String, why: &'static str },
    /// CRI-710: a `.slice` parent belongs to the systemd driver, which cairn does not have yet.
    #[error("cgroup parent {parent:?} is a systemd slice: only the cgroupfs driver is supported")]
    SystemdDriver { parent: String },
    /// A limit needs a controller that this host does not have, or has not handed down to here.
    #[error("cgroup {cgroup}: {setting}: the {controller} controller is not available")]
    NoController {
        cgroup: String,
        setting: String,
        controller: String,
    },
    /// A setting that has no counterpart here, or that cairn does not implement.
    #[error("cgroup {cgroup}: {setting} is not supported: {why}")]
    Unsupported {
        cgroup: String,
        setting: String,
        why: &'static str,
    },
    /// A value that no kernel would take.
    #[error("cgroup {cgroup}: {setting}: bad value {value:?}")]
    BadValue {
        cgroup: String,
        setting: String,
        value: String,
    },
    /// The kernel refused one value; all earlier ones of the same call were put back (CRI-137).
    #[error("cgroup {cgroup}: write {value:?} to {file}: {source}{}", restore.as_deref().unwrap_or(""))]
    Write {
        cgroup: String,
        file: String,
        value: String,
        source: std::io::Error,
        /// Set when putting back an earlier value failed too: `"; restoring F failed: why"`.
        restore: Option<String>,
    },
    /// The device filter could not be loaded or attached; the container must not run without it.
    #[error("cgroup {cgroup}: device filter: {step}: {source}")]
    DeviceFilter {
        cgroup: String,
        step: &'static str,
        source: std::io::Error,
    },
    /// A bounded wait ended without the wanted state.
    #[error("cgroup {cgroup}: {step}: not done after {after:?}, {left}")]
    TimedOut {
        cgroup: String,
        step: &'static str,
        after: Duration,
        left: String,
    },
}

pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tree_tests;

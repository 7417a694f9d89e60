//! Cgroups v1, hybrid and v2 behind one face.
//!
//! [`Host::detect`] reads the mount table once and knows for each controller where it lives: a v1
//! hierarchy of its own or the unified tree. A [`Cgroup`] is only a path below all of those trees;
//! whoever holds it may create, limit, read, kill and remove what is there. Nothing is
//! mounted, and nothing outside the named path is changed, except that on v2 controllers are handed
//! down the path (`cgroup.subtree_control`).
//!
//! ```text
//!   absent --create--> empty --(a monitor joins it)--> populated --kill_all--> empty --remove--> absent
//! ```
//! Processes are never moved by pid: a write to `cgroup.procs` waits 7 to 20 ms for RCU. They are
//! born in the unified tree (`CLONE_INTO_CGROUP`) and write `0` into each v1 `tasks` themselves.
//!
//! Two drivers. With cgroupfs all of this is ours to make and remove. With systemd a pod's cgroup is a slice and a
//! container's lies in a scope that systemd makes for us (`systemd`, `scope`; `unit` says where): below the scope
//! everything is as with cgroupfs. Which it is shows in the path, so what one driver made the other one removes.

#![expect(
    clippy::disallowed_methods,
    reason = "cgroups are in memory; what may take long is called by blocking()"
)]

mod apply;
mod bpf;
mod bus;
mod devices;
mod error;
mod group;
mod host;
mod io;
mod kill;
mod open_files;
mod path;
mod plan;
mod plan_cpu;
mod plan_memory;
mod pressure_io;
mod remove;
mod scope;
mod stats;
mod systemd;
mod unit;
mod values;

pub use error::{Error, Result};
pub use group::Cgroup;
pub use host::{Host, Mode, unescape_mount};
pub use open_files::OpenFiles;
pub use path::CgroupPath;
pub use pressure_io::{IoDevice, PressureLine, Psi};
pub use stats::{Cpu, Detail, HugePages, Limits, Memory, Pids, Pressure, Stats, Swap};
pub use systemd::{SYSTEM_BUS, Systemd, Unit};
pub use unit::{from_oci, leaf};

#[cfg(test)]
mod tree_tests;

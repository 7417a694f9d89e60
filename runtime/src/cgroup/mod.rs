//! Cgroups v1, hybrid and v2 behind one interface.
//!
//! [`Host::detect`] reads the mount table once and records the tree of each controller: a v1
//! hierarchy or the unified tree. A [`Cgroup`] is a path below all of those trees; its holder may
//! create, limit, read, kill and remove what is there. Nothing is mounted, and nothing outside the
//! path is changed, except that v2 controllers are delegated along it (`cgroup.subtree_control`).
//!
//! ```text
//!   absent --create--> empty --(monitor joins)--> populated --kill_all--> empty --remove--> absent
//! ```
//! Processes are never moved by pid: a write to `cgroup.procs` waits 7 to 20 ms for RCU. They start
//! in the unified tree (`CLONE_INTO_CGROUP`) and write `0` into each v1 `tasks` themselves.
//!
//! With the systemd driver a pod's cgroup is a slice and a container's is in a scope that systemd
//! makes (`systemd`, `scope`; `unit` has the paths); below the scope all is as with cgroupfs. The
//! path shows the driver, so that each driver can remove the cgroups of the other.

#![expect(
    clippy::disallowed_methods,
    reason = "cgroups are in memory; slow calls go through blocking()"
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

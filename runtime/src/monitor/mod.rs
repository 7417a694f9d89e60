//! The daemon's side of the monitor: spawns it, speaks its protocol, and finds it again after a
//! restart.
//!
//! ```text
//! Launcher::new ──launch──► Monitor ──start──► running ──► wait() = Ending::Exited(Exit) ──► delete()
//!                    │         ▲                       └─► Ending::Lost (the monitor itself died) ──► Launcher::cleanup
//!                    │         └──────────────── Launcher::reattach (after a daemon restart)
//!                    └─► MonitorError: only the caller's objects remain (cgroups, rootfs, dir)
//! ```
//! A [`Monitor`] is a cheap handle, free to clone. It shows the monitor's state and changes none
//! itself. This module does not know CRI. The caller owns the cgroup directories: it makes them
//! before [`Launcher::launch`] and removes them after `delete`.

mod attach;
mod budget;
mod client;
mod error;
mod exec;
mod helpers;
mod incoming;
mod launcher;
mod stream;

pub use attach::{AttachSession, AttachSpec};
pub use budget::Charge;
pub use cairn_monitor::process::Process;
pub use cairn_monitor::record::{CgroupDir, Exit};
pub use client::{Ending, Monitor};
pub use error::{MonitorError, Why};
pub use exec::{ExecEnd, ExecOutput, ExecSession, ExecSpec, process_of};
pub use launcher::{LaunchSpec, Launcher, LauncherConfig, Monitors, Reattached};
pub use stream::{Pty, StreamIn, StreamOut};

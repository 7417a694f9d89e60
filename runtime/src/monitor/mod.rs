//! The daemon's side of the monitor: spawns it, speaks its protocol, finds it again after a restart.
//!
//! ```text
//! Launcher::new ──launch──► Monitor ──start──► running ──► wait() = Ending::Exited(Exit) ──► delete()
//!                    │         ▲                       └─► Ending::Lost (the monitor itself died) ──► Launcher::cleanup
//!                    │         └──────────────── Launcher::reattach (after a daemon restart)
//!                    └─► MonitorError: nothing is left, except what the caller made (cgroups, rootfs, dir)
//! ```
//! A [`Monitor`] is a cheap handle (clone it freely); the state it shows is the monitor's, it changes none itself.
//! Nothing here knows CRI. Cgroup directories are the caller's: made before [`Launcher::launch`], removed after `delete`.

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

//! The keeper process of one container: parent of init, owner of its streams, writer of its log.
//!
//! - `cairn-monitor <dir>`: stdin is a connected socket to the daemon.
//! - `cairn-monitor --cleanup <dir>`: cleans up after a lost monitor.
//! - `cairn-monitor --hold`: keeps a systemd scope from becoming empty.
//! - Called as `pause`: the pause process of a pod (`pause.rs`).
//!
//! One thread, one poll loop, no JSON, no async runtime. It outlives the daemon; a new one connects
//! to `<dir>/ctl.sock`.
//!
//! ```text
//! Empty ─create─► Creating ─► Created ─start─► Running ─► Exited ─delete─► (ends)
//!    │               │           │ init dies ───────────────▲
//!    └───────────────┴───────────┴─ no client is connected: undo everything, end
//! ```
//! Only `life.rs` changes the phase, except for Empty → Creating (`request.rs`).

mod allowance;
mod create;
mod exec;
mod hooking;
mod joiner;
mod life;
mod output;
mod pace;
mod pause;
mod peer;
mod purge;
mod request;
mod server;
mod streams;
mod target;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use cairn_monitor::cgroup::Cgroups;
use cairn_monitor::own_file;
use cairn_monitor::record::{LAUNCH, Launch};
use cairn_monitor::report::PROGRAMS_FD;
use cairn_monitor::sys;
use cairn_monitor::wire::Event;

fn main() -> std::process::ExitCode {
    let mut args = std::env::args_os();
    let is_pause = args
        .next()
        .is_some_and(|name| Path::new(&name).ends_with("pause"));
    let result = match (args.next(), args.next()) {
        (None, None) if is_pause => pause::run(),
        (Some(flag), Some(dir)) if flag == "--cleanup" => cleanup(Path::new(&dir)),
        (Some(flag), None) if flag == "--hold" => hold(),
        (Some(dir), None) => keep(Path::new(&dir)),
        _ => Err(io::Error::other(
            "usage: cairn-monitor [--cleanup] <container directory> | --hold",
        )),
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("cairn-monitor: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn read_launch() -> io::Result<Launch> {
    Launch::decode(&own_file::read(LAUNCH)?)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Changes to the container's directory: socket paths, limited to 107 bytes, stay short.
fn keep(dir: &Path) -> io::Result<()> {
    std::env::set_current_dir(dir)?;
    let launch = read_launch()?;
    // The daemon's session is not ours: a Ctrl-C there must not reach us.
    let _ = sys::setsid(); // fails if we lead a session already
    sys::become_subreaper()?;
    // Nothing in a container may trace us or our children before their execve.
    sys::forbid_dumps()?;
    // The OOM killer takes us last.
    let _ = fs::write("/proc/self/oom_score_adj", "-999"); // refused below the daemon's own score
    let first = sys::dup_above(rustix::stdio::stdin(), 10)?;
    // No other descriptor is open: the number is free, and stays taken.
    std::mem::forget(sys::dup_above(rustix::stdio::stdout(), PROGRAMS_FD)?);
    // `create` passes it on. If the daemon gave none, the helper reports it.
    let mounts = sys::dup_above(rustix::stdio::stderr(), 10)?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // For reporting a failed start to the daemon.
    let report_to = sys::dup_above(first.as_fd(), 10)?;
    match server::Server::new(launch, first, mounts) {
        Ok(server) => {
            drop(report_to);
            server.run()
        }
        Err(e) => {
            let text = format!("start the monitor: {e}");
            let failed = Event::Failed { text }.encode(0);
            sys::write(report_to.as_fd(), &failed)?;
            Err(e)
        }
    }
}

/// Keeps a systemd scope alive until a signal arrives. systemd removes an empty scope at once, and
/// with it the count of OOM kills.
fn hold() -> io::Result<()> {
    let _ = sys::setsid(); // fails if we lead a session already
    sys::wait_signal(&[libc::SIGTERM, libc::SIGINT]).map(drop)
}

/// Removes the processes, sub-groups and state of a lost monitor. Safe to repeat.
fn cleanup(dir: &Path) -> io::Result<()> {
    std::env::set_current_dir(dir)?;
    // Also if that fails, all else is removed.
    let hooks = purge::end_recorded_hooks();
    purge::purge(&Cgroups::new(&read_launch()?.cgroups)).and(hooks)
}

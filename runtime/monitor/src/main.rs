//! The keeper process of one container: parent of its init, holder of its streams, writer of its log.
//!
//! `cairn-monitor <dir>`, stdin a connected socket to the daemon; or `cairn-monitor --cleanup <dir>` after a monitor
//! was lost. Called as `pause` it is the pause process of a pod instead (`pause.rs`). One thread, one poll loop, no JSON, no runtime. It outlives the daemon; a new one connects to
//! `<dir>/ctl.sock`.
//!
//! ```text
//! Empty ─create─► Creating ─► Created ─start─► Running ─► Exited ─delete─► (ends)
//!    │               │           │ init dies ───────────────▲
//!    └───────────────┴───────────┴─ nobody is connected: undo all, end
//! ```
//! Only `server.rs` changes the phase.

mod create;
mod output;
mod pause;
mod peer;
mod request;
mod server;
mod session;

use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;

use cairn_monitor::cgroup::Cgroups;
use cairn_monitor::record::{CTL, LAUNCH, Launch};
use cairn_monitor::report::{CONSOLE, STATE};
use cairn_monitor::sys;

fn main() -> std::process::ExitCode {
    let mut args = std::env::args_os();
    let is_pause = args
        .next()
        .is_some_and(|name| Path::new(&name).ends_with("pause"));
    let result = match (args.next(), args.next()) {
        (None, None) if is_pause => pause::run(),
        (Some(flag), Some(dir)) if flag == "--cleanup" => cleanup(Path::new(&dir)),
        (Some(dir), None) => keep(Path::new(&dir)),
        _ => Err(io::Error::other(
            "usage: cairn-monitor [--cleanup] <container directory>",
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
    Launch::decode(&fs::read(LAUNCH)?).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// The container's directory becomes the working directory: every path in it is short then (sockets allow 107 bytes).
fn keep(dir: &Path) -> io::Result<()> {
    std::env::set_current_dir(dir)?;
    let launch = read_launch()?;
    // The daemon started us in its session; a Ctrl-C there is not for us. Fails if we lead one already.
    let _leader_already = sys::setsid();
    sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1)?;
    // Nothing in a container may trace us or our children before their execve.
    sys::prctl(libc::PR_SET_DUMPABLE, 0)?;
    // Last to be killed for memory; refused where the daemon's own score may not be lowered.
    let _refused = fs::write("/proc/self/oom_score_adj", "-999");
    // SAFETY: descriptor 0 is the socket the daemon gave us; nothing else in this process uses it.
    #[allow(unsafe_code)]
    let daemon = unsafe { OwnedFd::from_raw_fd(0) };
    let first = sys::dup_above(std::os::fd::AsFd::as_fd(&daemon), 10)?;
    let null = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    sys::dup_to(std::os::fd::AsRawFd::as_raw_fd(&null), 0)?;
    std::mem::forget(daemon); // 0 is /dev/null from now on and stays open.
    server::Server::new(launch, first)?.run()
}

/// What a lost monitor left: processes, sub-groups, state. Safe to repeat.
fn cleanup(dir: &Path) -> io::Result<()> {
    std::env::set_current_dir(dir)?;
    purge(&Cgroups::new(&read_launch()?.cgroups))
}

/// Undoes everything but what the daemon made.
fn purge(cgroups: &Cgroups) -> io::Result<()> {
    cgroups.kill_all()?;
    cgroups.remove_sessions()?;
    match fs::remove_dir_all(STATE) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    for name in [CTL, CONSOLE] {
        match fs::remove_file(name) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

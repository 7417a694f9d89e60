//! The keeper process of one container: parent of its init, holder of its streams, writer of its log.
//!
//! `cairn-monitor <dir>`, stdin a connected socket to the daemon; or `cairn-monitor --cleanup <dir>` after a monitor
//! was lost; or `cairn-monitor --hold`, which keeps a systemd scope from being empty. Called as `pause` it is the pause process of a pod instead (`pause.rs`). One thread, one poll loop, no JSON, no runtime. It outlives the daemon; a new one connects to
//! `<dir>/ctl.sock`.
//!
//! ```text
//! Empty ─create─► Creating ─► Created ─start─► Running ─► Exited ─delete─► (ends)
//!    │               │           │ init dies ───────────────▲
//!    └───────────────┴───────────┴─ nobody is connected: undo all, end
//! ```
//! Only `life.rs` changes the phase, and `request.rs` to Creating.

mod create;
mod joiner;
mod life;
mod output;
mod pause;
mod peer;
mod purge;
mod request;
mod server;
mod session;
mod target;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use cairn_monitor::cgroup::Cgroups;
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
    Launch::decode(&fs::read(LAUNCH)?).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// The container's directory becomes the working directory: every path in it is short then (sockets allow 107 bytes).
fn keep(dir: &Path) -> io::Result<()> {
    std::env::set_current_dir(dir)?;
    let launch = read_launch()?;
    // The daemon started us in its session; a Ctrl-C there is not for us. Fails if we lead one already.
    let _ = sys::setsid();
    sys::become_subreaper()?;
    // Nothing in a container may trace us or our children before their execve.
    sys::forbid_dumps()?;
    // Last to be killed for memory; refused where the daemon's own score may not be lowered.
    let _refused = fs::write("/proc/self/oom_score_adj", "-999");
    let first = sys::dup_above(rustix::stdio::stdin(), 10)?;
    // Nothing else has been opened: it gets this number, and keeps it.
    std::mem::forget(sys::dup_above(rustix::stdio::stdout(), PROGRAMS_FD)?);
    // Given away at `create`; none where it was not given (the helper will say so).
    let mounts = sys::dup_above(rustix::stdio::stderr(), 10)?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    // So that the daemon hears why, not only that we are gone.
    let answer = sys::dup_above(first.as_fd(), 10)?;
    match server::Server::new(launch, first, mounts) {
        Ok(server) => {
            drop(answer);
            server.run()
        }
        Err(e) => {
            let text = format!("start the monitor: {e}");
            let failed = Event::Failed { text }.encode(0);
            sys::write(answer.as_fd(), &failed)?;
            Err(e)
        }
    }
}

/// Until a signal ends it: systemd takes a scope away, and with it the count of its OOM kills, the moment that nothing
/// runs in it.
fn hold() -> io::Result<()> {
    // The process may lead its session already.
    let _ = sys::setsid();
    sys::wait_signal(&[libc::SIGTERM, libc::SIGINT]).map(drop)
}

/// What a lost monitor left: processes, sub-groups, state. Safe to repeat.
fn cleanup(dir: &Path) -> io::Result<()> {
    std::env::set_current_dir(dir)?;
    purge::purge(&Cgroups::new(&read_launch()?.cgroups))
}

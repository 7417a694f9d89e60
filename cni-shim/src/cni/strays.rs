//! Plugins that a daemon which was killed had begun, and what they had started, such as an `nft`: they go on without it,
//! and what they add after the DEL that is to undo it stays for ever.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// What the kernel does not let go in this time is left to itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// Kills whatever an operation on this sandbox left running, and waits until it is gone. It is known by its environment,
/// which only those have from us who take part in such an operation. Blocks.
pub(super) fn end(sandbox_id: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Again until there is none: one that was killed may have started another a moment before.
        let found = find(sandbox_id);
        if found.is_empty() {
            return;
        }
        for (pid, process) in &found {
            tracing::info!(
                sandbox = sandbox_id,
                pid,
                "kill what an earlier CNI operation left running"
            );
            let _ended_already = pidfd_send_signal(process, Signal::KILL);
        }
        for (pid, process) in &found {
            if !ends_until(process, deadline) {
                tracing::warn!(
                    sandbox = sandbox_id,
                    pid,
                    "what an earlier CNI operation left running does not die"
                );
                return;
            }
        }
    }
}

fn find(sandbox_id: &str) -> Vec<(i32, OwnedFd)> {
    let id = format!("CNI_CONTAINERID={sandbox_id}");
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            // Opened first, so that it is the same process whose environment is read and that is killed.
            let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
            let environment = fs::read(entry.path().join("environ")).ok()?;
            let has = |what: &[u8]| environment.split(|byte| *byte == 0).any(|one| one == what);
            has(id.as_bytes()).then_some((pid, process))
        })
        .collect()
}

fn ends_until(process: &OwnedFd, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).ok();
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    matches!(poll(&mut ended, left.as_ref()), Ok(1))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A plugin with a child in a session of its own, as a helper of `nft` may be; both run.
    fn plugin(sandbox_id: &str) -> (Child, i32) {
        let mut shell = Command::new("sh")
            .args(["-c", "setsid sh -c 'echo $$; exec sleep 1000' & wait"])
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", sandbox_id)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pid = String::new();
        let said = shell.stdout.as_mut().unwrap();
        BufReader::new(said).read_line(&mut pid).unwrap();
        (shell, pid.trim().parse().unwrap())
    }

    #[test]
    fn what_an_operation_left_running_is_gone_and_its_neighbours_is_not() {
        let (mut ours, below) = plugin("strays-ours");
        let (mut others, _) = plugin("strays-ours-not");
        let child = pidfd_open(Pid::from_raw(below).unwrap(), PidfdFlags::empty()).unwrap();
        end("strays-ours");
        assert!(ends_until(&child, Instant::now()));
        assert!(!ours.wait().unwrap().success());
        assert_eq!(find("strays-ours-not").len(), 2);
        end("strays-ours-not");
        assert!(!others.wait().unwrap().success());
        assert!(find("strays-ours-not").is_empty());
    }
}

//! Ends processes left by a killed daemon's ADD: plugins and their children, such as an `nft`,
//! continue without it, and would add resources after the DEL that must undo them.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Processes that take longer are left running: a removal waits no longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Limit of a read environment: a process can declare any of its memory as such.
const ENVIRONMENT_MAX: u64 = 1 << 20;
/// Limit of processes per round: each takes a descriptor.
const AT_ONCE: usize = 64;

/// Kills processes left by an operation on this sandbox, and waits for their end.
pub(super) async fn end(sandbox_id: &str) {
    let id = sandbox_id.to_owned();
    let ending = tokio::task::spawn_blocking(move || end_until(&id, Instant::now() + PATIENCE));
    // Reading a process that is stuck in the kernel may block.
    let why = match tokio::time::timeout(PATIENCE * 2, ending).await {
        Ok(Ok(Ok(()))) => return,
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "reading a process blocks".to_owned(),
    };
    tracing::warn!(
        sandbox = sandbox_id,
        why,
        "processes of an earlier daemon's CNI operation may still run"
    );
}

fn end_until(sandbox_id: &str, deadline: Instant) -> io::Result<()> {
    // Repeated until none is found: a killed process may have just started another.
    while Instant::now() < deadline {
        let found = find(sandbox_id, deadline)?;
        if found.is_empty() {
            return Ok(());
        }
        for (pid, process) in &found {
            tracing::info!(
                sandbox = sandbox_id,
                pid,
                "killing a process left by an earlier daemon's CNI operation"
            );
            let _ = pidfd_send_signal(process, Signal::KILL); // it may have ended
        }
        for (_, process) in &found {
            wait_until(process, deadline)?;
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Finds processes of our PID namespace with the sandbox's id in a plugin's environment.
fn find(sandbox_id: &str, deadline: Instant) -> io::Result<Vec<(i32, OwnedFd)>> {
    let id = format!("CNI_CONTAINERID={sandbox_id}");
    let ours = pid_namespace(Path::new("/proc/self"))?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let (name, path) = entry.map(|entry| (entry.file_name(), entry.path()))?;
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if found.len() == AT_ONCE || Instant::now() > deadline {
            break;
        }
        if !pid_namespace(&path).is_ok_and(|its| its == ours) {
            continue;
        }
        // Opened first, so that the same process is read and killed.
        let process = match Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(process)) => process,
            Some(Err(error)) if error == Errno::MFILE || error == Errno::NFILE => {
                return Err(error.into());
            }
            _ => continue,
        };
        if environment(&path)
            .is_ok_and(|all| all.split(|b| *b == 0).any(|one| one == id.as_bytes()))
        {
            found.push((pid, process));
        }
    }
    Ok(found)
}

fn pid_namespace(process: &Path) -> io::Result<PathBuf> {
    fs::read_link(process.join("ns/pid"))
}

fn environment(process: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(process.join("environ"))?;
    file.take(ENVIRONMENT_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn wait_until(process: &OwnedFd, deadline: Instant) -> io::Result<()> {
    let left = || Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    match retry_on_intr(|| poll(&mut ended, left().as_ref()))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn soon() -> Instant {
        Instant::now() + PATIENCE
    }

    /// A plugin with a child in its own session, like a helper of `nft`; both run.
    fn plugin(sandbox_id: &str) -> (Child, i32) {
        let mut shell = Command::new("sh")
            .args(["-c", "setsid sh -c 'echo $$; exec sleep 1000' & wait"])
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", sandbox_id)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pid = String::new();
        let output = shell.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut pid).unwrap();
        let pid = pid.trim().parse().unwrap();
        // During the execve of `sleep` its environment is empty.
        let sleeps = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() == "sleep\n";
        while !sleeps() {
            std::thread::sleep(Duration::from_millis(1));
        }
        (shell, pid)
    }

    #[tokio::test]
    async fn leftovers_of_an_operation_end_and_a_neighbours_do_not() {
        let id = format!("strays-{}", std::process::id());
        let neighbours = format!("{id}-not");
        let (mut ours, below) = plugin(&id);
        let (mut others, _) = plugin(&neighbours);
        let child = pidfd_open(Pid::from_raw(below).unwrap(), PidfdFlags::empty()).unwrap();
        end(&id).await;
        wait_until(&child, Instant::now()).unwrap();
        assert!(!ours.wait().unwrap().success());
        assert_eq!(find(&neighbours, soon()).unwrap().len(), 2);
        end(&neighbours).await;
        assert!(!others.wait().unwrap().success());
        assert!(find(&neighbours, soon()).unwrap().is_empty());
    }

    #[test]
    fn a_lack_of_time_is_an_error() {
        let past = Instant::now();
        assert!(end_until("strays-of-none", past).is_err());
    }
}

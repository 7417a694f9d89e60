//! The peer of a connection: its user, and the program of the process that connected.
//!
//! The kernel records both at the moment of the connection. The process is examined through a pidfd
//! from the kernel (`SO_PEERPIDFD`), which stays correct if the pid is reused. A connection can be
//! passed on, and a process can start another program: any process that may run the expected
//! program, or has its user, can pass for it.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::sys::socket::{getsockopt, sockopt};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{AtFlags, CWD, StatxFlags, statx},
};
use tokio::{
    net::{UnixStream, unix::UCred},
    sync::Semaphore,
};

/// Programs examined at once. A file system that does not answer occupies each of them.
const LOOKUPS: usize = 4;

/// Required process of a plugin that connects under the id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerRule {
    pub uid: Option<u32>,
    /// Compared by device and inode.
    pub program: Option<PathBuf>,
}

/// The process that made a connection.
#[derive(Debug)]
pub struct Identity {
    pub(crate) uid: u32,
    /// `None` if its PID namespace is not below ours.
    pub(crate) pid: Option<u32>,
    pidfd: Result<OwnedFd, String>,
}

/// `None` if the PID namespace of the peer is not below ours.
pub(crate) fn pid_of(cred: &UCred) -> Option<u32> {
    let pid = cred.pid().and_then(|pid| u32::try_from(pid).ok());
    pid.filter(|pid| *pid != 0)
}

impl Identity {
    pub fn of(stream: &UnixStream) -> std::io::Result<Self> {
        let cred = stream.peer_cred()?;
        Ok(Self {
            uid: cred.uid(),
            pid: pid_of(&cred),
            pidfd: getsockopt(stream, sockopt::PeerPidfd).map_err(|error| error.to_string()),
        })
    }

    /// Of an in-memory connection.
    #[cfg(feature = "sim")]
    pub(crate) fn unknown() -> Self {
        Self {
            uid: 0,
            pid: None,
            pidfd: Err("a connection of memory".to_owned()),
        }
    }

    /// Checks that the peer fulfils the rule.
    ///
    /// # Errors
    /// The difference, or why it cannot be determined.
    pub(crate) async fn verify(
        self: &Arc<Self>,
        rule: &PeerRule,
        lookups: &Arc<Semaphore>,
    ) -> Result<(), String> {
        if let Some(uid) = rule.uid
            && uid != self.uid
        {
            let own = self.uid;
            return Err(format!("its process has user {own}, must have {uid}"));
        }
        let Some(program) = rule.program.clone() else {
            return Ok(());
        };
        let turn = lookups.clone().try_acquire_owned();
        let turn = turn.map_err(|_| "programs of others are still being looked up".to_owned())?;
        let own = self.clone();
        // A file system that does not answer must not block a worker.
        let looked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            own.runs(&program)
        });
        looked.await.map_err(|error| error.to_string())?
    }

    fn runs(&self, program: &Path) -> Result<(), String> {
        let because = |why: &str| format!("the program of its process is not known: {why}");
        let pidfd = self.pidfd.as_ref();
        let pidfd = pidfd.map_err(|why| because(&format!("SO_PEERPIDFD (Linux 6.5): {why}")))?;
        let pid = self.pid;
        let pid = pid.ok_or_else(|| because("it is in a PID namespace of others"))?;
        let running = file(Path::new(&format!("/proc/{pid}/exe")));
        let running = running.map_err(|error| because(&error.to_string()))?;
        // The process still exists, so the pid was not reused.
        if has_ended(pidfd) {
            return Err(because("it has ended"));
        }
        let wanted = file(program).map_err(|error| format!("program {program:?}: {error}"))?;
        if running == wanted {
            Ok(())
        } else {
            Err(format!("its process does not run {program:?}"))
        }
    }
}

/// Device and inode, as far as they are known without a request to a server.
fn file(path: &Path) -> rustix::io::Result<(u32, u32, u64)> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO)?;
    Ok((found.stx_dev_major, found.stx_dev_minor, found.stx_ino))
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut waited = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
    !matches!(poll(&mut waited, Some(&Timespec::default())), Ok(0))
}

/// Permits for look-ups.
pub(crate) fn lookups() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(LOOKUPS))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    async fn checked(identity: &Arc<Identity>, rule: PeerRule) -> Result<(), String> {
        identity.verify(&rule, &lookups()).await
    }

    #[tokio::test]
    async fn a_process_is_its_user_and_the_file_it_runs_whatever_the_name() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let own = Arc::new(Identity::of(&ours).unwrap());
        let is = |uid, program: &Path| PeerRule {
            uid: Some(uid),
            program: Some(program.to_owned()),
        };
        let exe = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&exe, &link).unwrap();
        let copy = dir.path().join(exe.file_name().unwrap());
        std::fs::write(&copy, "another").unwrap();
        for (rule, why) in [
            (is(own.uid, &exe), None),
            (is(own.uid, &link), None),
            (is(own.uid + 1, &exe), Some("must have")),
            (is(own.uid, &copy), Some("does not run")),
            (is(own.uid, &dir.path().join("gone")), Some("No such file")),
        ] {
            let checked = checked(&own, rule).await;
            let answers = checked
                .as_ref()
                .err()
                .map(String::as_str)
                .unwrap_or_default();
            assert!(answers.contains(why.unwrap_or_default()), "{answers}");
            assert_eq!(checked.is_ok(), why.is_none(), "{answers}");
        }
    }

    /// The pid still exists and a child of ours has connected; then the child ends.
    #[tokio::test]
    async fn a_process_that_has_ended_proves_nothing() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut own = Identity::of(&ours).unwrap();
        drop(theirs);
        let mut child = Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        own.pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
            .map_err(|error| error.to_string());
        child.kill().unwrap();
        child.wait().unwrap();
        // Our own pid simulates a reused pid: its program matches, the process does not.
        let rule = PeerRule {
            uid: None,
            program: Some(std::env::current_exe().unwrap()),
        };
        let refused = checked(&Arc::new(own), rule).await.unwrap_err();
        assert!(refused.contains("it has ended"), "{refused}");
    }
}

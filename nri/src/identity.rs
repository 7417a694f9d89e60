//! Who is behind a connection: the user, and the program of the process that made it.
//!
//! The kernel names both as of the moment of the connection. The process is looked at through a pidfd of the
//! kernel's own (`SO_PEERPIDFD`), so that a pid that was given to another process meanwhile proves nothing. A connection can
//! be handed on, and a process can start another program: who may start the program that is asked for can pass
//! for it, and who has its user as well.

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
use tokio::{net::UnixStream, sync::Semaphore};

/// Programs that are looked at at once. A file system that does not answer keeps each of them busy.
const LOOKUPS: usize = 4;

/// What a plugin's process must be, so that it may connect under the id.
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
    /// `None` where it is in a PID namespace that is not below ours.
    pub(crate) pid: Option<u32>,
    pidfd: Result<OwnedFd, String>,
}

impl Identity {
    pub fn of(stream: &UnixStream) -> std::io::Result<Self> {
        let cred = stream.peer_cred()?;
        let pid = cred.pid().and_then(|pid| u32::try_from(pid).ok());
        Ok(Self {
            uid: cred.uid(),
            pid: pid.filter(|pid| *pid != 0),
            pidfd: getsockopt(stream, sockopt::PeerPidfd).map_err(|error| error.to_string()),
        })
    }

    /// Of a connection of memory.
    #[cfg(feature = "sim")]
    pub(crate) fn unknown() -> Self {
        Self {
            uid: 0,
            pid: None,
            pidfd: Err("a connection of memory".to_owned()),
        }
    }

    /// Whether it is who it must be.
    ///
    /// # Errors
    /// In what it differs, or why that cannot be known.
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
        // A file system that does not answer must not hold a worker.
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
        // Its pid was its own until now, or it would have ended.
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

/// Device and inode, as far as they are known without asking a server.
fn file(path: &Path) -> rustix::io::Result<(u32, u32, u64)> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO)?;
    Ok((found.stx_dev_major, found.stx_dev_minor, found.stx_ino))
}

fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut waited = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
    !matches!(poll(&mut waited, Some(&Timespec::default())), Ok(0))
}

/// The turns of look-ups.
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
            let said = checked
                .as_ref()
                .err()
                .map(String::as_str)
                .unwrap_or_default();
            assert!(said.contains(why.unwrap_or_default()), "{said}");
            assert_eq!(checked.is_ok(), why.is_none(), "{said}");
        }
    }

    /// The pid is still there, and a child of ours has made the connection: then it ends.
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
        // Our own pid stands for one that was used again: its program is the right one, the process is not.
        let rule = PeerRule {
            uid: None,
            program: Some(std::env::current_exe().unwrap()),
        };
        let refused = checked(&Arc::new(own), rule).await.unwrap_err();
        assert!(refused.contains("it has ended"), "{refused}");
    }
}

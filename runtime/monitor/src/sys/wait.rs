//! Children: their ends and, for traced ones, their stops.
//!
//! A process of a container can make its parent, the monitor, its tracer (PTRACE_TRACEME). wait4(2)
//! and waitid(2) then also return each of its ptrace-stops, whatever the options ask for. A stop is
//! not an end: the child is detached with its signal, as if nobody traced it, and without the signal
//! that the kernel adds when a traced process executes a program. A job control stop of
//! an untraced child is not returned, and lasts until SIGCONT.
//!
//! All waits of the monitor, the pause process and `cairn-create` are here. The pause process waits
//! by wait4(2), and may call nothing else. Its filter also refuses the detachment, so an orphan
//! that makes it its tracer stays stopped, as under any other process 1.

use std::io;

use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions};

use super::raw::{self, pid};

/// Exit status of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Exit code, or 128 + signal.
    pub code: i32,
    pub signal: i32,
}

/// A change of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaped {
    /// A process, or a traced thread: its number and its status.
    Ended(i32, Status),
    /// A traced child was stopped, and runs again.
    Released,
}

/// Reaps one ended child or releases a stopped one, if there is one.
pub fn reap() -> Option<Reaped> {
    wait(None, WaitOptions::NOHANG).ok()?
}

/// Waits until this process has no children.
pub fn reap_all() {
    while let Ok(Some(_)) = retry_on_intr(|| wait(None, WaitOptions::empty())) {}
}

/// Waits for the end of this child.
pub fn reap_child(child: i32) -> io::Result<Status> {
    let child = pid(child)?;
    loop {
        let reaped = retry_on_intr(|| wait(Some(child), WaitOptions::empty()))?;
        if let Reaped::Ended(_, status) = reaped.ok_or(Errno::CHILD)? {
            return Ok(status);
        }
    }
}

fn wait(child: Option<Pid>, options: WaitOptions) -> rustix::io::Result<Option<Reaped>> {
    let changed = match child {
        Some(child) => rustix::process::waitpid(Some(child), options),
        // waitpid of none would be of the own process group.
        None => rustix::process::wait(options),
    };
    let Some((child, status)) = changed? else {
        return Ok(None);
    };
    let child = child.as_raw_nonzero().get();
    if let Some(signal) = status.stopping_signal() {
        let signal = if raw::has_executed(child) { 0 } else { signal };
        let _ = raw::detach(child, signal); // it may have been killed meanwhile
        return Ok(Some(Reaped::Released));
    }
    let signal = status.terminating_signal().unwrap_or(0);
    let code = status.exit_status().unwrap_or(128 + signal);
    Ok(Some(Reaped::Ended(child, Status { code, signal })))
}

/// Whether this process has this child, alive or not yet reaped.
pub fn is_child(child: i32) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    pid(child).is_ok_and(|pid| rustix::process::waitid(WaitId::Pid(pid), options).is_ok())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use std::os::fd::AsFd;

    use super::raw::children::{fork, trace_me};
    use super::*;
    use crate::sys::{Fork, exit_now, fork_into, kill, outlive_parent, pipe, poll, read, write};

    fn own_pid() -> i32 {
        rustix::process::getpid().as_raw_nonzero().get()
    }

    /// The letter of its state, of a process or thread.
    fn state(pid: i32) -> char {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat[stat.rfind(')').unwrap() + 2..].chars().next().unwrap()
    }

    fn until(what: &str, mut is_true: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_true() {
            assert!(Instant::now() < deadline, "{what}");
            poll(&mut [], 2).unwrap();
        }
    }

    /// As [`reap`], for this child only: other tests of this process have children too.
    fn next(child: i32) -> Option<Reaped> {
        let mut reaped = None;
        until("the child changes", || {
            reaped = wait(Some(pid(child).unwrap()), WaitOptions::NOHANG).unwrap();
            reaped.is_some()
        });
        reaped
    }

    const KILLED: Status = Status {
        code: 137,
        signal: libc::SIGKILL,
    };

    #[test]
    fn a_traced_child_that_executes_a_program_runs_it() {
        let child = fork(|| {
            trace_me();
            let argv = ["sh", "-c", "exit 7"].map(|word| word.as_bytes().to_vec());
            let argv = crate::sys::ExecVector::new(&argv).unwrap();
            let env = crate::sys::ExecVector::new(&[]).unwrap();
            let _ = crate::sys::execve(c"/bin/sh", &argv, &env); // returns only on failure
            exit_now(99)
        });
        assert_eq!(next(child), Some(Reaped::Released));
        let status = Status { code: 7, signal: 0 };
        assert_eq!(next(child), Some(Reaped::Ended(child, status)));
    }

    #[test]
    fn a_stop_of_a_traced_child_is_not_its_end_and_it_runs_on() {
        let child = fork(|| {
            trace_me();
            // The default action of SIGCHLD is to ignore it, as is a handler's that returns.
            let _ = kill(own_pid(), libc::SIGCHLD); // cannot fail
            exit_now(7)
        });
        assert_eq!(next(child), Some(Reaped::Released));
        let status = Status { code: 7, signal: 0 };
        assert_eq!(next(child), Some(Reaped::Ended(child, status)));
        assert!(!is_child(child));
    }

    #[test]
    fn children_of_all_process_groups_are_reaped() {
        // In a process without children of other tests.
        let parent = fork(|| {
            let child = fork(|| {
                let own_group = crate::sys::setsid().is_ok();
                trace_me();
                let _ = kill(own_pid(), libc::SIGCHLD); // cannot fail
                exit_now(if own_group { 9 } else { 97 })
            });
            let mut released = 0;
            loop {
                match reap() {
                    None => drop(poll(&mut [], 1)),
                    Some(Reaped::Released) => released += 1,
                    Some(Reaped::Ended(pid, Status { code, .. })) if pid == child => {
                        exit_now(code + released)
                    }
                    Some(_) => exit_now(96),
                }
            }
        });
        let status = Status {
            code: 10,
            signal: 0,
        };
        assert_eq!(reap_child(parent).unwrap(), status);
    }

    #[test]
    fn a_child_may_have_itself_traced_again_and_the_wait_for_its_end_sees_only_that() {
        let child = fork(|| {
            for _ in 0..100 {
                trace_me();
                let _ = kill(own_pid(), libc::SIGCHLD); // cannot fail
            }
            exit_now(3)
        });
        assert_eq!(reap_child(child).unwrap(), Status { code: 3, signal: 0 });
    }

    #[test]
    fn a_traced_child_gets_the_signal_that_stopped_it() {
        let child = fork(|| {
            trace_me();
            let _ = kill(own_pid(), libc::SIGTERM); // cannot fail
            exit_now(0)
        });
        let signal = libc::SIGTERM;
        let code = 128 + signal;
        assert_eq!(reap_child(child).unwrap(), Status { code, signal });
    }

    #[test]
    fn a_traced_child_that_stops_itself_stays_stopped_until_it_is_continued() {
        let child = fork(|| {
            trace_me();
            let _ = kill(own_pid(), libc::SIGSTOP); // cannot fail
            exit_now(5)
        });
        assert_eq!(next(child), Some(Reaped::Released));
        stays_stopped_until_continued(child, 5);
    }

    #[test]
    fn a_fork_dies_with_its_parent_unless_it_chose_to_outlive_it() {
        for outlives in [false, true] {
            let (waits, go) = pipe().unwrap();
            let (seen, alive) = pipe().unwrap();
            let say = |text: &[u8]| drop(write(alive.as_fd(), text)); // else the test fails
            let parent = fork(|| {
                if let Ok(Fork::Child) = fork_into(None) {
                    let chosen = outlives.then(outlive_parent);
                    say(if chosen.is_none_or(|c| c.is_ok()) {
                        b"1"
                    } else {
                        b""
                    });
                    let _ = read(waits.as_fd(), &mut [0]); // or it is killed
                    say(b"2");
                    exit_now(0)
                }
                let _ = poll(&mut [], -1); // until it is killed
            });
            assert_eq!(read(seen.as_fd(), &mut [0]).unwrap(), 1);
            kill(parent, libc::SIGKILL).unwrap();
            // The kernel sends the death signal before a process can be reaped.
            assert_eq!(reap_child(parent).unwrap(), KILLED);
            write(go.as_fd(), &[1]).unwrap();
            drop(alive);
            let answers = read(seen.as_fd(), &mut [0]).unwrap();
            assert_eq!(answers, usize::from(outlives));
        }
    }

    #[test]
    fn a_job_control_stop_is_not_returned_and_lasts() {
        let child = fork(|| {
            let _ = kill(own_pid(), libc::SIGSTOP); // cannot fail
            exit_now(6)
        });
        stays_stopped_until_continued(child, 6);
    }

    fn stays_stopped_until_continued(child: i32, code: i32) {
        // T is a job control stop, t a ptrace-stop.
        until("the child stops", || state(child) == 'T');
        for _ in 0..20 {
            let reaped = wait(Some(pid(child).unwrap()), WaitOptions::NOHANG);
            assert_eq!(reaped, Ok(None));
            poll(&mut [], 1).unwrap();
        }
        assert!(state(child) == 'T' && is_child(child));
        kill(child, libc::SIGCONT).unwrap();
        let status = Status { code, signal: 0 };
        assert_eq!(next(child), Some(Reaped::Ended(child, status)));
    }

    #[test]
    fn a_question_for_a_child_takes_neither_its_stop_nor_its_end() {
        let child = fork(|| {
            trace_me();
            let _ = kill(own_pid(), libc::SIGCHLD); // cannot fail
            let _ = poll(&mut [], -1); // until it is killed
            exit_now(1)
        });
        until("the child stops", || state(child) == 't');
        assert!(is_child(child));
        assert_eq!(next(child), Some(Reaped::Released));
        until("the child sleeps", || state(child) == 'S');
        kill(child, libc::SIGKILL).unwrap();
        until("the child ends", || state(child) == 'Z');
        assert!(is_child(child));
        assert_eq!(next(child), Some(Reaped::Ended(child, KILLED)));
        assert!(!is_child(child) && !is_child(0) && !is_child(-1));
    }
}

//! Ends processes by their descent, whatever cgroup, session or process group they are in.
//!
//! OCI hooks after the start are in no cgroup of the container: its program could use up their
//! memory or processes. A helper that stops early is in none yet. But an ancestor that adopts
//! orphans (PR_SET_CHILD_SUBREAPER) keeps them all below itself, except for processes that enter
//! another PID namespace and lose their parent there.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::record::Pid;
use crate::stat::{self, Stat};
use crate::sys;

/// Limit for killed processes to exit.
const ENDING: Duration = Duration::from_secs(2);

/// A living process and its parent.
type Descent = (i32, i32);

/// Kills everything below a process that adopts orphans and starts no process meanwhile, and waits
/// for its end (bounded). Returns whether there was anything.
///
/// # Errors
/// A process does not end.
pub fn end_below(root: i32) -> io::Result<bool> {
    let mut found = false;
    until_ended(|| {
        let below = living_below(root);
        found |= !below.is_empty();
        below.iter().for_each(kill);
        below.is_empty()
    })
    .map(|()| found)
}

/// Ends a recorded process, which adopts orphans, and everything below it. One that has ended
/// already is success.
///
/// # Errors
/// A process does not end; it is killed nevertheless.
pub fn end_tree(root: &Pid) -> io::Result<()> {
    let Ok(pidfd) = sys::pidfd_open(root.pid) else {
        return Ok(());
    };
    // The descriptor is of the process that has this number now.
    let is_it = |stat: Stat| stat.start_time == root.start_time;
    if !Stat::of(root.pid).is_ok_and(is_it) || stat::boot_id()? != root.boot_id {
        return Ok(());
    }
    let below = until_ended(|| {
        // A stopped process starts no other and reaps none.
        if sys::pidfd_signal(pidfd.as_fd(), libc::SIGSTOP).is_err() {
            return true;
        }
        let is_still = match Stat::of(root.pid) {
            Ok(stat) => stat.state == 'T' || stat.has_ended(),
            Err(_) => true,
        };
        let mut below = living_below(root.pid);
        if below.is_empty() {
            // The kernel's lists can leave out a child while another one ends or moves.
            let found = living(searched_children(root.pid), root.pid);
            below.extend(found);
        }
        below.iter().for_each(kill);
        is_still && below.is_empty()
    });
    // It may have ended.
    let _ = sys::pidfd_signal(pidfd.as_fd(), libc::SIGKILL);
    sys::poll_one(pidfd.as_fd(), libc::POLLIN, ENDING.as_millis() as i32)?;
    below
}

/// Repeats a step until it returns true twice in a row: a search can miss an orphan that has just
/// moved to its new parent, and the next one finds it there.
fn until_ended(mut step: impl FnMut() -> bool) -> io::Result<()> {
    let deadline = Instant::now() + ENDING;
    let mut pause = 1;
    let mut in_a_row = 0;
    loop {
        if step() {
            in_a_row += 1;
            if in_a_row == 2 {
                return Ok(());
            }
            continue;
        }
        in_a_row = 0;
        if Instant::now() > deadline {
            let text = "killed processes did not exit";
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        sys::poll(&mut [], pause)?;
        pause = (pause * 2).min(20);
    }
}

fn kill(&(pid, parent): &Descent) {
    let Ok(pidfd) = sys::pidfd_open(pid) else {
        return;
    };
    // The descriptor may be of a later process of this number, with another parent. An orphan is
    // found again below its new parent.
    if Stat::of(pid).is_ok_and(|stat| stat.parent == parent) {
        let _ = sys::pidfd_signal(pidfd.as_fd(), libc::SIGKILL); // it may have exited
    }
}

fn living_below(root: i32) -> Vec<Descent> {
    let has_lists = Path::new("/proc/thread-self/children").exists();
    let children = if has_lists {
        listed_children
    } else {
        searched_children
    };
    let mut found: Vec<Descent> = Vec::new();
    let mut above = vec![root];
    while let Some(parent) = above.pop() {
        let below = living(children(parent), parent);
        above.extend(below.iter().map(|(pid, _)| *pid));
        found.extend(below);
    }
    found
}

/// Those of the processes that live and have this parent.
fn living(pids: Vec<i32>, parent: i32) -> Vec<Descent> {
    let lives = |pid: &i32| Stat::of(*pid).is_ok_and(|s| s.parent == parent && !s.has_ended());
    let pids = pids.into_iter().filter(lives);
    pids.map(|pid| (pid, parent)).collect()
}

fn listed_children(parent: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{parent}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let lists: Vec<String> = lists.collect();
    let numbers = lists.iter().flat_map(|list| list.split_whitespace());
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// For kernels without lists of children (CONFIG_PROC_CHILDREN).
fn searched_children(parent: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| Stat::of(*pid).is_ok_and(|stat| stat.parent == parent))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{ExecVector, become_subreaper, children, execve, exit_now};

    /// A process that adopts orphans and does not end by itself, and below it four in three sessions,
    /// one of them an orphan.
    fn tree() -> i32 {
        const SCRIPT: &str = "setsid sh -c 'sleep 1001 & exec sleep 1002' & \
            (setsid sh -c 'trap \"\" TERM HUP; sleep 1003; exit' &); sleep 1004; exec sleep 1005";
        let argv = ["sh", "-c", SCRIPT].map(|word| word.as_bytes().to_vec());
        let (argv, env) = (
            ExecVector::new(&argv).unwrap(),
            ExecVector::new(&[]).unwrap(),
        );
        let root = children::fork(|| {
            if become_subreaper().is_ok() {
                let _ = execve(c"/bin/sh", &argv, &env); // returns only on failure
            }
            exit_now(99)
        });
        let deadline = Instant::now() + Duration::from_secs(10);
        while living_below(root)
            .iter()
            .filter(|(pid, _)| is_sleep(*pid))
            .count()
            < 4
        {
            assert!(Instant::now() < deadline, "{:?}", living_below(root));
            sys::poll(&mut [], 2).unwrap();
        }
        root
    }

    fn is_sleep(pid: i32) -> bool {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n")
    }

    fn identity(pid: i32) -> Pid {
        Pid {
            pid,
            start_time: stat::start_time(pid).unwrap(),
            boot_id: stat::boot_id().unwrap(),
            monitor: 0,
        }
    }

    fn runs(process: &Pid) -> bool {
        let is_it = |stat: Stat| stat.start_time == process.start_time && !stat.has_ended();
        Stat::of(process.pid).is_ok_and(is_it)
    }

    #[test]
    fn everything_below_a_process_ends_also_orphans_and_other_sessions() {
        let root = tree();
        let below: Vec<Pid> = living_below(root)
            .iter()
            .map(|(pid, _)| identity(*pid))
            .collect();
        let own = identity(root);
        assert!(end_below(root).unwrap());
        assert!(!below.iter().any(runs));
        let _ = sys::kill(root, libc::SIGKILL);
        sys::reap_child(root).unwrap();
        assert!(!runs(&own));
    }

    #[test]
    fn a_recorded_process_ends_with_everything_below_it() {
        let root = tree();
        let own = identity(root);
        let below: Vec<Pid> = living_below(root)
            .iter()
            .map(|(pid, _)| identity(*pid))
            .collect();
        end_tree(&own).unwrap();
        assert!(!below.iter().chain([&own]).any(runs));
        sys::reap_child(root).unwrap();
        end_tree(&own).unwrap();
    }

    #[test]
    fn another_process_of_the_recorded_number_is_left_alone() {
        let root = tree();
        let own = identity(root);
        let earlier = Pid {
            start_time: own.start_time - 1,
            ..own.clone()
        };
        let boot_id = "another".to_owned();
        for other in [
            earlier,
            Pid {
                boot_id,
                ..own.clone()
            },
        ] {
            end_tree(&other).unwrap();
            assert!(runs(&own) && living_below(root).len() >= 4);
        }
        end_tree(&own).unwrap();
        sys::reap_child(root).unwrap();
    }

    #[test]
    fn children_are_found_with_and_without_the_kernels_lists() {
        let root = tree();
        let sorted = |mut pids: Vec<i32>| {
            pids.sort_unstable();
            pids
        };
        let searched = sorted(searched_children(root));
        assert!(searched.len() >= 2, "{searched:?}");
        if Path::new("/proc/thread-self/children").exists() {
            assert_eq!(sorted(listed_children(root)), searched);
        }
        end_tree(&identity(root)).unwrap();
        sys::reap_child(root).unwrap();
    }
}

//! Facts about init that an exec needs: its namespaces, and the host ids of its users.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use cairn_monitor::stat::start_time;
use cairn_monitor::sys;
use rustix::thread::ThreadNameSpaceType;

/// Read once, when the container is created.
pub(crate) struct Target {
    pub(crate) pid: i32,
    pub(crate) start_time: u64,
    pub(crate) pidfd: OwnedFd,
    /// Namespaces that differ from the monitor's, for setns(2).
    pub(crate) kinds: ThreadNameSpaceType,
    uid_map: String,
}

impl Target {
    pub(crate) fn new(pid: i32) -> io::Result<Target> {
        const KINDS: [(&str, ThreadNameSpaceType); 8] = [
            ("user", ThreadNameSpaceType::USER),
            ("mnt", ThreadNameSpaceType::MOUNT),
            ("net", ThreadNameSpaceType::NETWORK),
            ("ipc", ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION),
            ("uts", ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME),
            ("cgroup", ThreadNameSpaceType::CONTROL_GROUP),
            ("time", ThreadNameSpaceType::TIME),
            ("pid", ThreadNameSpaceType::PROCESS_ID),
        ];
        let pidfd = sys::pidfd_open(pid)?;
        let mut kinds = ThreadNameSpaceType::empty();
        for (name, kind) in KINDS {
            if inode(&format!("/proc/self/ns/{name}")) != inode(&format!("/proc/{pid}/ns/{name}")) {
                kinds |= kind;
            }
        }
        let uid_map = fs::read_to_string(format!("/proc/{pid}/uid_map"))?;
        Ok(Target {
            pid,
            start_time: start_time(pid)?,
            pidfd,
            kinds,
            uid_map,
        })
    }

    /// The host's id of a user of the container; unmapped users count as root.
    pub(crate) fn host_uid(&self, uid: u32) -> u32 {
        self.uid_map
            .lines()
            .find_map(|line| map_line(line, uid))
            .unwrap_or(0)
    }
}

fn map_line(line: &str, uid: u32) -> Option<u32> {
    let mut numbers = line.split_whitespace().map(str::parse::<u32>);
    let (inside, outside, count) = (
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
        numbers.next()?.ok()?,
    );
    let offset = uid.checked_sub(inside)?;
    (offset < count).then(|| outside.checked_add(offset))?
}

fn inode(path: &str) -> Option<u64> {
    fs::metadata(path).ok().map(|m| m.ino())
}

#[cfg(test)]
mod tests {
    use super::map_line;

    #[test]
    fn a_user_of_the_container_is_found_in_its_map() {
        assert_eq!(
            map_line("         0     100000      65536", 1000),
            Some(101_000)
        );
        assert_eq!(map_line("         0          0 4294967295", 7), Some(7));
        assert_eq!(map_line("0 100000 10", 10), None);
        assert_eq!(map_line("5 100000 10", 4), None);
        assert_eq!(map_line("0 4294967295 10", 5), None);
    }
}

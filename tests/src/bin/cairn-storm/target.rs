//! Finds the processes that a fault can hit, by the kernel's view of the yard.

use std::{fs, path::Path};

use cairn_tests::{look, yard::Yard};

/// Kinds of processes beside the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Monitor,
    Create,
    Unpack,
    Cni,
    Plugin,
}

/// A process of the yard, in the yard's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) args: Vec<String>,
}

impl Process {
    fn program(&self) -> &str {
        let path = self.args.first().map_or("", String::as_str);
        path.rsplit('/').next().unwrap_or(path)
    }

    pub(crate) fn is(&self, target: Target) -> bool {
        let first = self.args.first().map_or("", String::as_str);
        let second = self.args.get(1).map(String::as_str);
        match target {
            Target::Monitor => self.program() == "cairn-monitor" && self.keeps().is_some(),
            Target::Create => self.program() == "cairn-create",
            Target::Unpack => second == Some("unpack"),
            Target::Cni => {
                ["bridge", "host-local", "portmap", "loopback"].contains(&self.program())
            }
            Target::Plugin => first.contains("/plugins/"),
        }
    }

    /// The container of a monitor, or the pod of its pause process.
    pub(crate) fn keeps(&self) -> Option<&str> {
        let dir = Path::new(self.args.get(1)?);
        let kind = dir.parent()?.file_name()?.to_str()?;
        let id = dir.file_name()?.to_str()?;
        (matches!(kind, "containers" | "pause") && self.args.len() == 2).then_some(id)
    }
}

/// All processes of the yard with a command line, by pid.
pub(crate) fn all(yard: &Yard) -> Vec<Process> {
    let mut found: Vec<Process> = look::subdirs(&yard.inside("/proc"))
        .iter()
        .filter_map(|dir| {
            let pid = dir.file_name()?.to_str()?.parse().ok()?;
            let line = fs::read(dir.join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line);
            let args: Vec<String> = line.split_terminator('\0').map(str::to_owned).collect();
            (!args.is_empty()).then_some(Process { pid, args })
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(line: &str) -> Process {
        Process {
            pid: 7,
            args: line.split(' ').map(str::to_owned).collect(),
        }
    }

    #[test]
    fn a_monitor_tells_whom_it_keeps_and_a_clean_up_keeps_nobody() {
        let monitor = process("/t/state/monitor/bin/cairn-monitor /t/state/containers/ab12");
        assert!(monitor.is(Target::Monitor));
        assert_eq!(monitor.keeps(), Some("ab12"));
        let pause = process("/t/state/monitor/bin/cairn-monitor /t/state/pause/p1");
        assert_eq!(pause.keeps(), Some("p1"));
        let cleanup = process("/t/state/monitor/bin/cairn-monitor --cleanup /t/state/pause/p1");
        assert!(!cleanup.is(Target::Monitor));
        assert!(process("/b/cairn unpack --layer x").is(Target::Unpack));
        assert!(process("/t/plugins/50-logger").is(Target::Plugin));
        assert!(process("/p/bin/host-local").is(Target::Cni));
    }
}

//! Host resources that an adjustment can refer to.

use std::{fs, ops::RangeInclusive};

const CPUS: &str = "/sys/devices/system/cpu/online";
const MEMS: &str = "/sys/devices/system/node/online";

/// CPUs and memory nodes in the kernel's list format; `None`: unknown, and not checked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Host {
    pub cpus: Option<String>,
    pub mems: Option<String>,
}

impl Host {
    /// This host, except for the given CPUs.
    pub(crate) fn here(cpus: Option<String>) -> Self {
        let read = |path| {
            let list = fs::read_to_string(path).ok()?;
            Some(list.trim().to_owned()).filter(|list| ranges(list).is_some())
        };
        Self {
            cpus: cpus.or_else(|| read(CPUS)),
            mems: read(MEMS),
        }
    }
}

/// `0-3,7`, as the kernel parses lists; `None` for anything else.
pub(super) fn ranges(list: &str) -> Option<Vec<RangeInclusive<u32>>> {
    let number = |text: &str| text.parse::<u32>().ok();
    let ranges = list.split(',').map(|range| match range.split_once('-') {
        Some((from, to)) => Some(number(from)?..=number(to)?).filter(|range| !range.is_empty()),
        None => number(range).map(|one| one..=one),
    });
    ranges.collect()
}

/// Whether everything in `list` is in `all`.
pub(super) fn is_within(list: &str, all: &str) -> bool {
    let all = ranges(all).unwrap_or_default();
    // Ranges of a kernel's list are never adjacent.
    let is_in = |one: &RangeInclusive<u32>| {
        all.iter()
            .any(|of| of.contains(one.start()) && of.contains(one.end()))
    };
    ranges(list).unwrap_or_default().iter().all(is_in)
}

//! The values of containers: each update has a number of its own, which is its memory limit in MiB
//! and its CPU quota in milliseconds.

use std::collections::{BTreeMap, BTreeSet};

use proto_cri::v1 as cri;

const MIB: i64 = 1 << 20;
const PERIOD: i64 = 1_000_000;

/// One update. Moments are numbers in order.
struct Update {
    number: i64,
    begun: u64,
    /// `None`: nobody was notified of its success; it may come later, or never.
    acknowledged: Option<u64>,
}

/// All updates by container.
#[derive(Default)]
pub(crate) struct Values {
    moment: u64,
    last: i64,
    /// Numbers of new containers, whose ids are not known yet.
    made: BTreeSet<i64>,
    updates: BTreeMap<String, Vec<Update>>,
}

impl Values {
    fn next(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// A number for a new container.
    pub(crate) fn number_of_new(&mut self) -> i64 {
        let number = self.number();
        self.made.insert(number);
        number
    }

    /// A number for an update.
    pub(crate) fn number(&mut self) -> i64 {
        self.last += 1;
        self.last
    }

    /// The value with which a container was made, before any other.
    pub(crate) fn first(&mut self, container: &str, number: i64) {
        let updates = self.updates.entry(container.to_owned()).or_default();
        let first = Update {
            number,
            begun: 0,
            acknowledged: Some(0),
        };
        updates.insert(0, first);
    }

    pub(crate) fn begin(&mut self, container: &str, number: i64) {
        let begun = self.next();
        let updates = self.updates.entry(container.to_owned()).or_default();
        updates.push(Update {
            number,
            begun,
            acknowledged: None,
        });
    }

    pub(crate) fn acknowledge(&mut self, container: &str, number: i64) {
        let moment = self.next();
        let updates = self.updates.get_mut(container);
        let mut updates = updates.into_iter().flatten();
        if let Some(update) = updates.find(|update| update.number == number) {
            update.acknowledged = Some(moment);
        }
    }

    /// Whether a container may have this value: no later update was acknowledged.
    pub(crate) fn allow(&self, container: &str, number: i64) -> bool {
        let Some(updates) = self.updates.get(container) else {
            return true;
        };
        let later = |than: u64| {
            let mut others = updates.iter();
            others.any(|other| other.acknowledged.is_some() && other.begun > than)
        };
        let is_it = |update: &&Update| update.number == number;
        match updates.iter().find(is_it) {
            Some(update) => !update.acknowledged.is_some_and(later),
            None => self.made.contains(&number) && !later(0),
        }
    }

    /// For messages.
    pub(crate) fn acknowledged(&self, container: &str) -> Vec<i64> {
        let updates = self.updates.get(container).into_iter().flatten();
        let acknowledged = updates.filter(|update| update.acknowledged.is_some());
        acknowledged.map(|update| update.number).collect()
    }
}

pub(crate) fn cri_of(number: i64) -> cri::LinuxContainerResources {
    cri::LinuxContainerResources {
        memory_limit_in_bytes: number * MIB,
        cpu_period: PERIOD,
        cpu_quota: number * 1000,
        ..Default::default()
    }
}

pub(crate) fn nri_of(number: i64) -> nri::proto::LinuxResources {
    nri::proto::LinuxResources {
        memory: Some(nri::proto::LinuxMemory {
            limit: Some(nri::proto::OptionalInt64 {
                value: number * MIB,
            }),
            ..Default::default()
        }),
        cpu: Some(nri::proto::LinuxCpu {
            quota: Some(nri::proto::OptionalInt64 {
                value: number * 1000,
            }),
            period: Some(nri::proto::OptionalUInt64 {
                value: PERIOD.unsigned_abs(),
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The number of a memory limit and a quota; an error shows two numbers.
pub(crate) fn number_of(memory: i64, quota: i64) -> Result<i64, String> {
    let number = quota / 1000;
    if memory == number * MIB {
        Ok(number)
    } else {
        Err(format!("memory of {}, CPU of {number}", memory / MIB))
    }
}

/// The number of cgroup files: `memory.max` and `cpu.max`.
pub(crate) fn number_in(memory: &str, cpu: &str) -> Result<i64, String> {
    let quota = cpu.split(' ').next().unwrap_or_default();
    match (memory.parse(), quota.parse()) {
        (Ok(memory), Ok(quota)) => number_of(memory, quota),
        _ => Err(format!("{memory:?} and {cpu:?}")),
    }
}

//! Converts an OCI spec's `process` (and whether its `linux` has seccomp) to a [`Process`].
//!
//! Pure. `cairn-create` uses it for init, the daemon as the base of an exec, so both get the same
//! process by construction (CRI-141).

use std::collections::HashSet;

use oci_spec::runtime::{
    Capability, IOPriorityClass, LinuxIOPriority, LinuxMemoryPolicy, LinuxSchedulerFlag,
    LinuxSchedulerPolicy, MemoryPolicyFlagType, MemoryPolicyModeType, PosixRlimit, PosixRlimitType,
    Scheduler, Spec,
};
use rustix::thread::CapabilitySet;

use crate::process::{Capabilities, Label, Limit, Process};
use crate::scheduling::{Memory, Scheduling};
use crate::sys::Cpu;

/// Fails on a value that cannot be converted, with one line.
pub fn process(spec: &Spec) -> Result<Process, String> {
    let p = spec.process().as_ref().ok_or("the spec has no process")?;
    let user = p.user();
    let set = |caps: &Option<HashSet<Capability>>| {
        let mut bits = caps.iter().flatten().map(|cap| bit(*cap));
        bits.try_fold(0, |mask, bit| bit.map(|bit| mask | bit))
    };
    let capabilities = match p.capabilities() {
        None => Capabilities::default(),
        Some(c) => Capabilities {
            bounding: set(c.bounding())?,
            effective: set(c.effective())?,
            permitted: set(c.permitted())?,
            inheritable: set(c.inheritable())?,
            ambient: set(c.ambient())?,
        },
    };
    Ok(Process {
        argv: words(p.args()),
        env: words(p.env()),
        cwd: p.cwd().as_os_str().as_encoded_bytes().to_vec(),
        uid: user.uid(),
        gid: user.gid(),
        groups: user.additional_gids().clone().unwrap_or_default(),
        umask: user.umask().unwrap_or(0o022),
        capabilities,
        no_new_privileges: p.no_new_privileges().unwrap_or(false),
        seccomp: spec.linux().as_ref().is_some_and(|l| l.seccomp().is_some()),
        limits: p.rlimits().iter().flatten().map(limit).collect(),
        oom_score_adj: p.oom_score_adj().unwrap_or(0),
        label: label(p),
    })
}

pub fn words(list: &Option<Vec<String>>) -> Vec<Vec<u8>> {
    let items = list.iter().flatten();
    items.map(|item| item.clone().into_bytes()).collect()
}

/// The profile wins if a spec has both labels; it is checked when the spec is built.
fn label(p: &oci_spec::runtime::Process) -> Option<Label> {
    let bytes = |text: &Option<String>| {
        let text = text.as_ref().filter(|text| !text.is_empty())?;
        Some(text.clone().into_bytes())
    };
    let profile = bytes(p.apparmor_profile()).map(Label::AppArmor);
    profile.or_else(|| bytes(p.selinux_label()).map(Label::Selinux))
}

fn limit(l: &PosixRlimit) -> Limit {
    Limit {
        resource: resource(l.typ()),
        soft: l.soft(),
        hard: l.hard(),
    }
}

fn resource(typ: PosixRlimitType) -> u32 {
    use PosixRlimitType as T;
    match typ {
        T::RlimitCpu => libc::RLIMIT_CPU,
        T::RlimitFsize => libc::RLIMIT_FSIZE,
        T::RlimitData => libc::RLIMIT_DATA,
        T::RlimitStack => libc::RLIMIT_STACK,
        T::RlimitCore => libc::RLIMIT_CORE,
        T::RlimitRss => libc::RLIMIT_RSS,
        T::RlimitNproc => libc::RLIMIT_NPROC,
        T::RlimitNofile => libc::RLIMIT_NOFILE,
        T::RlimitMemlock => libc::RLIMIT_MEMLOCK,
        T::RlimitAs => libc::RLIMIT_AS,
        T::RlimitLocks => libc::RLIMIT_LOCKS,
        T::RlimitSigpending => libc::RLIMIT_SIGPENDING,
        T::RlimitMsgqueue => libc::RLIMIT_MSGQUEUE,
        T::RlimitNice => libc::RLIMIT_NICE,
        T::RlimitRtprio => libc::RLIMIT_RTPRIO,
        T::RlimitRttime => libc::RLIMIT_RTTIME,
    }
}

/// How the container's processes are scheduled. Fails on an invalid list of nodes.
pub fn scheduling(spec: &Spec) -> Result<Scheduling, String> {
    let process = spec.process().as_ref();
    let linux = spec.linux().as_ref();
    let policy = linux.and_then(|l| l.memory_policy().as_ref());
    Ok(Scheduling {
        cpu: process.and_then(|p| p.scheduler().as_ref()).map(cpu),
        io: process.and_then(|p| *p.io_priority()).map(io),
        memory: policy.map(memory).transpose()?,
    })
}

fn cpu(asked: &Scheduler) -> Cpu {
    use LinuxSchedulerFlag as F;
    use LinuxSchedulerPolicy as P;
    let policy = match asked.policy() {
        P::SchedOther => 0,
        P::SchedFifo => 1,
        P::SchedRr => 2,
        P::SchedBatch => 3,
        P::SchedIso => 4,
        P::SchedIdle => 5,
        P::SchedDeadline => 6,
    };
    let flags = asked.flags().iter().flatten().fold(0, |all, flag| {
        all | match flag {
            F::SchedResetOnFork => 0x01,
            F::SchedFlagReclaim => 0x02,
            F::SchedFlagDLOverrun => 0x04,
            F::SchedFlagKeepPolicy => 0x08,
            F::SchedFlagKeepParams => 0x10,
            F::SchedFlagUtilClampMin => 0x20,
            F::SchedFlagUtilClampMax => 0x40,
        }
    });
    Cpu {
        policy,
        flags,
        nice: asked.nice().unwrap_or(0),
        priority: asked.priority().map_or(0, i32::unsigned_abs),
        runtime: asked.runtime().unwrap_or(0),
        deadline: asked.deadline().unwrap_or(0),
        period: asked.period().unwrap_or(0),
    }
}

fn io(asked: LinuxIOPriority) -> u32 {
    let class = match asked.class() {
        IOPriorityClass::IoprioClassRt => 1,
        IOPriorityClass::IoprioClassBe => 2,
        IOPriorityClass::IoprioClassIdle => 3,
    };
    class << 13 | u32::try_from(asked.priority()).unwrap_or(0)
}

fn memory(asked: &LinuxMemoryPolicy) -> Result<Memory, String> {
    use MemoryPolicyFlagType as F;
    use MemoryPolicyModeType as M;
    let mode = match asked.mode() {
        M::MpolDefault => 0,
        M::MpolPreferred => 1,
        M::MpolBind => 2,
        M::MpolInterleave => 3,
        M::MpolLocal => 4,
        M::MpolPreferredMany => 5,
        M::MpolWeightedInterleave => 6,
    };
    let flags = asked.flags().iter().flatten().fold(0, |all, flag| {
        all | match flag {
            F::MpolFNumaBalancing => 1 << 13,
            F::MpolFRelativeNodes => 1 << 14,
            F::MpolFStaticNodes => 1 << 15,
        }
    });
    let nodes = asked.nodes().as_deref().unwrap_or_default();
    Ok(Memory {
        mode: mode | flags,
        nodes: node_mask(nodes)
            .ok_or_else(|| format!("memory policy: invalid list of nodes {nodes:?}"))?,
    })
}

/// `0-1,3` as bits, in the least number of words.
fn node_mask(list: &str) -> Option<Vec<u64>> {
    /// The kernel's largest configuration.
    const NODES: usize = 1024;
    let mut words = Vec::new();
    for range in list.split(',').map(str::trim).filter(|r| !r.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= NODES {
            return None;
        }
        for node in first..=last {
            if words.len() <= node / 64 {
                words.resize(node / 64 + 1, 0);
            }
            words[node / 64] |= 1 << (node % 64);
        }
    }
    Some(words)
}

/// The kernel's bit of a capability; both crates use the same names.
fn bit(cap: Capability) -> Result<u64, String> {
    let known = CapabilitySet::from_name(&cap.to_string());
    let known = known.ok_or_else(|| format!("unknown capability {cap}"))?;
    Ok(known.bits())
}

#[cfg(test)]
mod tests {
    use super::{Capability, CapabilitySet, bit, node_mask};

    #[test]
    fn every_capability_is_known_by_its_name() {
        let all: Vec<_> = CapabilitySet::all().iter_names().collect();
        assert_eq!(all.len(), 41);
        for ((name, _), number) in all.into_iter().zip(0..) {
            let cap: Capability = name.parse().expect(name);
            assert_eq!(bit(cap), Ok(1 << number), "{name}");
        }
    }

    #[test]
    fn nodes_are_bits_in_as_few_words_as_they_need() {
        assert_eq!(node_mask(""), Some(vec![]));
        assert_eq!(node_mask("0-1,3"), Some(vec![0b1011]));
        assert_eq!(node_mask("63, 64"), Some(vec![1 << 63, 1]));
        for bad in ["x", "1-", "2-1", "1024", "0-4294967295"] {
            assert_eq!(node_mask(bad), None, "{bad}");
        }
    }
}

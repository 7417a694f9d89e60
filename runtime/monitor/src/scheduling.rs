//! Scheduling of a container's processes: CPU, I/O priority and memory nodes.
//!
//! `cairn-create` writes it beside the container's spec, if there is any. Init applies it before
//! the start signal, the monitor to every exec: both have the same priority.

use std::io;

use crate::codec::{self, DecodeError, coded};
use crate::own_file;
use crate::record::SCHEDULING;
use crate::sys::{self, Cpu};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scheduling {
    pub cpu: Option<Cpu>,
    /// Class and level in one number, for ioprio_set(2).
    pub io: Option<u32>,
    pub memory: Option<Memory>,
}

/// For set_mempolicy(2).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    /// Includes its flags.
    pub mode: u32,
    /// Bit n over all words is node n; may be empty.
    pub nodes: Vec<u64>,
}

coded!(Scheduling { cpu, io, memory });
coded!(Memory { mode, nodes });
coded!(Cpu {
    policy,
    flags,
    nice,
    priority,
    runtime,
    deadline,
    period,
});

impl Scheduling {
    /// Reads the file in the working directory; without one, the default.
    pub fn read() -> Result<Scheduling, String> {
        match own_file::read(SCHEDULING) {
            Ok(bytes) => Scheduling::decode(&bytes).map_err(|e| e.to_string()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Scheduling::default()),
            Err(e) => Err(format!("read {SCHEDULING}: {e}")),
        }
    }

    /// Applies it to the calling process, which must be in the container's cgroups (they limit
    /// real-time time and memory nodes) and have the host privileges that some values need.
    pub fn apply(&self) -> Result<(), (&'static str, io::Error)> {
        if let Some(cpu) = &self.cpu {
            sys::set_scheduler(0, cpu).map_err(|e| ("set the scheduler", e))?;
        }
        self.apply_inherited()
    }

    /// Applies everything except the scheduler: some policies are not inherited by children, and
    /// some forbid children.
    pub fn apply_inherited(&self) -> Result<(), (&'static str, io::Error)> {
        let at = |step| move |e| (step, e);
        if let Some(io) = self.io {
            sys::set_io_priority(io).map_err(at("set the I/O priority"))?;
        }
        if let Some(memory) = &self.memory {
            sys::set_memory_policy(memory.mode, &memory.nodes)
                .map_err(at("set the memory policy"))?;
        }
        Ok(())
    }

    pub fn encode(&self) -> Vec<u8> {
        codec::to_file(self)
    }

    pub fn decode(bytes: &[u8]) -> Result<Scheduling, DecodeError> {
        codec::from_file(bytes, "unsupported version of the scheduling file")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_scheduling_is_read_again() {
        let full = Scheduling {
            cpu: Some(Cpu {
                policy: 6,
                flags: 1,
                nice: -3,
                priority: 7,
                runtime: 1,
                deadline: 2,
                period: 3,
            }),
            io: Some(2 << 13 | 4),
            memory: Some(Memory {
                mode: 2,
                nodes: vec![1, 1 << 63],
            }),
        };
        for scheduling in [full, Scheduling::default()] {
            let bytes = scheduling.encode();
            assert_eq!(Scheduling::decode(&bytes), Ok(scheduling));
            assert!(Scheduling::decode(&bytes[..bytes.len() - 1]).is_err());
        }
    }
}

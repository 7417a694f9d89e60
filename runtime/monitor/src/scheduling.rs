//! Scheduling of a container's processes: cpu, disk, memory nodes.
//!
//! `cairn-create` writes it beside the container's spec, once; init takes it on before the start signal, and the monitor
//! gives it to every exec, so that both run at the same priority. A container without any has no such file.

use std::{fs, io};

use crate::codec::{self, DecodeError, coded};
use crate::record::SCHEDULING;
use crate::sys::{self, Cpu};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scheduling {
    pub cpu: Option<Cpu>,
    /// Class and level in the kernel's one number, for ioprio_set(2).
    pub io: Option<u32>,
    pub memory: Option<Memory>,
}

/// For set_mempolicy(2).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    /// With its flags.
    pub mode: u32,
    /// Bit n of the whole is node n; may be empty.
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
    /// What the container in the working directory was given; nothing without a file.
    pub fn read() -> Result<Scheduling, String> {
        match fs::read(SCHEDULING) {
            Ok(bytes) => Scheduling::decode(&bytes).map_err(|e| e.to_string()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Scheduling::default()),
            Err(e) => Err(format!("read {SCHEDULING}: {e}")),
        }
    }

    /// Makes it the calling process's own. In the container's cgroups already (they give real-time processes their
    /// time, and say which nodes there are), and with the privileges of the host where a value needs them.
    pub fn apply(&self) -> Result<(), (&'static str, io::Error)> {
        if let Some(cpu) = &self.cpu {
            sys::set_scheduler(0, cpu).map_err(|e| ("set the scheduler", e))?;
        }
        self.apply_inherited()
    }

    /// [`Scheduling::apply`], but for the scheduler: some have children start without it, some allow none.
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
    fn what_was_written_is_read_again() {
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

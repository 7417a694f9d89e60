//! A compiled seccomp filter as a file: written by `cairn-create` per profile, loaded by init and
//! execs.
//!
//! Pure. The file contains the profile's text, by which the cache detects a clash of names.

use crate::codec::{self, DecodeError, coded};

/// The kernel's limit.
const MAX_INSTRUCTIONS: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// Flags for seccomp(2).
    pub flags: u32,
    /// The profile it was compiled from, as JSON.
    pub profile: Vec<u8>,
    /// Instructions, eight bytes each, in the machine's own byte order.
    pub program: Vec<u8>,
}

coded!(Filter {
    flags,
    profile,
    program,
});

impl Filter {
    pub fn encode(&self) -> Vec<u8> {
        codec::to_file(self)
    }

    pub fn decode(bytes: &[u8]) -> Result<Filter, DecodeError> {
        let unsupported = "unsupported version of the seccomp filter";
        let filter: Filter = codec::from_file(bytes, unsupported)?;
        let n = filter.program.len();
        if n == 0 || !n.is_multiple_of(8) || n / 8 > MAX_INSTRUCTIONS {
            return Err(DecodeError("invalid size of the seccomp filter"));
        }
        Ok(filter)
    }

    pub fn instructions(&self) -> Vec<libc::sock_filter> {
        let word = |c: &[u8]| u32::from_ne_bytes([c[4], c[5], c[6], c[7]]);
        self.program
            .chunks_exact(8)
            .map(|c| libc::sock_filter {
                code: u16::from_ne_bytes([c[0], c[1]]),
                jt: c[2],
                jf: c[3],
                k: word(c),
            })
            .collect()
    }
}

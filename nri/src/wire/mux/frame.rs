//! Reads frames from the bytes of a trunk, and writes their headers.

use super::{error::MuxError, limits::MAX_FRAME};

pub(crate) const HEADER: usize = 8;

/// Splits the byte stream of the trunk into pieces of payload.
///
/// State: inside a header with `got` bytes of it, or inside a payload with `left` bytes to come.
#[derive(Debug, Default)]
pub struct FrameReader {
    header: [u8; HEADER],
    got: usize,
    id: u32,
    left: usize,
}

impl FrameReader {
    /// Takes bytes from the socket, returns each piece of payload with its connection.
    pub fn push<E: From<MuxError>>(
        &mut self,
        mut bytes: &[u8],
        mut deliver: impl FnMut(u32, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            if self.left > 0 {
                let (piece, rest) = bytes.split_at(self.left.min(bytes.len()));
                self.left -= piece.len();
                bytes = rest;
                deliver(self.id, piece)?;
                continue;
            }
            let take = (HEADER - self.got).min(bytes.len());
            self.header[self.got..self.got + take].copy_from_slice(&bytes[..take]);
            self.got += take;
            bytes = &bytes[take..];
            if self.got == HEADER {
                self.begin_payload()?;
            }
        }
        Ok(())
    }

    fn begin_payload(&mut self) -> Result<(), MuxError> {
        let [a, b, c, d, e, f, g, h] = self.header;
        self.id = u32::from_be_bytes([a, b, c, d]);
        self.left = u32::from_be_bytes([e, f, g, h]) as usize;
        self.got = 0;
        if self.left > MAX_FRAME {
            return Err(MuxError::FrameTooLong(self.left, self.id));
        }
        Ok(())
    }

    /// True between two frames: the only valid place for an end of stream.
    pub fn at_boundary(&self) -> bool {
        self.got == 0 && self.left == 0
    }
}

/// The header of a frame with `len` bytes of payload.
pub fn header(id: u32, len: usize) -> [u8; HEADER] {
    let mut h = [0; HEADER];
    h[..4].copy_from_slice(&id.to_be_bytes());
    h[4..].copy_from_slice(&(len as u32).to_be_bytes());
    h
}

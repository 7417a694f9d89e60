//! One connected client (the daemon): bytes in, requests out; events queued, never waited for.
//!
//! A client that does not read is dropped when its queue is full: it must not stall the container's log.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use cairn_monitor::sys;
use cairn_monitor::wire::{self, Event, Request};

/// Bytes that may wait for a client.
const QUEUE: usize = 1 << 20;

pub(crate) struct Peer {
    pub(crate) id: u64,
    socket: OwnedFd,
    input: Vec<u8>,
    output: VecDeque<Frame>,
    queued: usize,
}

struct Frame {
    bytes: Vec<u8>,
    sent: usize,
    /// Go with the first byte, then close.
    fds: Vec<OwnedFd>,
}

/// A request's id, and the request if it could be read.
pub(crate) type Asked = (u32, Result<Request, String>);

/// The connection is over.
pub(crate) struct Gone;

impl Peer {
    pub(crate) fn new(id: u64, socket: OwnedFd) -> io::Result<Peer> {
        sys::set_nonblocking(socket.as_fd())?;
        Ok(Peer {
            id,
            socket,
            input: Vec::new(),
            output: VecDeque::new(),
            queued: 0,
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Reads what is there. `Err`: it hung up, or sent nonsense.
    pub(crate) fn read(&mut self) -> Result<Vec<Asked>, Gone> {
        let mut chunk = [0; 4096];
        loop {
            match sys::read(self.socket.as_fd(), &mut chunk) {
                Ok(0) => return Err(Gone),
                Ok(n) => self.input.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(Gone),
            }
            if self.input.len() >= wire::MAX_FRAME {
                break;
            }
        }
        let mut requests = Vec::new();
        while let Some(frame) = wire::split(&self.input).map_err(|_| Gone)? {
            let request = Request::decode(frame.kind, frame.payload).map_err(|e| e.to_string());
            requests.push((frame.id, request));
            let size = frame.size;
            self.input.drain(..size);
        }
        if self.input.is_empty() {
            self.input = Vec::new();
        }
        Ok(requests)
    }

    pub(crate) fn send(&mut self, id: u32, event: &Event, fds: Vec<OwnedFd>) -> Result<(), Gone> {
        let bytes = event.encode(id);
        self.queued += bytes.len();
        self.output.push_back(Frame {
            bytes,
            sent: 0,
            fds,
        });
        if self.queued > QUEUE {
            return Err(Gone);
        }
        self.flush()
    }

    /// Sends what the socket takes now.
    pub(crate) fn flush(&mut self) -> Result<(), Gone> {
        while let Some(frame) = self.output.front_mut() {
            let fds: Vec<BorrowedFd<'_>> = frame.fds.iter().map(|f| f.as_fd()).collect();
            match sys::send(self.socket.as_fd(), &frame.bytes[frame.sent..], &fds) {
                Ok(n) => {
                    frame.sent += n;
                    frame.fds.clear();
                    if frame.sent == frame.bytes.len() {
                        self.queued -= frame.bytes.len();
                        self.output.pop_front();
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Gone),
            }
        }
        Ok(())
    }
}

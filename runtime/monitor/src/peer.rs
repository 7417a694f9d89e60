//! One connected client (the daemon): decodes its requests and queues events without blocking.
//!
//! A client that does not read is dropped when its queue is full: it must not stall the log.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use cairn_monitor::sys;
use cairn_monitor::wire::{self, Event, Request};

/// Limit of bytes queued for a client.
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
    /// Sent with the first byte, then closed.
    fds: Vec<OwnedFd>,
}

/// A request's id, and the request or its decoding error.
pub(crate) type Asked = (u32, Result<Request, String>);

pub(crate) struct Disconnected;

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

    /// Reads all available requests. `Err`: the client hung up or sent an invalid frame.
    pub(crate) fn read(&mut self) -> Result<Vec<Asked>, Disconnected> {
        let mut chunk = [0; 4096];
        loop {
            match sys::read(self.socket.as_fd(), &mut chunk) {
                Ok(0) => return Err(Disconnected),
                Ok(n) => self.input.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(Disconnected),
            }
            if self.input.len() >= wire::MAX_FRAME {
                break;
            }
        }
        let mut requests = Vec::new();
        while let Some(frame) = wire::split(&self.input).map_err(|_| Disconnected)? {
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

    pub(crate) fn send(
        &mut self,
        id: u32,
        event: &Event,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Disconnected> {
        let bytes = event.encode(id);
        self.queued += bytes.len();
        self.output.push_back(Frame {
            bytes,
            sent: 0,
            fds,
        });
        if self.queued > QUEUE {
            return Err(Disconnected);
        }
        self.flush()
    }

    /// Sends as much as the socket accepts now.
    pub(crate) fn flush(&mut self) -> Result<(), Disconnected> {
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
                Err(_) => return Err(Disconnected),
            }
        }
        Ok(())
    }
}

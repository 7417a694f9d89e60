//! Connected clients (the daemon): decodes their requests and queues events without blocking.
//!
//! A client that does not read is dropped when its queue is full: it must not stall the log.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;

use cairn_monitor::cgroup_tree::ignore_missing;
use cairn_monitor::record::CTL;
use cairn_monitor::sys;
use cairn_monitor::wire::{self, Event, Request};

/// Limit of bytes queued for a client.
const QUEUE: usize = 1 << 20;

/// Limit of concurrent connections.
const PEERS: usize = 16;

/// The connection and the request that wait for an answer.
pub(crate) type Asker = (u64, u32);

pub(crate) struct Clients {
    peers: Vec<Peer>,
    next_id: u64,
    listener: UnixListener,
}

impl Clients {
    pub(crate) fn listen() -> io::Result<Clients> {
        ignore_missing(fs::remove_file(CTL))?;
        let listener = UnixListener::bind(CTL)?;
        listener.set_nonblocking(true)?;
        Ok(Clients {
            peers: Vec::new(),
            next_id: 1,
            listener,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    pub(crate) fn has_output(&self) -> bool {
        self.peers.iter().any(Peer::has_output)
    }

    pub(crate) fn is_connected(&self, id: u64) -> bool {
        self.peers.iter().any(|p| p.id == id)
    }

    /// Descriptors to poll, each with its client and whether it has output.
    pub(crate) fn connections(&self) -> impl Iterator<Item = (RawFd, u64, bool)> {
        let peers = self.peers.iter();
        peers.map(|p| (p.socket.as_raw_fd(), p.id, p.has_output()))
    }

    /// The socket to poll for connections, unless there are too many.
    pub(crate) fn listener_fd(&self) -> Option<RawFd> {
        (self.peers.len() < PEERS).then(|| self.listener.as_raw_fd())
    }

    pub(crate) fn accept(&mut self, hello: Event) {
        if let Ok((socket, _)) = self.listener.accept() {
            let _ = self.admit(socket.into(), hello); // the client may have hung up
        }
    }

    pub(crate) fn admit(&mut self, socket: OwnedFd, hello: Event) -> io::Result<()> {
        let id = self.next_id;
        self.next_id += 1;
        self.peers.push(Peer::new(id, socket)?);
        self.send((id, 0), hello, Vec::new());
        Ok(())
    }

    /// Serves a client's socket after a poll. Returns its requests.
    pub(crate) fn serve(&mut self, id: u64, events: i16) -> Vec<Asked> {
        let Some(peer) = self.peers.iter_mut().find(|p| p.id == id) else {
            return Vec::new();
        };
        let served = match peer.flush() {
            Ok(()) if events & !libc::POLLOUT != 0 => peer.read(),
            flushed => flushed.map(|()| Vec::new()),
        };
        served.unwrap_or_else(|Disconnected| {
            self.disconnect(id);
            Vec::new()
        })
    }

    /// The server ends the attach sessions of the client. Its execs continue.
    fn disconnect(&mut self, id: u64) {
        self.peers.retain(|p| p.id != id);
    }

    pub(crate) fn send(&mut self, (peer, request): Asker, event: Event, fds: Vec<OwnedFd>) {
        let found = self.peers.iter_mut().find(|p| p.id == peer);
        if found.is_some_and(|found| found.send(request, &event, fds).is_err()) {
            self.disconnect(peer);
        }
    }

    pub(crate) fn send_all(&mut self, event: &Event) {
        self.peers
            .retain_mut(|p| p.send(0, event, Vec::new()).is_ok());
    }

    pub(crate) fn answer(&mut self, asker: Asker, done: Result<(), String>) {
        match done {
            Ok(()) => self.send(asker, Event::Done, Vec::new()),
            Err(text) => self.fail(asker, text),
        }
    }

    pub(crate) fn fail(&mut self, asker: Asker, text: impl Into<String>) {
        self.send(asker, Event::Failed { text: text.into() }, Vec::new());
    }
}

struct Peer {
    id: u64,
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

struct Disconnected;

impl Peer {
    fn new(id: u64, socket: OwnedFd) -> io::Result<Peer> {
        sys::set_nonblocking(socket.as_fd())?;
        Ok(Peer {
            id,
            socket,
            input: Vec::new(),
            output: VecDeque::new(),
            queued: 0,
        })
    }

    fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Reads all available requests. `Err`: the client hung up or sent an invalid frame.
    fn read(&mut self) -> Result<Vec<Asked>, Disconnected> {
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

    fn send(&mut self, id: u32, event: &Event, fds: Vec<OwnedFd>) -> Result<(), Disconnected> {
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
    fn flush(&mut self) -> Result<(), Disconnected> {
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

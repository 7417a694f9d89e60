//! Decodes bytes and descriptors from a monitor into events.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cairn_monitor::wire::{self, Event};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// The reading half of a connection.
pub(super) struct Incoming {
    stream: Arc<UnixStream>,
    bytes: Vec<u8>,
    fds: VecDeque<OwnedFd>,
    /// Descriptors of the next event that has any were lost, because our descriptor table was full.
    /// That event is delivered without descriptors, and its request fails. The connection and the
    /// container continue.
    cut: bool,
}

impl Incoming {
    pub(super) fn new(stream: Arc<UnixStream>) -> Incoming {
        Incoming {
            stream,
            bytes: Vec::new(),
            fds: VecDeque::new(),
            cut: false,
        }
    }

    /// Returns the next event with its descriptors; `None` at the end of the connection.
    pub(super) async fn next(&mut self) -> io::Result<Option<(u32, Event, Vec<OwnedFd>)>> {
        loop {
            if let Some((id, event, used)) = self.parse()? {
                self.bytes.drain(..used);
                let n = match &event {
                    Event::ExecStarted { streams, .. } | Event::Attached { streams, .. } => {
                        streams.count()
                    }
                    _ => 0,
                };
                if self.fds.len() < n && !std::mem::take(&mut self.cut) {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "descriptors are missing",
                    ));
                }
                let n = n.min(self.fds.len());
                return Ok(Some((id, event, self.fds.drain(..n).collect())));
            }
            let Incoming {
                stream,
                bytes,
                fds,
                cut,
            } = self;
            let (received, lost) = stream
                .async_io(Interest::READABLE, || receive(stream, bytes, fds))
                .await?;
            *cut |= lost;
            if received == 0 {
                return Ok(None);
            }
        }
    }

    fn parse(&self) -> io::Result<Option<(u32, Event, usize)>> {
        let bad = |e| io::Error::new(io::ErrorKind::InvalidData, e);
        let Some(frame) = wire::split(&self.bytes).map_err(bad)? else {
            return Ok(None);
        };
        let event = Event::decode(frame.kind, frame.payload).map_err(bad)?;
        Ok(Some((frame.id, event, frame.size)))
    }
}

/// Returns the number of bytes received, and whether descriptors were lost.
fn receive(
    stream: &UnixStream,
    bytes: &mut Vec<u8>,
    fds: &mut VecDeque<OwnedFd>,
) -> io::Result<(usize, bool)> {
    let mut chunk = [0u8; 4096];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [io::IoSliceMut::new(&mut chunk)];
    let got = rustix::net::recvmsg(stream, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let cut = got.flags.contains(ReturnFlags::CTRUNC);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            // An incomplete set of descriptors is unusable: close it here.
            fds.extend(received.filter(|_| !cut));
        }
    }
    bytes.extend_from_slice(&chunk[..got.bytes]);
    Ok((got.bytes, cut))
}

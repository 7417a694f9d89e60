//! Netlink sockets and messages: the encoder for rtnetlink (links, routes) and nfnetlink
//! (nftables).
//!
//! No crate fits: a pod needs six fixed messages, sent as **one** datagram per network namespace
//! and answered synchronously by the kernel, while nftables crates start programs or are GPL. This
//! module has the wire format only: lengths, padding, acknowledgements.
//!
//! A socket belongs to the network namespace of the thread that opened it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_REPLACE: u16 = 0x100;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
pub(crate) const NLM_F_APPEND: u16 = 0x800;

const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE_MASK: u16 = 0x3fff;
const HEADER: usize = 16;
/// The kernel answers while it handles the request; this limits one that does not.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of a dump's datagrams; no request here needs more.
const MAX_DATAGRAMS: usize = 4096;

/// A request that the kernel rejected, or that could not be sent.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {errno}")]
pub struct NetlinkError {
    /// The failed request.
    pub step: String,
    pub errno: Errno,
}

/// Attributes under construction, after the fixed structure of a message (or of a veth peer).
#[derive(Debug, Default, Clone)]
pub(crate) struct Attrs(Vec<u8>);

impl Attrs {
    pub(crate) fn after(fixed: &[u8]) -> Self {
        let mut attrs = Self(fixed.to_vec());
        attrs.pad();
        attrs
    }

    pub(crate) fn put(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(&value[..usize::from(length) - 4]);
        self.pad();
        self
    }

    /// Adds an integer in host order (rtnetlink).
    pub(crate) fn put_u32(self, kind: u16, value: u32) -> Self {
        self.put(kind, &value.to_ne_bytes())
    }

    /// Adds an integer in network order (nfnetlink).
    pub(crate) fn put_be32(self, kind: u16, value: u32) -> Self {
        self.put(kind, &value.to_be_bytes())
    }

    /// Adds a string with its final NUL.
    pub(crate) fn put_str(self, kind: u16, value: &str) -> Self {
        self.put(kind, &[value.as_bytes(), &[0]].concat())
    }

    pub(crate) fn nest(self, kind: u16, inner: Attrs) -> Self {
        self.put(kind | NLA_F_NESTED, &inner.0)
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }
}

/// One request: type, flags, fixed structure and attributes, and the prefix of its errors.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
    step: String,
    tolerated: Option<Errno>,
}

impl Message {
    /// `step` names the operation and its object, for errors.
    pub(crate) fn new(kind: u16, flags: u16, step: impl Into<String>, body: Attrs) -> Self {
        Self {
            kind,
            flags: flags | NLM_F_REQUEST,
            body: body.0,
            step: step.into(),
            tolerated: None,
        }
    }

    /// Treats this error as success: the state already exists, or the object does not.
    pub(crate) fn tolerate(mut self, errno: Errno) -> Self {
        self.tolerated = Some(errno);
        self
    }

    /// The error in an answer, unless tolerated.
    fn refusal(&self, reply: &Reply) -> Option<NetlinkError> {
        let errno = reply.errno().filter(|errno| Some(*errno) != self.tolerated);
        errno.map(|errno| self.error(errno))
    }

    fn error(&self, errno: Errno) -> NetlinkError {
        NetlinkError {
            step: self.step.clone(),
            errno,
        }
    }

    fn write(&self, out: &mut Vec<u8>, sequence: u32, more_flags: u16) {
        let length = u32::try_from(HEADER + self.body.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&length.to_ne_bytes());
        out.extend_from_slice(&self.kind.to_ne_bytes());
        out.extend_from_slice(&(self.flags | more_flags).to_ne_bytes());
        out.extend_from_slice(&sequence.to_ne_bytes());
        out.extend_from_slice(&0u32.to_ne_bytes());
        out.extend_from_slice(&self.body);
        out.resize(out.len().next_multiple_of(4), 0);
    }
}

/// One message of the kernel: its type and the bytes after the header.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) kind: u16,
    sequence: u32,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    /// The first attribute of a kind, after a fixed structure of `fixed` bytes.
    pub(crate) fn attribute(&self, fixed: usize, kind: u16) -> Option<&[u8]> {
        attribute(self.body.get(fixed..)?, kind)
    }

    /// All attributes after such a structure.
    pub(crate) fn attributes(&self, fixed: usize) -> impl Iterator<Item = (u16, &[u8])> {
        attributes(self.body.get(fixed..).unwrap_or_default())
    }

    /// The integer at this offset of the fixed structure; 0 beyond its end.
    pub(crate) fn word(&self, at: usize) -> u32 {
        word(&self.body, at)
    }

    fn errno(&self) -> Option<Errno> {
        let code = self.word(0).cast_signed();
        (code != 0).then(|| Errno::from_raw_os_error(code.saturating_neg()))
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_ne_bytes)
}

pub(crate) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// Iterates over attributes, up to the first that does not fit.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(rest.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?) & NLA_TYPE_MASK;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The netlink family of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Route,
    Netfilter,
}

/// A netlink socket, in the network namespace where it was opened.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open(family: Family) -> Result<Self, NetlinkError> {
        Self::listen(family, 0)
    }

    /// Opens a socket that also receives events of other changes: see [`Socket::next_events`].
    pub(crate) fn listen(family: Family, groups: u32) -> Result<Self, NetlinkError> {
        let protocol = match family {
            Family::Route => None,
            Family::Netfilter => Some(netlink::NETFILTER),
        };
        let open = || {
            let fd = net::socket_with(
                AddressFamily::NETLINK,
                SocketType::RAW,
                SocketFlags::CLOEXEC,
                protocol,
            )?;
            net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
            net::sockopt::set_socket_timeout(
                &fd,
                net::sockopt::Timeout::Recv,
                Some(ANSWER_TIMEOUT),
            )?;
            Ok(Self { fd, sequence: 0 })
        };
        open().map_err(|errno| NetlinkError {
            step: "open a netlink socket".into(),
            errno,
        })
    }

    /// Sends all messages as one datagram and waits for each acknowledgement. The kernel processes
    /// them in order; a rejected one does not stop the others. The first rejection is the error.
    pub(crate) fn run(&mut self, messages: &[Message]) -> Result<(), NetlinkError> {
        let first = self.send(messages)?;
        let mut waiting = messages.len();
        let mut refused = Ok(());
        while waiting > 0 {
            for reply in self.receive(&messages[0])? {
                let position = reply.sequence.wrapping_sub(first) as usize;
                let Some(message) = messages.get(position).filter(|_| reply.kind == NLMSG_ERROR)
                else {
                    continue; // an answer to an earlier, abandoned request
                };
                waiting = waiting.saturating_sub(1);
                if let Some(error) = message.refusal(&reply) {
                    refused = refused.and(Err(error));
                }
            }
        }
        refused
    }

    /// Sends one message and collects the answers, dumps included; none after a tolerated error.
    pub(crate) fn ask(&mut self, message: &Message) -> Result<Vec<Reply>, NetlinkError> {
        let sequence = self.send(std::slice::from_ref(message))?;
        let mut answers = Vec::new();
        for _ in 0..MAX_DATAGRAMS {
            for reply in self.receive(message)? {
                match reply.kind {
                    _ if reply.sequence != sequence => {}
                    NLMSG_NOOP => {}
                    NLMSG_ERROR | NLMSG_DONE => {
                        return message.refusal(&reply).map_or(Ok(answers), Err);
                    }
                    _ => answers.push(reply),
                }
            }
        }
        Err(message.error(Errno::MSGSIZE))
    }

    /// Lists all objects of a kind.
    pub(crate) fn dump(
        &mut self,
        kind: u16,
        step: &str,
        body: Attrs,
    ) -> Result<Vec<Reply>, NetlinkError> {
        self.ask(&Message::new(kind, NLM_F_DUMP, step, body))
    }

    /// Sends an nftables transaction, which is atomic, framed by `begin` and `end`.
    ///
    /// Rejections are always answered, in order, so only the last step requests an answer: a
    /// thousand acknowledgements would not fit the receive buffer.
    pub(crate) fn transact(
        &mut self,
        begin: &Message,
        steps: &[Message],
        end: &Message,
    ) -> Result<(), NetlinkError> {
        let Some(last) = steps.len().checked_sub(1) else {
            return Ok(());
        };
        let mut datagram = Vec::with_capacity(4096);
        let first = self.next_sequence();
        begin.write(&mut datagram, first, 0);
        for (position, step) in steps.iter().enumerate() {
            let flags = if position == last { NLM_F_ACK } else { 0 };
            step.write(&mut datagram, self.next_sequence(), flags);
        }
        end.write(&mut datagram, self.next_sequence(), 0);
        self.send_bytes(&datagram)
            .map_err(|errno| begin.error(errno))?;

        let mut refused = Ok(());
        loop {
            for reply in self.receive(begin)? {
                let position = reply.sequence.wrapping_sub(first) as usize;
                if reply.kind != NLMSG_ERROR || position > last + 1 {
                    continue; // an answer to an earlier, abandoned request
                }
                if position == 0 {
                    // The frame was rejected, or the commit failed.
                    return Err(begin.error(reply.errno().unwrap_or(Errno::IO)));
                }
                if let Some(error) = steps[position - 1].refusal(&reply) {
                    refused = refused.and(Err(error));
                }
                if position == last + 1 {
                    return refused;
                }
            }
        }
    }

    /// The next datagram of events; call it when the socket is readable.
    pub(crate) fn next_events(&self) -> Result<Vec<Reply>, NetlinkError> {
        let asked = Message::new(NLMSG_NOOP, 0, "listen for changes", Attrs::default());
        self.receive(&asked)
    }

    /// Sends messages, requesting an answer to each; returns the first sequence number.
    fn send(&mut self, messages: &[Message]) -> Result<u32, NetlinkError> {
        let mut datagram = Vec::with_capacity(1024);
        let first = self.sequence.wrapping_add(1);
        for message in messages {
            message.write(&mut datagram, self.next_sequence(), NLM_F_ACK);
        }
        let Some(named) = messages.first() else {
            return Ok(first);
        };
        self.send_bytes(&datagram)
            .map_err(|errno| named.error(errno))?;
        Ok(first)
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    fn send_bytes(&self, datagram: &[u8]) -> Result<(), Errno> {
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::io::retry_on_intr(|| net::sendto(&self.fd, datagram, SendFlags::empty(), &kernel))
            .map(drop)
    }

    fn receive(&self, asked: &Message) -> Result<Vec<Reply>, NetlinkError> {
        let mut buffer = vec![0u8; 64 * 1024];
        let (_, length) =
            rustix::io::retry_on_intr(|| net::recv(&self.fd, &mut buffer[..], RecvFlags::TRUNC))
                .map_err(|errno| asked.error(errno))?;
        let datagram = buffer
            .get(..length)
            .ok_or_else(|| asked.error(Errno::MSGSIZE))?;
        Ok(split(datagram))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Splits a datagram into messages, up to the first invalid length.
fn split(mut rest: &[u8]) -> Vec<Reply> {
    let mut replies = Vec::new();
    while let Some(header) = rest.get(..HEADER) {
        let length = word(header, 0) as usize;
        let Some(body) = rest.get(HEADER..length) else {
            break;
        };
        replies.push(Reply {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            sequence: word(header, 8),
            body: body.to_vec(),
        });
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    replies
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn attributes_are_padded_and_nested_ones_keep_their_own_length() {
        let inner = Attrs::default().put_str(3, "x");
        let attrs = Attrs::default().put(1, b"abc").nest(2, inner);
        let seen: Vec<_> = attributes(&attrs.0).collect();
        assert_eq!(seen[0], (1, &b"abc"[..]));
        assert_eq!((seen[1].0, attrs.0.len()), (2, 8 + 12));
        assert_eq!(
            attributes(seen[1].1).collect::<Vec<_>>(),
            [(3, &b"x\0"[..])]
        );
    }

    proptest! {
        #[test]
        fn no_datagram_panics_or_loops(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for reply in split(&bytes) {
                prop_assert!(reply.attributes(16).count() <= bytes.len());
                let _ = reply.errno();
            }
        }

        #[test]
        fn attributes_are_found_again(values in prop::collection::vec((1u16..0x3fff, prop::collection::vec(any::<u8>(), 0..40)), 0..20)) {
            let mut attrs = Attrs::default();
            for (kind, value) in &values {
                attrs = attrs.put(*kind, value);
            }
            let found: Vec<_> = attributes(&attrs.0).map(|(kind, value)| (kind, value.to_vec())).collect();
            prop_assert_eq!(found, values);
        }
    }
}

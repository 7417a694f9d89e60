//! The SPDY/3.1 frames that a server of exec, attach and port-forward meets, as in
//! github.com/moby/spdystream: no flow control, no pushed streams.
//!
//! ```text
//! control  1 version:15 | type:16 | flags:8 length:24 | payload
//! data     0 stream:31            | flags:8 length:24 | payload
//! ```

/// Bytes before a frame's payload.
pub const HEADER: usize = 8;
/// The longest accepted payload of a control frame; our header blocks have some hundred bytes.
pub const MAX_CONTROL: usize = 64 << 10;

const VERSION: u16 = 3;
const FIN: u8 = 1;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;

/// Reason for resetting a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    Protocol = 1,
    Refused = 3,
    Cancel = 5,
}

/// A frame that ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("unsupported SPDY version {0} (supported: 3)")]
    Version(u16),
    #[error("control frame of {0} bytes exceeds the limit of {MAX_CONTROL}")]
    TooLong(usize),
    #[error("truncated control frame of type {0}")]
    TooShort(u16),
}

/// The first eight bytes of a frame. Data is read in pieces, so that its length is not bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    Data { stream: u32, fin: bool, len: usize },
    Control { kind: u16, flags: u8, len: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control<'a> {
    /// `block` is compressed, as in the other two that have one: all must be inflated, in order.
    SynStream {
        stream: u32,
        fin: bool,
        block: &'a [u8],
    },
    SynReply {
        block: &'a [u8],
    },
    Headers {
        stream: u32,
        fin: bool,
        block: &'a [u8],
    },
    RstStream {
        stream: u32,
    },
    Ping {
        id: u32,
    },
    GoAway,
    /// SETTINGS, WINDOW_UPDATE and types of later versions, which are ignored.
    Other,
}

impl Header {
    /// # Errors
    /// The frame is not SPDY/3, or too long.
    pub fn parse(bytes: [u8; HEADER]) -> Result<Self, Error> {
        let [a, b, c, d, flags, len @ ..] = bytes;
        let len = usize::from(len[0]) << 16 | usize::from(len[1]) << 8 | usize::from(len[2]);
        if a & 0x80 == 0 {
            return Ok(Self::Data {
                stream: u32::from_be_bytes([a, b, c, d]),
                fin: flags & FIN != 0,
                len,
            });
        }
        let version = u16::from_be_bytes([a & 0x7f, b]);
        if version != VERSION {
            return Err(Error::Version(version));
        }
        if len > MAX_CONTROL {
            return Err(Error::TooLong(len));
        }
        Ok(Self::Control {
            kind: u16::from_be_bytes([c, d]),
            flags,
            len,
        })
    }
}

impl<'a> Control<'a> {
    /// # Errors
    /// The payload ends before its fields do.
    pub fn parse(kind: u16, flags: u8, payload: &'a [u8]) -> Result<Self, Error> {
        let number = |at: usize| {
            let bytes = payload.get(at..at + 4).and_then(|b| b.try_into().ok());
            bytes.map(u32::from_be_bytes).ok_or(Error::TooShort(kind))
        };
        let stream = || number(0).map(|id| id & 0x7fff_ffff);
        let block = |at: usize| payload.get(at..).ok_or(Error::TooShort(kind));
        let fin = flags & FIN != 0;
        Ok(match kind {
            // Stream, associated stream, priority, slot.
            SYN_STREAM => Self::SynStream {
                stream: stream()?,
                fin,
                block: block(10)?,
            },
            SYN_REPLY => Self::SynReply { block: block(4)? },
            HEADERS => Self::Headers {
                stream: stream()?,
                fin,
                block: block(4)?,
            },
            RST_STREAM => Self::RstStream { stream: stream()? },
            PING => Self::Ping { id: number(0)? },
            GOAWAY => Self::GoAway,
            _ => Self::Other,
        })
    }
}

fn control(out: &mut Vec<u8>, kind: u16, payload: &[&[u8]]) {
    let len: usize = payload.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&(0x8000 | VERSION).to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    push_length(out, 0, len);
    payload.iter().for_each(|part| out.extend_from_slice(part));
}

fn push_length(out: &mut Vec<u8>, flags: u8, len: usize) {
    debug_assert!(len < 1 << 24, "a frame of ours is short");
    #[allow(clippy::cast_possible_truncation, reason = "bytes of a length")]
    out.extend_from_slice(&[flags, (len >> 16) as u8, (len >> 8) as u8, len as u8]);
}

/// Answers a SYN_STREAM; `block` is an empty header block, compressed.
pub fn put_reply(out: &mut Vec<u8>, stream: u32, block: &[u8]) {
    control(out, SYN_REPLY, &[&stream.to_be_bytes(), block]);
}

pub fn put_reset(out: &mut Vec<u8>, stream: u32, why: Reset) {
    let why = (why as u32).to_be_bytes();
    control(out, RST_STREAM, &[&stream.to_be_bytes(), &why]);
}

pub fn put_ping(out: &mut Vec<u8>, id: u32) {
    control(out, PING, &[&id.to_be_bytes()]);
}

/// The last frame of a connection: streams up to `last` were served.
pub fn put_goaway(out: &mut Vec<u8>, last: u32) {
    control(out, GOAWAY, &[&last.to_be_bytes(), &[0; 4]]);
}

/// The head of a data frame of `len` bytes, which the caller appends.
pub fn put_data(out: &mut Vec<u8>, stream: u32, fin: bool, len: usize) {
    out.extend_from_slice(&(stream & 0x7fff_ffff).to_be_bytes());
    push_length(out, if fin { FIN } else { 0 }, len);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(frame: &[u8]) -> (Header, &[u8]) {
        let head = frame[..HEADER].try_into().expect("eight bytes");
        (Header::parse(head).expect("a frame"), &frame[HEADER..])
    }

    #[test]
    fn a_ping_is_echoed_as_it_came() {
        let mut out = Vec::new();
        put_ping(&mut out, 7);
        assert_eq!(out, [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 7]);
        let (head, payload) = read(&out);
        let Header::Control { kind, flags, len } = head else {
            panic!("{head:?}");
        };
        assert_eq!(len, payload.len());
        assert_eq!(
            Control::parse(kind, flags, payload),
            Ok(Control::Ping { id: 7 })
        );
    }

    #[test]
    fn another_version_and_a_long_control_frame_are_refused() {
        assert_eq!(
            Header::parse([0x80, 2, 0, 1, 0, 0, 0, 0]),
            Err(Error::Version(2))
        );
        assert_eq!(
            Header::parse([0x80, 3, 0, 1, 0, 1, 0, 1]),
            Err(Error::TooLong(65537))
        );
    }

    proptest! {
        #[test]
        fn a_data_frame_is_read_as_it_was_written(stream in 0u32..1 << 31, fin: bool, len in 0usize..1 << 24) {
            let mut out = Vec::new();
            put_data(&mut out, stream, fin, len);
            prop_assert_eq!(read(&out).0, Header::Data { stream, fin, len });
        }

        #[test]
        fn no_payload_makes_a_control_frame_panic(kind: u16, flags: u8, payload: Vec<u8>) {
            let _ = Control::parse(kind, flags, &payload);
        }

        #[test]
        fn a_reset_names_its_stream(stream in 0u32..1 << 31) {
            let mut out = Vec::new();
            put_reset(&mut out, stream, Reset::Cancel);
            let (head, payload) = read(&out);
            let Header::Control { kind, flags, .. } = head else { panic!("{head:?}") };
            prop_assert_eq!(Control::parse(kind, flags, payload), Ok(Control::RstStream { stream }));
        }
    }
}

//! The wire of NRI in bytes: messages of ttrpc in the frames of the multiplexer. For programs that
//! read the connections of others, and for tests that send invalid messages.
//!
//! ```text
//!   frame   = connection id (u32 BE) | length (u32 BE) | payload
//!   message = length (u32 BE) | stream id (u32 BE) | type (u8) | flags (u8) | body
//! ```

use std::collections::BTreeMap;

use prost::Message as _;

use crate::wire::{
    mux::{self, FrameReader, MuxError, SHORT_FRAME},
    rpc::{
        Code,
        envelope::{HEADER, parse_header},
    },
};
pub use crate::wire::{
    mux::{MAX_FRAME, header},
    rpc::envelope::{DATA, REQUEST, RESPONSE, Request, Response, Status, header as message_header},
};

/// The plugin's service: the runtime calls.
pub const TO_PLUGIN: u32 = mux::PLUGIN_SERVICE;
/// The runtime's service: the plugin calls.
pub const TO_RUNTIME: u32 = mux::RUNTIME_SERVICE;

/// Logical connections that are tracked; NRI has two.
const MOST_CONNECTIONS: usize = 16;

/// Invalid frame or message of the protocol. The stream after it cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("{what} of {length} bytes on connection {connection}: at most {MAX_FRAME} are allowed")]
    TooLong {
        what: &'static str,
        length: usize,
        connection: u32,
    },
    #[error("frames on more than {MOST_CONNECTIONS} connections: NRI has two")]
    TooManyConnections,
}

impl From<MuxError> for Broken {
    fn from(cause: MuxError) -> Self {
        // Splitting into frames has no other error.
        let (length, connection) = match cause {
            MuxError::FrameTooLong(length, connection) => (length, connection),
            _ => (0, 0),
        };
        Self::TooLong {
            what: "a frame",
            length,
            connection,
        }
    }
}

/// One message of ttrpc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub connection: u32,
    pub stream: u32,
    /// [`REQUEST`], [`RESPONSE`], or any other number.
    pub kind: u8,
    flags: u8,
    pub body: Vec<u8>,
}

impl Response {
    pub fn is_unimplemented(&self) -> bool {
        self.status
            .as_ref()
            .is_some_and(|s| s.code == Code::Unimplemented as i32)
    }
}

impl Message {
    /// The number of the message type, if it is neither a request nor an answer.
    pub fn other_kind(&self) -> Option<u8> {
        (![REQUEST, RESPONSE].contains(&self.kind)).then_some(self.kind)
    }

    pub fn is_request(&self) -> bool {
        self.kind == REQUEST
    }

    pub fn request(&self) -> Option<Request> {
        (self.kind == REQUEST).then(|| Request::decode(self.body.as_slice()).ok())?
    }

    pub fn response(&self) -> Option<Response> {
        (self.kind == RESPONSE).then(|| Response::decode(self.body.as_slice()).ok())?
    }

    /// The same call with another request.
    pub fn with(&self, request: &Request) -> Self {
        Self {
            body: request.encode_to_vec(),
            ..self.clone()
        }
    }

    /// A call.
    pub fn call(connection: u32, stream: u32, request: &Request) -> Self {
        Self {
            connection,
            stream,
            kind: REQUEST,
            flags: 0,
            body: request.encode_to_vec(),
        }
    }

    /// The answer to this call.
    pub fn answer(&self, response: &Response) -> Self {
        Self {
            kind: RESPONSE,
            flags: 0,
            body: response.encode_to_vec(),
            ..self.clone()
        }
    }

    /// The answer to this call from a peer that lacks the method.
    pub fn unimplemented(&self, why: &str) -> Self {
        let status = Some(Status {
            code: Code::Unimplemented as i32,
            message: why.to_owned(),
        });
        self.answer(&Response {
            status,
            payload: Vec::new(),
        })
    }

    /// As frames on the socket.
    pub fn frames(&self) -> Vec<u8> {
        let mut head = message_header(self.body.len(), self.stream, self.kind);
        head[HEADER - 1] = self.flags;
        let message = [&head[..], &self.body].concat();
        let first = match message.len() {
            short @ ..=SHORT_FRAME => short,
            _ => HEADER,
        };
        let mut bytes = Vec::with_capacity(message.len() + 16);
        let (header, rest) = message.split_at(first);
        // A message over the limit is sent too, in frames within it.
        for piece in std::iter::once(header).chain(rest.chunks(MAX_FRAME)) {
            bytes.extend(mux::header(self.connection, piece.len()));
            bytes.extend(piece);
        }
        bytes
    }
}

/// Assembles messages from the bytes of a socket.
#[derive(Debug, Default)]
pub struct Reader {
    frames: FrameReader,
    connections: BTreeMap<u32, Vec<u8>>,
}

impl Reader {
    /// Takes bytes in their order of arrival, returns the messages that are now complete.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Message>, Broken> {
        let mut messages = Vec::new();
        self.push_into(bytes, &mut messages)?;
        Ok(messages)
    }

    /// As [`Self::push`]; `messages` has those completed before the error.
    pub fn push_into(&mut self, bytes: &[u8], messages: &mut Vec<Message>) -> Result<(), Broken> {
        let Self {
            frames,
            connections,
        } = self;
        frames.push(bytes, |connection, piece| {
            if connections.len() >= MOST_CONNECTIONS && !connections.contains_key(&connection) {
                return Err(Broken::TooManyConnections);
            }
            let pending = connections.entry(connection).or_default();
            pending.extend(piece);
            while let Some(message) = take(connection, pending)? {
                messages.push(message);
            }
            Ok(())
        })
    }

    /// The bytes of incomplete messages.
    pub fn into_pending(self) -> Vec<u8> {
        self.connections.into_values().flatten().collect()
    }
}

fn take(connection: u32, pending: &mut Vec<u8>) -> Result<Option<Message>, Broken> {
    let Some(&head) = pending.first_chunk() else {
        return Ok(None);
    };
    let (length, stream, kind) = parse_header(head);
    if length > MAX_FRAME {
        return Err(Broken::TooLong {
            what: "a message",
            length,
            connection,
        });
    }
    if pending.len() < HEADER + length {
        return Ok(None);
    }
    let body = pending[HEADER..HEADER + length].to_vec();
    pending.drain(..HEADER + length);
    if pending.is_empty() {
        // Releases a long message's buffer.
        *pending = Vec::new();
    }
    Ok(Some(Message {
        connection,
        stream,
        kind,
        flags: head[HEADER - 1],
        body,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(body: usize) -> Message {
        Message {
            connection: TO_RUNTIME,
            stream: 7,
            kind: REQUEST,
            flags: 0,
            body: vec![5; body],
        }
    }

    #[test]
    fn messages_survive_every_cut() {
        let all = [message(0), message(3), message(5000)];
        let bytes: Vec<u8> = all.iter().flat_map(Message::frames).collect();
        for size in [1, 2, 9, 4096, bytes.len()] {
            let mut reader = Reader::default();
            let mut got = Vec::new();
            for piece in bytes.chunks(size) {
                got.extend(reader.push(piece).expect("frames"));
            }
            assert_eq!(got, all, "in pieces of {size}");
        }
    }

    #[test]
    fn a_long_message_begins_in_a_short_frame() {
        let bytes = message(5000).frames();
        assert_eq!(bytes[..4], TO_RUNTIME.to_be_bytes());
        assert_eq!(bytes[4..8], 10u32.to_be_bytes());
    }

    #[test]
    fn a_frame_that_claims_too_much_is_refused() {
        let mut bytes = TO_PLUGIN.to_be_bytes().to_vec();
        bytes.extend(u32::MAX.to_be_bytes());
        assert!(Reader::default().push(&bytes).is_err());
    }

    #[test]
    fn what_was_whole_before_an_error_is_not_lost() {
        let mut bytes = message(3).frames();
        bytes.extend([0xff; 8]);
        let mut got = Vec::new();
        let mut reader = Reader::default();
        assert!(reader.push_into(&bytes, &mut got).is_err());
        assert_eq!(got, [message(3)]);
    }

    #[test]
    fn connections_that_nri_does_not_have_take_no_memory_without_bound() {
        let mut reader = Reader::default();
        let mut byte_on = |id: u32| {
            let bytes = [&mux::header(id, 1)[..], b"x"].concat();
            reader.push(&bytes)
        };
        for id in 1..=16 {
            assert_eq!(byte_on(id), Ok(Vec::new()));
        }
        assert_eq!(byte_on(1), Ok(Vec::new()));
        assert_eq!(byte_on(17), Err(Broken::TooManyConnections));
    }
}

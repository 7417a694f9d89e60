//! Frames of the mux and messages of ttrpc, as far as the tap looks into them.
//!
//! ```text
//!   frame   = connection id (u32 BE) | length (u32 BE) | payload
//!   message = length (u32 BE) | stream id (u32 BE) | type (u8) | flags (u8) | body
//! ```

use std::collections::BTreeMap;

use prost::Message as _;

/// The plugin's service: the runtime calls.
pub const TO_PLUGIN: u32 = 1;
/// The runtime's service: the plugin calls.
pub const TO_RUNTIME: u32 = 2;

const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;
const HEADER: usize = 10;
/// The start of each message must lie in a frame of at most so many bytes (NRI-110).
const SHORT_FRAME: usize = 4096;
const LONGEST: usize = (4 << 20) + HEADER;
/// UNIMPLEMENTED of gRPC.
const UNIMPLEMENTED: i32 = 12;

/// What is no frame or message of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} of {length} bytes on connection {connection}")]
pub struct TooLong {
    what: &'static str,
    length: usize,
    connection: u32,
}

/// One message of ttrpc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub connection: u32,
    pub stream: u32,
    kind: u8,
    flags: u8,
    pub body: Vec<u8>,
}

/// The request of a call; unknown fields are not kept.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Request {
    #[prost(string, tag = "1")]
    pub service: String,
    #[prost(string, tag = "2")]
    pub method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
    #[prost(int64, tag = "4")]
    pub timeout_nano: i64,
    /// Pairs of a key and a value, carried as they are.
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub metadata: Vec<Vec<u8>>,
}

/// The answer to a call.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Response {
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

impl Response {
    pub fn is_unimplemented(&self) -> bool {
        self.status
            .as_ref()
            .is_some_and(|s| s.code == UNIMPLEMENTED)
    }
}

impl Message {
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

    /// The answer to this call of one who does not know the method.
    pub fn unimplemented(&self, why: &str) -> Self {
        let status = Some(Status {
            code: UNIMPLEMENTED,
            message: why.to_owned(),
        });
        self.answer(&Response {
            status,
            payload: Vec::new(),
        })
    }

    /// As frames on the socket.
    pub fn frames(&self) -> Vec<u8> {
        let mut message = Vec::with_capacity(HEADER + self.body.len());
        let length = u32::try_from(self.body.len()).unwrap_or(u32::MAX);
        message.extend(length.to_be_bytes());
        message.extend(self.stream.to_be_bytes());
        message.extend([self.kind, self.flags]);
        message.extend(&self.body);
        let first = match message.len() {
            short @ ..=SHORT_FRAME => short,
            _ => HEADER,
        };
        let mut bytes = Vec::with_capacity(message.len() + 16);
        let (header, rest) = message.split_at(first);
        for piece in [header, rest].into_iter().filter(|p| !p.is_empty()) {
            bytes.extend(self.connection.to_be_bytes());
            bytes.extend(u32::try_from(piece.len()).unwrap_or(u32::MAX).to_be_bytes());
            bytes.extend(piece);
        }
        bytes
    }
}

/// Puts messages together from the bytes of a socket.
#[derive(Debug, Default)]
pub struct Reader {
    bytes: Vec<u8>,
    connections: BTreeMap<u32, Vec<u8>>,
}

impl Reader {
    /// Takes bytes as they came, gives the messages that are whole now, in order.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Message>, TooLong> {
        self.bytes.extend(bytes);
        let mut messages = Vec::new();
        let mut at = 0;
        while let Some((connection, length)) = words(&self.bytes[at..]) {
            if length > LONGEST {
                return Err(too_long("a frame", length, connection));
            }
            let Some(payload) = self.bytes[at + 8..].get(..length) else {
                break;
            };
            let pending = self.connections.entry(connection).or_default();
            pending.extend(payload);
            at += 8 + length;
            while let Some(message) = take(connection, pending)? {
                messages.push(message);
            }
        }
        self.bytes.drain(..at);
        Ok(messages)
    }
}

fn take(connection: u32, pending: &mut Vec<u8>) -> Result<Option<Message>, TooLong> {
    let (Some((length, stream)), Some(&[kind, flags])) = (words(pending), pending.get(8..HEADER))
    else {
        return Ok(None);
    };
    let length = length as usize;
    if length > LONGEST {
        return Err(too_long("a message", length, connection));
    }
    if pending.len() < HEADER + length {
        return Ok(None);
    }
    let stream = u32::try_from(stream).unwrap_or_default();
    let body = pending[HEADER..HEADER + length].to_vec();
    pending.drain(..HEADER + length);
    Ok(Some(Message {
        connection,
        stream,
        kind,
        flags,
        body,
    }))
}

/// Two numbers at the start.
fn words(bytes: &[u8]) -> Option<(u32, usize)> {
    let &[a, b, c, d, e, f, g, h] = bytes.first_chunk::<8>()?;
    let first = u32::from_be_bytes([a, b, c, d]);
    let second = u32::from_be_bytes([e, f, g, h]);
    Some((first, second as usize))
}

fn too_long(what: &'static str, length: usize, connection: u32) -> TooLong {
    TooLong {
        what,
        length,
        connection,
    }
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
        assert_eq!(words(&bytes), Some((TO_RUNTIME, HEADER)));
    }

    #[test]
    fn a_frame_that_claims_too_much_is_refused() {
        let mut bytes = TO_PLUGIN.to_be_bytes().to_vec();
        bytes.extend(u32::MAX.to_be_bytes());
        assert!(Reader::default().push(&bytes).is_err());
    }
}

//! The envelope of a ttrpc message: a header, and the called method or the result of a call.
//!
//! ```text
//!   message = length (u32 BE) | stream id (u32 BE) | type (u8) | flags (u8) | body
//! ```

/// Bytes of a message's header.
pub(crate) const HEADER: usize = 10;
/// A call, by its type in the header.
pub const REQUEST: u8 = 1;
/// An answer.
pub const RESPONSE: u8 = 2;
/// A part of a stream; NRI has no streams.
pub const DATA: u8 = 3;

/// The request of a call; unknown fields are dropped.
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
    /// Pairs of a key and a value, unparsed.
    #[prost(bytes = "vec", repeated, tag = "5")]
    pub metadata: Vec<Vec<u8>>,
}

/// One pair of a request's metadata.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
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

/// The header of a message: length of its body, stream id, type.
pub fn header(length: usize, stream: u32, kind: u8) -> [u8; HEADER] {
    let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    let [e, f, g, h] = stream.to_be_bytes();
    [a, b, c, d, e, f, g, h, kind, 0]
}

/// Length of the body, stream id, type.
pub(crate) fn parse_header(header: [u8; HEADER]) -> (usize, u32, u8) {
    let [a, b, c, d, e, f, g, h, kind, _flags] = header;
    let length = u32::from_be_bytes([a, b, c, d]);
    let stream = u32::from_be_bytes([e, f, g, h]);
    (usize::try_from(length).unwrap_or(usize::MAX), stream, kind)
}

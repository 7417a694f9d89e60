//! A plugin made of frames: for what no stub would do.
//!
//! A frame of the multiplexer is a connection's number, a length and bytes; a message of ttrpc in it is a length, a
//! stream's number, a kind, flags and bytes.

use std::{io, path::Path, time::Duration};

use nri::proto::{ConfigureResponse, RegisterPluginRequest};
use prost::Message as _;
use prost13::Message as _;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

/// The envelope of ttrpc's requests.
#[derive(Clone, PartialEq, prost::Message)]
struct Request {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(bytes = "vec", tag = "3")]
    payload: Vec<u8>,
}

/// The envelope of its answers.
#[derive(Clone, PartialEq, prost::Message)]
struct Response {
    #[prost(message, optional, tag = "1")]
    status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    payload: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// The two connections in the multiplexer.
const PLUGIN: u32 = 1;
const RUNTIME: u32 = 2;
const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;
/// Longer messages go in more than one frame.
const FRAME: usize = 1 << 20;

/// A request of the runtime.
#[derive(Debug)]
pub struct Call {
    pub method: String,
    pub payload: Vec<u8>,
    stream: u32,
}

/// A message of the runtime.
#[derive(Debug)]
pub enum Message {
    Call(Call),
    /// The answer to a request of the plugin: accepted, or refused with this text.
    Answer(Result<(), String>),
}

/// A connection without any rules.
pub struct Raw {
    stream: UnixStream,
    next: u32,
}

impl Raw {
    /// # Errors
    /// The socket's.
    pub async fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket).await?;
        Ok(Self { stream, next: 1 })
    }

    async fn message(&mut self, connection: u32, stream: u32, kind: u8, payload: &[u8]) {
        let length = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes();
        let mut message = length(payload.len()).to_vec();
        message.extend(stream.to_be_bytes());
        message.extend([kind, 0]);
        message.extend(payload);
        for part in message.chunks(FRAME) {
            let mut frame = connection.to_be_bytes().to_vec();
            frame.extend(length(part.len()));
            frame.extend(part);
            // The other end may have had enough already.
            if self.stream.write_all(&frame).await.is_err() {
                return;
            }
        }
    }

    /// Sends a request; the answer is one of [`Raw::next`].
    pub async fn request(&mut self, method: &str, payload: Vec<u8>) {
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Runtime".into(),
            method: method.into(),
            payload,
        };
        let id = self.next;
        self.next += 2;
        let request = request.encode_to_vec();
        self.message(RUNTIME, id, REQUEST, &request).await;
    }

    /// Asks to be registered.
    pub async fn register(&mut self, index: &str, name: &str) {
        let request = RegisterPluginRequest {
            plugin_name: name.into(),
            plugin_idx: index.into(),
            nri_version: String::new(),
        };
        self.request("RegisterPlugin", request.encode_to_vec())
            .await;
    }

    /// Answers a request with these bytes.
    pub async fn answer(&mut self, call: &Call, payload: Vec<u8>) {
        let response = Response {
            status: None,
            payload,
        };
        let response = response.encode_to_vec();
        self.message(PLUGIN, call.stream, RESPONSE, &response).await;
    }

    /// The next message. `None`: the connection has ended.
    pub async fn next(&mut self) -> Option<Message> {
        let mut bytes = self.frame().await?;
        let length = usize::try_from(u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?)).ok()?;
        // The header may come in a frame of its own.
        while bytes.len() < length + 10 {
            bytes.extend(self.frame().await?);
        }
        let stream = u32::from_be_bytes(bytes.get(4..8)?.try_into().ok()?);
        let payload = &bytes[10..];
        if bytes[8] == REQUEST {
            let request = Request::decode(payload).ok()?;
            return Some(Message::Call(Call {
                method: request.method,
                payload: request.payload,
                stream,
            }));
        }
        let status = Response::decode(payload).ok()?.status;
        let refused = status.filter(|status| status.code != 0);
        Some(Message::Answer(
            refused.map_or(Ok(()), |status| Err(status.message)),
        ))
    }

    async fn frame(&mut self) -> Option<Vec<u8>> {
        let _connection = self.stream.read_u32().await.ok()?;
        let length = usize::try_from(self.stream.read_u32().await.ok()?).ok()?;
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).await.ok()?;
        Some(bytes)
    }

    /// Waits for a request of this method; answers those before it: Configure with these events, others with nothing.
    ///
    /// # Errors
    /// One line: the connection has ended, or a request of the plugin was refused.
    pub async fn until(&mut self, method: &str, events: i32) -> Result<Call, String> {
        loop {
            match self.next().await {
                None => return Err("the connection ended".to_owned()),
                Some(Message::Answer(Ok(()))) => {}
                Some(Message::Answer(Err(refused))) => return Err(format!("refused: {refused}")),
                Some(Message::Call(call)) if call.method == method => return Ok(call),
                Some(Message::Call(call)) => {
                    let events = ConfigureResponse {
                        events,
                        ..Default::default()
                    };
                    let answer = match &*call.method {
                        "Configure" => events.encode_to_vec(),
                        _ => Vec::new(),
                    };
                    self.answer(&call, answer).await;
                }
            }
        }
    }

    /// Whether the runtime refuses or ends it within this time; the runtime's requests get no answer.
    pub async fn is_turned_away(&mut self, within: Duration) -> bool {
        let wait =
            async { while !matches!(self.next().await, None | Some(Message::Answer(Err(_)))) {} };
        tokio::time::timeout(within, wait).await.is_ok()
    }
}

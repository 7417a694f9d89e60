//! A plugin made of frames: for what no stub would do.
//!
//! A frame of the multiplexer is a connection's number, a length and bytes; a message of ttrpc in it is a length, a
//! stream's number, a kind, flags and bytes.

use std::{path::Path, time::Duration};

use nri::proto::{ConfigureResponse, RegisterPluginRequest};
use prost::Message;
use prost13::Message as _;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use crate::{
    plugin::PATIENCE,
    verdict::{Checked, done, miss},
};

/// The envelope of ttrpc's requests.
#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(bytes = "vec", tag = "3")]
    payload: Vec<u8>,
}

/// The envelope of its answers.
#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(message, optional, tag = "1")]
    status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    payload: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
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

/// A request of the runtime.
#[derive(Debug)]
pub(crate) struct Call {
    pub method: String,
    stream: u32,
}

/// A connection without any rules.
pub(crate) struct Raw {
    stream: UnixStream,
    next: u32,
}

impl Raw {
    pub(crate) async fn connect(socket: &Path) -> Checked<Self> {
        let connected = UnixStream::connect(socket).await;
        let stream = done("the NRI socket takes connections", connected)?;
        Ok(Self { stream, next: 1 })
    }

    async fn message(&mut self, connection: u32, stream: u32, kind: u8, payload: &[u8]) {
        let length = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes();
        let mut frame = connection.to_be_bytes().to_vec();
        frame.extend(length(payload.len() + 10));
        frame.extend(length(payload.len()));
        frame.extend(stream.to_be_bytes());
        frame.extend([kind, 0]);
        frame.extend(payload);
        // The other end may have had enough already.
        let _ = self.stream.write_all(&frame).await;
    }

    /// Asks to be registered; the answer is one of [`Raw::next`].
    pub(crate) async fn register(&mut self, index: &str, name: &str) {
        let payload = RegisterPluginRequest {
            plugin_name: name.into(),
            plugin_idx: index.into(),
            nri_version: String::new(),
        };
        let request = Request {
            service: "nri.pkg.api.v1alpha1.Runtime".into(),
            method: "RegisterPlugin".into(),
            payload: payload.encode_to_vec(),
        };
        let id = self.next;
        self.next += 2;
        let request = request.encode_to_vec();
        self.message(RUNTIME, id, REQUEST, &request).await;
    }

    /// Answers a request with these bytes.
    pub(crate) async fn answer(&mut self, call: &Call, payload: Vec<u8>) {
        let response = Response {
            status: None,
            payload,
        };
        let response = response.encode_to_vec();
        self.message(PLUGIN, call.stream, RESPONSE, &response).await;
    }

    /// What comes next: a request of the runtime, or the answer to the registration. `None`: the connection has ended.
    async fn next(&mut self) -> Option<Result<Call, Result<(), String>>> {
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
            let method = request.method;
            return Some(Ok(Call { method, stream }));
        }
        let status = Response::decode(payload).ok()?.status;
        let refused = status.filter(|status| status.code != 0);
        Some(Err(refused.map_or(Ok(()), |status| Err(status.message))))
    }

    async fn frame(&mut self) -> Option<Vec<u8>> {
        let _connection = self.stream.read_u32().await.ok()?;
        let length = usize::try_from(self.stream.read_u32().await.ok()?).ok()?;
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).await.ok()?;
        Some(bytes)
    }

    /// Registers and waits for a request of this method; answers what comes before it: Configure with these events,
    /// Synchronize with nothing.
    pub(crate) async fn until(&mut self, method: &str, events: i32) -> Checked<Call> {
        let wait = async {
            loop {
                match self.next().await {
                    None => return Err("the connection ended".to_owned()),
                    Some(Err(Ok(()))) => {}
                    Some(Err(Err(refused))) => return Err(format!("refused: {refused}")),
                    Some(Ok(call)) if call.method == method => return Ok(call),
                    Some(Ok(call)) => {
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
        };
        let expected = format!("a plugin made of frames gets {method}");
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(Ok(call)) => Ok(call),
            Ok(Err(seen)) => miss(expected, seen),
            Err(_) => miss(expected, format!("nothing for {PATIENCE:?}")),
        }
    }

    /// Whether the runtime refuses or ends it within this time; whatever it asks stays without an answer.
    pub(crate) async fn is_turned_away(&mut self, within: Duration) -> bool {
        let wait = async { while !matches!(self.next().await, None | Some(Err(Err(_)))) {} };
        tokio::time::timeout(within, wait).await.is_ok()
    }
}

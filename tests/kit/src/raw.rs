//! A plugin made of frames: for actions that a stub prevents.

use std::{collections::VecDeque, io, path::Path, time::Duration};

use nri::{
    RUNTIME_API,
    proto::{ConfigureResponse, RegisterPluginRequest},
    wire::frame::{self, Reader, Request, Response, TO_RUNTIME},
};
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

/// A request of the runtime.
#[derive(Debug)]
pub struct Call {
    pub method: String,
    pub payload: Vec<u8>,
    message: frame::Message,
}

/// A message of the runtime.
#[derive(Debug)]
pub enum Message {
    Call(Call),
    /// The answer to a request of the plugin: accepted, or refused with this text.
    Answer(Result<(), String>),
}

/// A connection without rules.
pub struct Raw {
    stream: UnixStream,
    reader: Reader,
    unread: VecDeque<frame::Message>,
    next: u32,
}

impl Raw {
    /// # Errors
    /// The socket's error.
    pub async fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket).await?;
        Ok(Self {
            stream,
            reader: Reader::default(),
            unread: VecDeque::new(),
            next: 1,
        })
    }

    async fn send(&mut self, message: &frame::Message) {
        // The other end may have closed already.
        let _ = self.stream.write_all(&message.frames()).await;
    }

    /// Sends a request; [`Raw::next`] returns its answer.
    pub async fn request(&mut self, method: &str, payload: Vec<u8>) {
        let request = Request {
            service: RUNTIME_API.into(),
            method: method.into(),
            payload,
            ..Request::default()
        };
        let call = frame::Message::call(TO_RUNTIME, self.next, &request);
        self.next += 2;
        self.send(&call).await;
    }

    /// Sends a registration request.
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
        let status = None;
        let answer = call.message.answer(&Response { status, payload });
        self.send(&answer).await;
    }

    /// The next message. `None`: the connection has ended.
    pub async fn next(&mut self) -> Option<Message> {
        let message = loop {
            if let Some(message) = self.unread.pop_front() {
                break message;
            }
            let mut bytes = [0; 16 << 10];
            let length = self.stream.read(&mut bytes).await.ok()?;
            if length == 0 {
                return None;
            }
            self.unread.extend(self.reader.push(&bytes[..length]).ok()?);
        };
        if let Some(Request {
            method, payload, ..
        }) = message.request()
        {
            return Some(Message::Call(Call {
                method,
                payload,
                message,
            }));
        }
        let status = message.response()?.status;
        let refused = status.filter(|status| status.code != 0);
        Some(Message::Answer(
            refused.map_or(Ok(()), |status| Err(status.message)),
        ))
    }

    /// Waits for a request of this method. Answers earlier ones; Configure gets these events.
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

    /// Whether the runtime rejects or closes the connection in this time. Its requests get no
    /// answer.
    pub async fn is_turned_away(&mut self, within: Duration) -> bool {
        let wait =
            async { while !matches!(self.next().await, None | Some(Message::Answer(Err(_)))) {} };
        tokio::time::timeout(within, wait).await.is_ok()
    }
}

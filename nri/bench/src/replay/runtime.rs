//! The runtime's end of a replayed connection: makes the given calls, and returns the recorded
//! answers.

use std::{collections::BTreeMap, io, time::Duration};

use nri::{
    Code, PLUGIN_API,
    wire::frame::{Message, Reader, Request, Response, Status, TO_PLUGIN, TO_RUNTIME},
};
use nri_record::{Failure, Part, Values, decode, encode, json};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::{Instant, timeout_at},
};

use super::script::{Answer, Call};
use crate::differ::differences;

const PIECE: usize = 16 << 10;

/// Result of a call to the plugin.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Came {
    Answer {
        message: Value,
        payload: Vec<u8>,
    },
    Error(Failure),
    /// It does not parse as the message.
    Garbage(String),
    TimedOut,
    Lost(String),
}

/// An UpdateContainers that the plugin made.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Made {
    pub message: Value,
    /// It was identified by a recorded one.
    pub matched: bool,
}

pub(super) struct Runtime {
    stream: UnixStream,
    reader: Reader,
    env: Values,
    last_id: u32,
    /// Received answers that are not taken yet, by call.
    answers: BTreeMap<u32, Message>,
    /// `NN-name` of the plugin that has registered.
    pub registered: Option<String>,
    /// The plugin's requests, in order.
    pub made: Vec<Made>,
    /// The recorded answers to UpdateContainers, until each is used.
    on_file: Vec<Option<Call>>,
}

impl Runtime {
    pub(super) fn new(
        stream: UnixStream,
        env: Values,
        updates: impl IntoIterator<Item = Call>,
    ) -> Self {
        Self {
            stream,
            reader: Reader::default(),
            env,
            // Odd, and rising (ids of the client side of a connection).
            last_id: 0,
            answers: BTreeMap::new(),
            registered: None,
            made: Vec::new(),
            on_file: updates.into_iter().map(Some).collect(),
        }
    }

    /// Calls the plugin and waits for its answer.
    pub(super) async fn call(&mut self, method: &str, message: &Value, limit: Duration) -> Came {
        let payload = match encode(method, Part::Request, message) {
            Ok(payload) => payload,
            Err(why) => return Came::Lost(format!("the recorded {method} cannot be sent: {why}")),
        };
        self.last_id += if self.last_id == 0 { 1 } else { 2 };
        let id = self.last_id;
        let request = Request {
            service: PLUGIN_API.to_owned(),
            method: method.to_owned(),
            payload,
            timeout_nano: i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX),
            metadata: Vec::new(),
        };
        let deadline = Instant::now() + limit;
        let frames = Message::call(TO_PLUGIN, id, &request).frames();
        match timeout_at(deadline, self.stream.write_all(&frames)).await {
            Err(_) => return Came::TimedOut,
            Ok(Err(e)) => return Came::Lost(e.to_string()),
            Ok(Ok(())) => {}
        }
        let answered = self
            .until(deadline, |runtime| runtime.answers.contains_key(&id))
            .await;
        match (answered, self.answers.remove(&id)) {
            (_, Some(answer)) => self.came(method, &answer),
            (Err(e), None) => Came::Lost(e.to_string()),
            (Ok(_), None) => Came::TimedOut,
        }
    }

    fn came(&self, method: &str, answer: &Message) -> Came {
        let Some(response) = answer.response() else {
            return Came::Garbage("the answer cannot be decoded".to_owned());
        };
        if let Some(Status { code, message }) = response.status.filter(|s| s.code != 0) {
            // A plugin's ttrpc may have the same timeout, and report it first.
            return if code == Code::DeadlineExceeded as i32 {
                Came::TimedOut
            } else {
                Came::Error(Failure { code, message })
            };
        }
        match decode(PLUGIN_API, method, Part::Answer, &response.payload) {
            Some(Ok(decoded)) => Came::Answer {
                message: self.as_recorded(decoded.message),
                payload: response.payload,
            },
            Some(Err(why)) => Came::Garbage(why),
            None => Came::Garbage("NRI has no such call".to_owned()),
        }
    }

    /// Reads from the plugin until this is true; false at the limit.
    pub(super) async fn until(
        &mut self,
        deadline: Instant,
        holds: impl Fn(&Self) -> bool,
    ) -> io::Result<bool> {
        let mut piece = vec![0; PIECE];
        loop {
            if holds(self) {
                return Ok(true);
            }
            let Ok(read) = timeout_at(deadline, self.stream.read(&mut piece)).await else {
                return Ok(false);
            };
            let read = read?;
            if read == 0 {
                return Err(io::Error::other("the plugin has closed its connection"));
            }
            let messages = self.reader.push(&piece[..read]).map_err(io::Error::other)?;
            for message in messages {
                self.take(message).await?;
            }
        }
    }

    async fn take(&mut self, message: Message) -> io::Result<()> {
        if message.connection == TO_PLUGIN {
            self.answers.insert(message.stream, message);
            return Ok(());
        }
        let Some(request) = message
            .request()
            .filter(|_| message.connection == TO_RUNTIME)
        else {
            return Ok(());
        };
        let (status, payload) = match self.answer(&request) {
            Ok(payload) => (None, payload),
            Err(status) => (Some(status), Vec::new()),
        };
        let answer = message.answer(&Response { status, payload });
        self.stream.write_all(&answer.frames()).await
    }

    fn answer(&mut self, request: &Request) -> Result<Vec<u8>, Status> {
        let (service, method) = (&request.service, request.method.as_str());
        let status = |code: Code, message: String| Status {
            code: code as i32,
            message,
        };
        let decoded = match decode(service, method, Part::Request, &request.payload) {
            Some(Ok(decoded)) => decoded.message,
            Some(Err(why)) => return Err(status(Code::InvalidArgument, why)),
            None => {
                let why = format!("{service}/{method} is not served by this runtime");
                return Err(status(Code::Unimplemented, why));
            }
        };
        match method {
            "RegisterPlugin" => {
                let text = |key: &str| decoded.get(key).and_then(Value::as_str).unwrap_or_default();
                let (index, name) = (text("plugin_idx"), text("plugin_name"));
                self.registered = Some(format!("{index}-{name}"));
                Ok(Vec::new())
            }
            _ => self.update(decoded),
        }
    }

    /// The recorded answer to the same call, or success.
    fn update(&mut self, message: Value) -> Result<Vec<u8>, Status> {
        let message = self.as_recorded(message);
        let same = |call: &&mut Option<Call>| {
            let recorded = call.as_ref().map(|call| &call.message);
            recorded.is_some_and(|recorded| differences(recorded, &message).is_empty())
        };
        let on_file = self.on_file.iter_mut().find(same).and_then(Option::take);
        self.made.push(Made {
            message,
            matched: false,
        });
        match on_file.map(|call| call.answer) {
            Some(Answer::Message(answer)) => encode("UpdateContainers", Part::Answer, &answer)
                .map_err(|message| Status {
                    code: Code::InvalidArgument as i32,
                    message,
                }),
            Some(Answer::Error(failure)) => Err(Status {
                code: failure.code,
                message: failure.message,
            }),
            _ => Ok(Vec::new()),
        }
    }

    fn as_recorded(&self, mut message: Value) -> Value {
        if self.env == Values::Redacted {
            json::redact(&mut message);
        }
        message
    }
}

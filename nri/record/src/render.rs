//! Renders events as lines: matches answers to calls, and adds plugin names after registration.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use nri::{
    proto::KeyValue,
    wire::frame::{Message, Request},
};
use prost::Message as _;
use serde_json::Value;

use super::{
    json,
    line::{Failure, Line, Side, Unread, Values, What},
    methods::{Decoded, Part, decode},
    queue::{Event, Happened, seconds},
};

/// Unanswered calls that are remembered per connection.
const MOST_CALLS: usize = 4096;
/// Characters kept of their names.
const MOST_OF_A_NAME: usize = 256;

/// Renders events as lines, in order.
pub(super) struct Renderer {
    env: Values,
    connections: BTreeMap<u64, Connection>,
}

#[derive(Default)]
struct Connection {
    plugin: Option<String>,
    /// Unanswered calls, by caller, logical connection and id.
    calls: BTreeMap<(Side, u32, u32), (String, String)>,
    /// Sides that have closed.
    closed: Vec<Side>,
}

impl Renderer {
    pub(super) fn new(env: Values) -> Self {
        Self {
            env,
            connections: BTreeMap::new(),
        }
    }

    pub(super) fn line(&mut self, event: Event) -> Line {
        let Event {
            at,
            connection: number,
            happened,
        } = event;
        let at = seconds(at);
        let line = |plugin: Option<String>, what| Line {
            at,
            connection: number,
            plugin,
            what,
        };
        let env = self.env;
        if let Happened::Dropped(lines) = happened {
            return line(None, What::Dropped { lines });
        }
        let connection = self.connections.entry(number).or_default();
        let what = match happened {
            Happened::Opened => What::Opened,
            Happened::Message { from, message } => connection.message(env, from, message),
            Happened::Unread { from, why, bytes } => What::Unread {
                from,
                unread: unread(env, why, &bytes),
            },
            Happened::Closed { by, why } => {
                connection.closed.extend(by);
                What::Closed { by, why }
            }
            Happened::Dropped(lines) => What::Dropped { lines },
        };
        let plugin = connection.plugin.clone();
        let over = match &what {
            What::Closed { by: None, .. } => true,
            _ => connection.closed.len() > 1,
        };
        if over {
            self.connections.remove(&number);
        }
        line(plugin, what)
    }
}

impl Connection {
    fn message(&mut self, env: Values, from: Side, message: Message) -> What {
        let strange = |why: String| What::Unread {
            from,
            unread: unread(env, why, &message.body),
        };
        let key = (message.connection, message.stream);
        let (channel, id) = key;
        if let Some(kind) = message.other_kind() {
            let what = format!("a message of type {kind} on connection {channel}, call {id}");
            return strange(what);
        }
        if message.is_request() {
            return match message.request() {
                Some(request) => self.request(env, from, channel, id, request),
                None => strange(format!(
                    "request {id} on connection {channel} cannot be read"
                )),
            };
        }
        let caller = match from {
            Side::Plugin => Side::Runtime,
            Side::Runtime => Side::Plugin,
        };
        let Some((service, method)) = self.calls.remove(&(caller, channel, id)) else {
            let what =
                format!("an answer to call {id} on connection {channel}, which was not seen");
            return strange(what);
        };
        let Some(response) = message.response() else {
            return strange(format!("the answer to {method} cannot be read"));
        };
        let error = response.status.filter(|status| status.code != 0);
        let (message, unread) = match &error {
            Some(_) => (None, None),
            None => read(env, &service, &method, Part::Answer, &response.payload),
        };
        What::Answer {
            from,
            id,
            service,
            method,
            message,
            error: error.map(|status| Failure {
                code: status.code,
                message: status.message,
            }),
            unread,
        }
    }

    fn request(&mut self, env: Values, from: Side, channel: u32, id: u32, call: Request) -> What {
        let (service, method) = (call.service, call.method);
        if self.calls.len() >= MOST_CALLS {
            self.calls.pop_first();
        }
        // Untrusted: no valid name is longer.
        let cut = |name: &str| name.chars().take(MOST_OF_A_NAME).collect::<String>();
        let names = (cut(&service), cut(&method));
        self.calls.insert((from, channel, id), names);
        let (message, unread) = read(env, &service, &method, Part::Request, &call.payload);
        if let (true, Some(message)) = (method == "RegisterPlugin", &message) {
            let text = |key: &str| message.get(key).and_then(Value::as_str).unwrap_or_default();
            self.plugin = Some(format!("{}-{}", text("plugin_idx"), text("plugin_name")));
        }
        let pairs = call.metadata.iter();
        let pairs = pairs.filter_map(|pair| KeyValue::decode(pair.as_slice()).ok());
        What::Request {
            from,
            id,
            timeout: (call.timeout_nano > 0).then(|| call.timeout_nano as f64 / 1e9),
            metadata: pairs.map(|pair| (pair.key, pair.value)).collect(),
            service,
            method,
            message,
            unread,
        }
    }
}

/// The message, and its bytes that could not be parsed.
fn read(
    env: Values,
    service: &str,
    method: &str,
    part: Part,
    bytes: &[u8],
) -> (Option<Value>, Option<Unread>) {
    match decode(service, method, part, bytes) {
        None => {
            let why = "NRI has no such call".to_owned();
            (None, Some(unread(env, why, bytes)))
        }
        Some(Err(why)) => (None, Some(unread(env, why, bytes))),
        Some(Ok(Decoded {
            mut message,
            unknown,
        })) => {
            if env == Values::Redacted {
                json::redact(&mut message);
            }
            let unread = (unknown > 0).then(|| {
                let why = format!("{unknown} bytes are fields that this version does not know");
                unread(env, why, bytes)
            });
            (Some(message), unread)
        }
    }
}

fn unread(env: Values, why: String, bytes: &[u8]) -> Unread {
    Unread {
        why,
        bytes: bytes.len(),
        base64: (env == Values::Kept).then(|| BASE64_STANDARD.encode(bytes)),
    }
}

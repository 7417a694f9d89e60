//! The head of a request: its kind of session, its token, and its protocol.

use hyper::{
    HeaderMap, Method, StatusCode,
    header::{
        CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
        SEC_WEBSOCKET_VERSION, UPGRADE,
    },
};

use super::{channels, status};

pub const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const ACCEPTED_PROTOCOLS: HeaderName =
    HeaderName::from_static("x-accepted-stream-protocol-versions");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Exec,
    Attach,
    PortForward,
}

impl Verb {
    /// Its name in the path of the URL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }
}

/// Verb and token of `/<verb>/<token>`.
pub fn target(path: &str) -> Option<(Verb, &str)> {
    let (verb, token) = path.strip_prefix('/')?.split_once('/')?;
    let verbs = [Verb::Exec, Verb::Attach, Verb::PortForward];
    let verb = verbs.into_iter().find(|v| v.name() == verb)?;
    (!token.is_empty() && !token.contains('/')).then_some((verb, token))
}

/// Protocol of the connection after the answer 101.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upgrade {
    Spdy(Spdy),
    WebSocket {
        key: HeaderValue,
        protocol: WebSocket,
    },
}

/// A protocol over SPDY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spdy {
    pub name: &'static str,
    /// Of the error stream.
    pub status: status::Format,
    /// It has a stream for terminal sizes.
    pub resize: bool,
}

/// A protocol over WebSocket; without a name if the client requested none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebSocket {
    pub name: Option<&'static str>,
    pub carries: Carries,
}

/// Meaning of a WebSocket's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carries {
    Channels {
        format: channels::Format,
        status: status::Format,
    },
    /// Pieces of a SPDY connection.
    Spdy,
}

const fn spdy(name: &'static str, status: status::Format, resize: bool) -> Spdy {
    Spdy {
        name,
        status,
        resize,
    }
}

const fn channels(
    name: &'static str,
    base64: bool,
    half_close: bool,
    status: status::Format,
) -> WebSocket {
    let format = channels::Format { base64, half_close };
    WebSocket {
        name: Some(name),
        carries: Carries::Channels { format, status },
    }
}

use status::Format::{Json, Text};

const SPDY_COMMAND: [Spdy; 4] = [
    spdy("v4.channel.k8s.io", Json, true),
    spdy("v3.channel.k8s.io", Text, true),
    spdy("v2.channel.k8s.io", Text, false),
    spdy("channel.k8s.io", Text, false),
];
const SPDY_PORTS: [Spdy; 1] = [spdy("portforward.k8s.io", Text, false)];
const WEBSOCKET_COMMAND: [WebSocket; 5] = [
    channels("v5.channel.k8s.io", false, true, Json),
    channels("v4.channel.k8s.io", false, false, Json),
    channels("v4.base64.channel.k8s.io", true, false, Json),
    channels("channel.k8s.io", false, false, Text),
    channels("base64.channel.k8s.io", true, false, Text),
];
const WEBSOCKET_PORTS: [WebSocket; 3] = [
    WebSocket {
        name: Some("SPDY/3.1+portforward.k8s.io"),
        carries: Carries::Spdy,
    },
    channels("v4.channel.k8s.io", false, false, Text),
    channels("v4.base64.channel.k8s.io", true, false, Text),
];
/// For a client that names no protocol: the oldest.
const WEBSOCKET_UNNAMED: WebSocket = WebSocket {
    name: None,
    carries: Carries::Channels {
        format: channels::Format {
            base64: false,
            half_close: false,
        },
        status: Text,
    },
};

/// Refusal of a session: the response to the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: StatusCode,
    pub text: String,
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl Refusal {
    pub fn new(code: StatusCode, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
            headers: Vec::new(),
        }
    }

    fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.headers.push((name, HeaderValue::from_static(value)));
        self
    }
}

/// # Errors
/// The request cannot be upgraded; the error is the response.
pub fn upgrade(verb: Verb, method: &Method, headers: &HeaderMap) -> Result<Upgrade, Refusal> {
    if method != Method::GET && method != Method::POST {
        let text = format!("unable to upgrade: unsupported method {method} (supported: GET, POST)");
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, text));
    }
    if !has(headers, &CONNECTION, "upgrade") {
        return Err(Refusal::bad(
            "unable to upgrade: missing header Connection: Upgrade",
        ));
    }
    if has(headers, &UPGRADE, "websocket") {
        return websocket(verb, method, headers);
    }
    if has(headers, &UPGRADE, "spdy/3.1") {
        return spdy_of(verb, headers).map(Upgrade::Spdy);
    }
    Err(Refusal::bad(
        "unable to upgrade: header Upgrade names neither SPDY/3.1 nor websocket",
    ))
}

fn has(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    words(headers, name).any(|found| found.eq_ignore_ascii_case(word))
}

/// The items of all headers of this name, which are lists.
fn words<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h str> + use<'h> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

fn spdy_of(verb: Verb, headers: &HeaderMap) -> Result<Spdy, Refusal> {
    let served: &[Spdy] = match verb {
        Verb::Exec | Verb::Attach => &SPDY_COMMAND,
        Verb::PortForward => &SPDY_PORTS,
    };
    let mut offered = words(headers, &STREAM_PROTOCOL).peekable();
    if offered.peek().is_none() {
        return Err(Refusal::bad(format!(
            "unable to upgrade: missing header {STREAM_PROTOCOL}"
        )));
    }
    let chosen = offered.find_map(|word| served.iter().find(|protocol| protocol.name == word));
    chosen.copied().ok_or_else(|| {
        let names: Vec<_> = served.iter().map(|protocol| protocol.name).collect();
        let refusal = none_in_common(&names);
        names.iter().fold(refusal, |refusal, name| {
            refusal.with(ACCEPTED_PROTOCOLS, name)
        })
    })
}

fn websocket(verb: Verb, method: &Method, headers: &HeaderMap) -> Result<Upgrade, Refusal> {
    if method != Method::GET {
        return Err(Refusal::bad(
            "unable to upgrade: a WebSocket begins with GET",
        ));
    }
    if !has(headers, &SEC_WEBSOCKET_VERSION, "13") {
        let text = "unable to upgrade: only version 13 of WebSocket is served";
        let refusal = Refusal::new(StatusCode::UPGRADE_REQUIRED, text);
        return Err(refusal.with(SEC_WEBSOCKET_VERSION, "13"));
    }
    let Some(key) = headers.get(SEC_WEBSOCKET_KEY) else {
        return Err(Refusal::bad(
            "unable to upgrade: missing header Sec-WebSocket-Key",
        ));
    };
    let served: &[WebSocket] = match verb {
        Verb::Exec | Verb::Attach => &WEBSOCKET_COMMAND,
        Verb::PortForward => &WEBSOCKET_PORTS,
    };
    let mut offered = words(headers, &SEC_WEBSOCKET_PROTOCOL).peekable();
    let protocol = if offered.peek().is_none() {
        WEBSOCKET_UNNAMED
    } else {
        let mut known =
            offered.filter_map(|word| served.iter().find(|p| p.name == Some(word)).copied());
        known.next().ok_or_else(|| {
            let names: Vec<_> = served.iter().filter_map(|p| p.name).collect();
            none_in_common(&names)
        })?
    };
    Ok(Upgrade::WebSocket {
        key: key.clone(),
        protocol,
    })
}

fn none_in_common(served: &[&str]) -> Refusal {
    let text = format!(
        "unable to upgrade: none of the client's protocols is supported (supported: {})",
        served.join(", ")
    );
    Refusal::new(StatusCode::FORBIDDEN, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(verb: Verb, headers: &[(&str, &str)]) -> Result<Upgrade, Refusal> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: HeaderName = name.parse().expect("a name");
            map.append(name, value.parse().expect("a value"));
        }
        upgrade(verb, &Method::GET, &map)
    }

    const SPDY: [(&str, &str); 2] = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];
    const WEBSOCKET: [(&str, &str); 4] = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    fn spdy_name(verb: Verb, offers: &[&str]) -> Result<&'static str, StatusCode> {
        let offers = offers.iter().map(|o| ("x-stream-protocol-version", *o));
        let headers: Vec<_> = SPDY.into_iter().chain(offers).collect();
        match ask(verb, &headers) {
            Ok(Upgrade::Spdy(protocol)) => Ok(protocol.name),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(refusal.code),
        }
    }

    fn websocket_name(verb: Verb, offers: &[&str]) -> Result<Option<&'static str>, StatusCode> {
        let offers = offers.iter().map(|o| ("sec-websocket-protocol", *o));
        let headers: Vec<_> = WEBSOCKET.into_iter().chain(offers).collect();
        match ask(verb, &headers) {
            Ok(Upgrade::WebSocket { protocol, .. }) => Ok(protocol.name),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(refusal.code),
        }
    }

    #[test]
    fn the_first_protocol_of_the_client_that_is_served_is_taken() {
        let clients = "v5.channel.k8s.io, v4.channel.k8s.io,v3.channel.k8s.io";
        assert_eq!(spdy_name(Verb::Exec, &[clients]), Ok("v4.channel.k8s.io"));
        assert_eq!(
            spdy_name(Verb::Attach, &["x", "channel.k8s.io"]),
            Ok("channel.k8s.io")
        );
        assert_eq!(
            websocket_name(Verb::Exec, &[clients]),
            Ok(Some("v5.channel.k8s.io"))
        );
        assert_eq!(
            websocket_name(Verb::PortForward, &["SPDY/3.1+portforward.k8s.io"]),
            Ok(Some("SPDY/3.1+portforward.k8s.io"))
        );
    }

    #[test]
    fn a_client_whose_protocols_are_not_served_is_forbidden_and_gets_a_list() {
        assert_eq!(spdy_name(Verb::Exec, &["v9"]), Err(StatusCode::FORBIDDEN));
        assert_eq!(
            websocket_name(Verb::Exec, &["v9"]),
            Err(StatusCode::FORBIDDEN)
        );
        let headers = [SPDY.as_slice(), &[("x-stream-protocol-version", "v9")]].concat();
        let refusal = ask(Verb::PortForward, &headers).expect_err("refused");
        let (name, value) = &refusal.headers[0];
        assert_eq!(
            (name, value.as_bytes()),
            (&ACCEPTED_PROTOCOLS, &b"portforward.k8s.io"[..])
        );
    }

    #[test]
    fn a_websocket_may_name_no_protocol_and_a_spdy_connection_must() {
        assert_eq!(websocket_name(Verb::Exec, &[]), Ok(None));
        assert_eq!(spdy_name(Verb::Exec, &[]), Err(StatusCode::BAD_REQUEST));
    }

    #[test]
    fn a_plain_request_is_refused() {
        let code = |headers: &[_]| ask(Verb::Exec, headers).expect_err("refused").code;
        assert_eq!(code(&[]), StatusCode::BAD_REQUEST);
        assert_eq!(code(&[("upgrade", "SPDY/3.1")]), StatusCode::BAD_REQUEST);
        assert_eq!(
            code(&[("connection", "upgrade"), ("upgrade", "h2c")]),
            StatusCode::BAD_REQUEST
        );
        assert_eq!(code(&WEBSOCKET[..2]), StatusCode::UPGRADE_REQUIRED);
        assert_eq!(code(&WEBSOCKET[..3]), StatusCode::BAD_REQUEST);
        let refusal = upgrade(Verb::Exec, &Method::PUT, &HeaderMap::new()).expect_err("refused");
        assert_eq!(refusal.code, StatusCode::METHOD_NOT_ALLOWED);
    }

    #[test]
    fn a_path_is_a_verb_and_a_token() {
        assert_eq!(target("/exec/abc"), Some((Verb::Exec, "abc")));
        assert_eq!(target("/portforward/x-_"), Some((Verb::PortForward, "x-_")));
        for bad in [
            "",
            "/",
            "/exec",
            "/exec/",
            "/exec/a/b",
            "exec/a",
            "/run/a",
            "//a",
        ] {
            assert_eq!(target(bad), None, "{bad}");
        }
    }
}

//! The fuzzed plugin's end of a connection: plays its script, and reads the runtime's messages with
//! a reader of its own.

use std::collections::BTreeMap;

use nri::{
    RUNTIME_API,
    wire::frame::{
        REQUEST, RESPONSE, Request, Response, Status, TO_PLUGIN, TO_RUNTIME, header, message_header,
    },
};
use prost::Message;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use super::script::{FLOOD, Step};

/// The longest first frame of a message (NRI-110).
const FIRST_FRAME: usize = 4096;
/// Bytes of a ttrpc message's header.
const HEADER: usize = 10;

/// Builds a ttrpc message with a valid header.
pub(super) fn message(stream: u32, kind: u8, payload: &[u8]) -> Vec<u8> {
    [&message_header(payload.len(), stream, kind)[..], payload].concat()
}

/// Maps the first byte of a call step to a service and a method, some of which do not exist.
fn called(what: u8) -> (String, &'static str) {
    let service = match what & 3 {
        0..3 => RUNTIME_API,
        _ => "nri.pkg.api.v1.Runtime",
    };
    let methods = ["RegisterPlugin", "UpdateContainers", "Invented", ""];
    (service.to_owned(), methods[usize::from(what >> 2 & 3)])
}

/// Returns length (header included), stream and type of the message at the start; `None` if its
/// header is incomplete.
fn head(bytes: &[u8]) -> Option<(usize, u32, u8)> {
    let (head, _) = bytes.split_first_chunk::<HEADER>()?;
    let word = |n: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| head[n + i]));
    Some((word(0) as usize + HEADER, word(4), head[8]))
}

/// The plugin's end of the connection.
pub(super) struct Peer {
    stream: UnixStream,
    /// The id of the runtime's last request.
    asked: u32,
    /// The id of our next request.
    next: u32,
    /// Bytes per logical connection that are not yet a complete message, or not yet requested.
    came: BTreeMap<u32, Vec<u8>>,
}

impl Peer {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            asked: 0,
            next: 1,
            came: BTreeMap::new(),
        }
    }

    /// Plays the script and closes the connection. A write error means that the runtime has closed
    /// it.
    pub(super) async fn play(mut self, script: Vec<Step>) {
        for step in script {
            match step {
                Step::Trunk(bytes) => drop(self.stream.write_all(&bytes).await),
                Step::ToClient(bytes) => self.frame(TO_PLUGIN, &bytes).await,
                Step::ToServer(bytes) => self.frame(TO_RUNTIME, &bytes).await,
                Step::Await => self.next_request().await,
                Step::Reply(payload) => self.reply(None, payload).await,
                Step::Envelope(envelope) => self.envelope(&envelope).await,
                Step::Error(code, message) => {
                    let code = code.into();
                    self.reply(Some(Status { code, message }), Vec::new()).await;
                }
                Step::Call(what, payload) => self.call(what, payload).await,
                Step::Pause(time) => tokio::time::sleep(time).await,
                Step::Flood(bytes) => {
                    for _ in 0..FLOOD {
                        self.frame(TO_RUNTIME, &bytes).await;
                    }
                }
                Step::Stay => while self.read().await.is_some() {},
            }
        }
    }

    async fn reply(&mut self, status: Option<Status>, payload: Vec<u8>) {
        let response = Response { status, payload };
        self.envelope(&response.encode_to_vec()).await;
    }

    async fn envelope(&mut self, envelope: &[u8]) {
        let reply = message(self.asked, RESPONSE, envelope);
        self.frame(TO_PLUGIN, &reply).await;
    }

    async fn frame(&mut self, conn: u32, bytes: &[u8]) {
        let frame = [header(conn, bytes.len()).as_slice(), bytes].concat();
        let _ = self.stream.write_all(&frame).await;
    }

    async fn call(&mut self, what: u8, payload: Vec<u8>) {
        let (service, method) = called(what);
        let request = Request {
            service,
            method: method.to_owned(),
            payload,
            ..Request::default()
        };
        let request = message(self.next, REQUEST, &request.encode_to_vec());
        self.next = self.next.wrapping_add(2);
        self.frame(TO_RUNTIME, &request).await;
    }

    /// Waits for a request, whose id must be odd and higher than all earlier ones (NRI-132,
    /// NRI-140).
    async fn next_request(&mut self) {
        while let Some((conn, stream, kind)) = self.read().await {
            if (conn, kind) == (TO_PLUGIN, REQUEST) {
                assert!(stream > self.asked && stream % 2 == 1);
                self.asked = stream;
                return;
            }
        }
    }

    /// Returns the next message as connection, stream and type.
    async fn read(&mut self) -> Option<(u32, u32, u8)> {
        loop {
            for (conn, came) in &mut self.came {
                let Some((len, stream, kind)) = head(came) else {
                    continue;
                };
                if came.len() >= len {
                    came.drain(..len);
                    return Some((*conn, stream, kind));
                }
            }
            let (conn, bytes) = self.read_frame().await?;
            let came = self.came.entry(conn).or_default();
            // A frame may contain several messages or parts of them. A frame longer than a Go
            // reader's buffer must be exactly the rest of a message that has begun (NRI-110).
            let rest = head(came).map(|(len, ..)| len - came.len());
            assert!(bytes.len() <= FIRST_FRAME || rest == Some(bytes.len()));
            came.extend(bytes);
        }
    }

    async fn read_frame(&mut self) -> Option<(u32, Vec<u8>)> {
        let conn = self.stream.read_u32().await.ok()?;
        let len = self.stream.read_u32().await.ok()?;
        let mut bytes = vec![0; len as usize];
        self.stream.read_exact(&mut bytes).await.ok()?;
        Some((conn, bytes))
    }
}

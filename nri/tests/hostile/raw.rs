//! A plugin without any rules: frames and bytes.

use std::time::Duration;

use nri::proto::*;
use prost::Message;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use crate::common::Place;
pub(crate) use crate::common::ttrpc::*;

/// A connection without any rules.
pub(crate) struct Raw {
    pub stream: UnixStream,
    pub next_id: u32,
}

/// A ttrpc message as it came.
pub(crate) struct Got {
    pub conn: u32,
    pub stream: u32,
    pub kind: u8,
    pub payload: Vec<u8>,
}

impl Raw {
    pub(crate) async fn connect(place: &Place) -> Self {
        Self {
            stream: UnixStream::connect(place.socket()).await.unwrap(),
            next_id: 1,
        }
    }

    pub(crate) async fn frame(&mut self, conn: u32, bytes: &[u8]) {
        let mut frame = conn.to_be_bytes().to_vec();
        frame.extend((bytes.len() as u32).to_be_bytes());
        frame.extend(bytes);
        // The other end may have had enough already.
        let _ = self.stream.write_all(&frame).await;
    }

    pub(crate) async fn message(&mut self, conn: u32, stream: u32, kind: u8, payload: &[u8]) {
        let mut message = (payload.len() as u32).to_be_bytes().to_vec();
        message.extend(stream.to_be_bytes());
        message.extend([kind, 0]);
        message.extend(payload);
        self.frame(conn, &message).await;
    }

    pub(crate) async fn request(&mut self, service: &str, method: &str, payload: Vec<u8>) {
        let request = Request {
            service: service.into(),
            method: method.into(),
            payload,
            timeout_nano: 0,
        };
        let id = self.next_id;
        self.next_id += 2;
        self.message(2, id, REQUEST, &request.encode_to_vec()).await;
    }

    pub(crate) async fn reply(&mut self, stream: u32, payload: Vec<u8>) {
        let status = None;
        let response = Response { status, payload }.encode_to_vec();
        self.message(1, stream, RESPONSE, &response).await;
    }

    /// The next message; our own runtime side sends it in one or two frames. `None` at the end.
    pub(crate) async fn read(&mut self) -> Option<Got> {
        let (conn, mut bytes) = self.read_frame().await?;
        let len = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
        while bytes.len() < len + 10 {
            let (_, more) = self.read_frame().await?;
            bytes.extend(more);
        }
        Some(Got {
            conn,
            stream: u32::from_be_bytes(bytes[4..8].try_into().unwrap()),
            kind: bytes[8],
            payload: bytes[10..].to_vec(),
        })
    }

    pub(crate) async fn read_frame(&mut self) -> Option<(u32, Vec<u8>)> {
        let conn = self.stream.read_u32().await.ok()?;
        let len = self.stream.read_u32().await.ok()?;
        let mut bytes = vec![0; len as usize];
        self.stream.read_exact(&mut bytes).await.ok()?;
        Some((conn, bytes))
    }

    pub(crate) async fn register(&mut self, index: &str, name: &str) {
        let request = RegisterPluginRequest {
            plugin_name: name.into(),
            plugin_idx: index.into(),
            nri_version: String::new(),
        };
        self.request(RUNTIME, "RegisterPlugin", request.encode_to_vec())
            .await;
    }

    /// Registers and asks for `events`; answers Synchronize. Then the first event is there.
    pub(crate) async fn first_event(
        &mut self,
        index: &str,
        name: &str,
        events: i32,
    ) -> Option<Got> {
        self.register(index, name).await;
        loop {
            let got = self.read().await?;
            if got.kind != REQUEST {
                continue;
            }
            let request = Request::decode(got.payload.as_slice()).unwrap();
            match request.method.as_str() {
                "Configure" => {
                    let answer = configured(events).encode_to_vec();
                    self.reply(got.stream, answer).await;
                }
                "Synchronize" => self.reply(got.stream, Vec::new()).await,
                _ => return Some(got),
            }
        }
    }

    /// The status of the next answer to one of our requests; 0 is OK.
    pub(crate) async fn status(&mut self) -> Option<i32> {
        loop {
            let got = self.read().await?;
            if got.conn == 2 && got.kind == RESPONSE {
                let response = Response::decode(got.payload.as_slice()).unwrap();
                return Some(response.status.map_or(0, |s| s.code));
            }
        }
    }

    pub(crate) async fn is_closed_by_peer(&mut self) -> bool {
        let drained = async { while self.read_frame().await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(3), drained)
            .await
            .is_ok()
    }
}

pub(crate) fn configured(events: i32) -> ConfigureResponse {
    ConfigureResponse {
        events,
        failure_policy: None,
    }
}

//! A plugin without rules: single frames and bytes.

use std::{collections::VecDeque, time::Duration};

pub(crate) use nri::wire::frame::{
    DATA, Message as Got, REQUEST, RESPONSE, Request, Response, Status,
};
use nri::{
    proto::*,
    wire::frame::{Reader, TO_PLUGIN, TO_RUNTIME, header, message_header},
};
use prost::Message;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use crate::common::Place;

pub(crate) const RUNTIME: &str = "nri.pkg.api.v1alpha1.Runtime";

/// A connection without any rules.
pub(crate) struct Raw {
    pub stream: UnixStream,
    pub next_id: u32,
    reader: Reader,
    unread: VecDeque<Got>,
}

impl Raw {
    pub(crate) async fn connect(place: &Place) -> Self {
        Self {
            stream: UnixStream::connect(place.socket()).await.unwrap(),
            next_id: 1,
            reader: Reader::default(),
            unread: VecDeque::new(),
        }
    }

    pub(crate) async fn frame(&mut self, conn: u32, bytes: &[u8]) {
        let frame = [&header(conn, bytes.len())[..], bytes].concat();
        // The other end may have closed the connection.
        let _ = self.stream.write_all(&frame).await;
    }

    pub(crate) async fn message(&mut self, conn: u32, stream: u32, kind: u8, payload: &[u8]) {
        let message = [&message_header(payload.len(), stream, kind)[..], payload].concat();
        self.frame(conn, &message).await;
    }

    pub(crate) async fn request(&mut self, service: &str, method: &str, payload: Vec<u8>) {
        let request = Request {
            service: service.into(),
            method: method.into(),
            payload,
            ..Request::default()
        };
        let id = self.next_id;
        self.next_id += 2;
        self.message(TO_RUNTIME, id, REQUEST, &request.encode_to_vec())
            .await;
    }

    pub(crate) async fn reply(&mut self, stream: u32, payload: Vec<u8>) {
        let status = None;
        let response = Response { status, payload }.encode_to_vec();
        self.message(TO_PLUGIN, stream, RESPONSE, &response).await;
    }

    /// Returns the next message; `None` at the end.
    pub(crate) async fn read(&mut self) -> Option<Got> {
        loop {
            if let Some(message) = self.unread.pop_front() {
                return Some(message);
            }
            let mut bytes = [0; 16 << 10];
            let length = self.stream.read(&mut bytes).await.ok()?;
            if length == 0 {
                return None;
            }
            self.unread
                .extend(self.reader.push(&bytes[..length]).unwrap());
        }
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

    /// Registers and subscribes to `events`; answers Synchronize. Returns the first event.
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
            let request = got.request().unwrap();
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

    /// Returns the status of the next answer to our requests; 0 is OK.
    pub(crate) async fn status(&mut self) -> Option<i32> {
        loop {
            let got = self.read().await?;
            if got.connection == TO_RUNTIME && got.kind == RESPONSE {
                let response = got.response().unwrap();
                return Some(response.status.map_or(0, |s| s.code));
            }
        }
    }

    pub(crate) async fn is_closed_by_peer(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let drained = async { while self.stream.read(&mut bytes).await.is_ok_and(|n| n > 0) {} };
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

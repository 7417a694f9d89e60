//! A plugin connection that is recorded.

use std::sync::Arc;

use nri::{Watch, wire::frame::Reader};
use parking_lot::Mutex;

use super::{
    line::Side,
    queue::{Happened, Queue},
};

/// Observes the bytes of one connection in both directions, until it is dropped.
#[derive(Debug)]
pub struct RecordedConnection {
    queue: Arc<Queue>,
    number: u64,
    of_plugin: Mutex<Sent>,
    of_runtime: Mutex<Sent>,
}

/// Data sent by one side.
#[derive(Debug, Default)]
struct Sent {
    reader: Reader,
    /// The reason why its bytes no longer parse as frames.
    broken: Option<String>,
}

impl RecordedConnection {
    pub(super) fn new(queue: Arc<Queue>, number: u64) -> Self {
        let connection = Self {
            queue,
            number,
            of_plugin: Mutex::default(),
            of_runtime: Mutex::default(),
        };
        connection.report(Happened::Opened);
        connection
    }

    /// Records bytes received from this side, or about to be forwarded for it.
    pub fn saw(&self, from: Side, bytes: &[u8]) {
        if self.queue.is_over() {
            return;
        }
        let mut sent = self.sent(from).lock();
        if let Some(why) = &sent.broken {
            return self.report(unread(from, why.clone(), bytes.to_vec()));
        }
        let mut messages = Vec::new();
        let cut = sent.reader.push_into(bytes, &mut messages);
        for message in messages {
            self.report(Happened::Message { from, message });
        }
        if let Err(broken) = cut {
            let why = broken.to_string();
            self.report(unread(from, why.clone(), bytes.to_vec()));
            sent.broken = Some(why);
        }
    }

    /// Records the end of this side, or of the connection if no side is given.
    pub fn closed(&self, by: Option<Side>, why: &str) {
        match by {
            Some(side) => self.cut_off(side),
            None => self.both_cut_off(),
        }
        let why = why.to_owned();
        self.report(Happened::Closed { by, why });
    }

    fn both_cut_off(&self) {
        self.cut_off(Side::Plugin);
        self.cut_off(Side::Runtime);
    }

    /// Records an incomplete message.
    fn cut_off(&self, from: Side) {
        let sent = std::mem::take(&mut *self.sent(from).lock());
        let bytes = sent.reader.into_pending();
        if !bytes.is_empty() {
            let why = "a message that was not sent to its end".to_owned();
            self.report(unread(from, why, bytes));
        }
    }

    fn sent(&self, from: Side) -> &Mutex<Sent> {
        match from {
            Side::Plugin => &self.of_plugin,
            Side::Runtime => &self.of_runtime,
        }
    }

    fn report(&self, happened: Happened) {
        self.queue.report(self.number, happened);
    }
}

fn unread(from: Side, why: String, bytes: Vec<u8>) -> Happened {
    Happened::Unread { from, why, bytes }
}

/// The runtime's end of a connection.
impl Watch for RecordedConnection {
    fn came(&self, bytes: &[u8]) {
        self.saw(Side::Plugin, bytes);
    }

    fn goes(&self, bytes: &[u8]) {
        self.saw(Side::Runtime, bytes);
    }

    fn ended(&self, by_us: bool, why: &str) {
        let by = if by_us { Side::Runtime } else { Side::Plugin };
        self.both_cut_off();
        let why = why.to_owned();
        self.report(Happened::Closed { by: Some(by), why });
    }
}

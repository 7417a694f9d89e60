//! The actions of a fuzzed plugin on its connection, as bytes: a control byte, then steps.
//!
//! ```text
//!   step = kind (u8, modulo 11) | length (u16 LE) | that many bytes, or the rest
//! ```

use std::time::Duration;

use super::input::Input;

/// The repetitions of a flood.
pub(super) const FLOOD: usize = 64;
/// The limit of steps per script.
const MAX_STEPS: usize = 64;

/// One step. "Frame" means a valid frame, "message" a valid ttrpc message.
#[derive(Debug)]
pub(super) enum Step {
    /// Bytes on the trunk.
    Trunk(Vec<u8>),
    /// A frame for the plugin's service.
    ToClient(Vec<u8>),
    /// A frame for the runtime's service.
    ToServer(Vec<u8>),
    /// Waits for the next request of the runtime.
    Await,
    /// Answers the last request with a message with this payload.
    Reply(Vec<u8>),
    /// Answers the last request with a message with this envelope.
    Envelope(Vec<u8>),
    /// Answers the last request with an error of this code and text.
    Error(u8, String),
    /// Calls the runtime. The first byte selects the method; the rest is the payload.
    Call(u8, Vec<u8>),
    /// Waits for this time.
    Pause(Duration),
    /// Repeats one frame for the runtime's service.
    Flood(Vec<u8>),
    /// Reads, and sends nothing until the runtime closes the connection.
    Stay,
}

impl Step {
    fn new(kind: u8, bytes: &[u8]) -> Self {
        let all = || bytes.to_vec();
        let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
        match kind % 11 {
            0 => Self::Trunk(all()),
            1 => Self::ToClient(all()),
            2 => Self::ToServer(all()),
            3 => Self::Await,
            4 => Self::Reply(all()),
            5 => Self::Envelope(all()),
            6 => Self::Error(*first, String::from_utf8_lossy(rest).into_owned()),
            7 => Self::Call(*first, rest.to_vec()),
            8 => Self::Pause(Duration::from_millis(u64::from(Input(bytes).u16()))),
            9 => Self::Flood(all()),
            _ => Self::Stay,
        }
    }
}

pub(super) fn steps(input: &mut Input<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    while !input.is_empty() && steps.len() < MAX_STEPS {
        let kind = input.byte();
        let len = usize::from(input.u16());
        steps.push(Step::new(kind, input.take(len)));
    }
    steps
}

/// Writes a script.
#[derive(Default)]
pub(super) struct Script(Vec<u8>);

impl Script {
    pub(super) fn new(control: u8) -> Self {
        Self(vec![control])
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn step(mut self, kind: u8, bytes: &[u8]) -> Self {
        let len = u16::try_from(bytes.len()).expect("a short step");
        self.0.push(kind);
        self.0.extend(len.to_le_bytes());
        self.0.extend(bytes);
        self
    }

    pub(super) fn trunk(self, bytes: &[u8]) -> Self {
        self.step(0, bytes)
    }

    pub(super) fn client_frame(self, bytes: &[u8]) -> Self {
        self.step(1, bytes)
    }

    pub(super) fn server_frame(self, bytes: &[u8]) -> Self {
        self.step(2, bytes)
    }

    /// Waits for a request and answers it.
    pub(super) fn answer(self, payload: &[u8]) -> Self {
        self.step(3, &[]).step(4, payload)
    }

    pub(super) fn envelope(self, bytes: &[u8]) -> Self {
        self.step(3, &[]).step(5, bytes)
    }

    pub(super) fn error(self, code: u8, text: &[u8]) -> Self {
        self.step(3, &[]).step(6, &[&[code][..], text].concat())
    }

    pub(super) fn call(self, what: u8, payload: &[u8]) -> Self {
        self.step(7, &[&[what][..], payload].concat())
    }

    pub(super) fn pause(self, millis: u16) -> Self {
        self.step(8, &millis.to_le_bytes())
    }

    pub(super) fn flood(self, bytes: &[u8]) -> Self {
        self.step(9, bytes)
    }

    pub(super) fn stay(self) -> Self {
        self.step(10, &[])
    }
}

//! Recordings of NRI traffic: JSON lines, one for each message, of any number of connections.
//!
//! ```text
//!   bytes ─► connection (frames) ─► queue (with a bound) ─► recorder, a thread of its own ─► file
//!                                                              │ render, methods, json (redacts)
//!                                                              ▼
//!   file ─► read ─► line ─► methods ─► bytes of messages       line
//! ```
//!
//! Whoever is recorded waits for nothing: what the queue has no room for is dropped and counted, and a write that fails
//! ends the recording, not the traffic. The format is in docs/bench.md.

mod connection;
mod file;
pub mod json;
mod line;
mod methods;
mod queue;
mod read;
mod recorder;
mod render;

pub use connection::RecordedConnection;
pub use line::{FORMAT, Failure, Header, Line, REDACTED, Runtime, Side, Unread, Values, What};
pub use methods::{Decoded, Part, decode, encode, methods};
pub use read::{Bad, Recording, is_recording, read};
pub use recorder::{About, Recorder, Summary};

//! Recordings of NRI traffic: JSON lines, one for each message, of any number of connections.
//!
//! ```text
//!   bytes ─► connection (frames) ─► queue (bounded) ─► recorder, a separate thread ─► file
//!                                                         │ render, methods, json (redacts)
//!                                                         ▼
//!   file ─► read ─► line ─► methods ─► bytes of messages  line
//! ```
//!
//! Recording never delays traffic: lines beyond the queue's bound are dropped and counted, and a
//! failed write ends the recording only. The format is in docs/bench.md.

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

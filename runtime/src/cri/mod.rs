//! The edge: the two CRI services. Methods delegate to one file per RPC; only `status.rs` turns
//! errors into gRPC codes. An unserved RPC answers UNIMPLEMENTED by name (CRI-005).

mod answer;
pub mod deadline;
pub mod image;
mod image_service;
mod relays;
pub mod runtime;
mod runtime_service;
mod service;
mod statistics;
pub mod status;
pub mod view;

pub use answer::{Answer, Streamed, answer};
pub use service::{Cri, MAX_MESSAGE};
pub use statistics::Statistics;
pub use status::{is_not_found, is_unserved};

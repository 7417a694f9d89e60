//! `cairn explain CONTAINER`: the request of CRI, the changes of each plugin, and the result.
//!
//! ```text
//!   specs/<id>.json ─┐
//!                    ├─► gather ──► Explanation ──JSON──► cairn explain: text, or the same JSON
//!   event log ───────┘   (daemon)
//! ```
//! Values of environment variables are secrets and are left out here (CONTRACT.md, G-28).

mod explanation;
mod fields;
mod gather;

pub use explanation::{About, Answer, Change, Effect, Explanation, Updated};
pub use gather::gather;

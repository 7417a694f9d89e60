//! `cairn explain CONTAINER`: what CRI asked for, what each plugin made of it, and what came out.
//!
//! ```text
//!   specs/<id>.json ─┐
//!                    ├─► gather ──► Explanation ──JSON──► cairn explain: text, or the JSON as it is
//!   event log ───────┘   (daemon)
//! ```
//! Values of environment variables are left out when it is gathered: they are secrets (CONTRACT.md, G-28).

mod explanation;
mod fields;
mod gather;

pub use explanation::{About, Change, Deed, Explanation, Said, Updated};
pub use gather::gather;

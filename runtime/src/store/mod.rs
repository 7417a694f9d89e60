//! Records of pods and containers on disk.

#![expect(
    clippy::disallowed_methods,
    reason = "blocks by nature: called by blocking()"
)]

mod cell;
mod dirs;
mod error;
mod lock;
mod record;
mod unsynced;

pub use cell::Cell;
pub use dirs::{make_dir, make_passage, make_private};
pub use error::Error;
pub use lock::Lock;
pub use record::{Record, Store, Unreadable, parse_record};
pub use unsynced::{Unsynced, discard_unfinished};

//! `cairn.toml`: every key, its default, and the check that turns a file and flags into a
//! [`Config`] before any side effect on the machine.
//!
//! An error is one line that names the key.

#![expect(clippy::disallowed_methods, reason = "at the start, or a command")]

mod checked;
mod container;
mod error;
mod file;
mod handler;
mod image;
mod nri;
mod read;
mod stream;
mod text;
mod tracing;
mod units;

pub use checked::{Config, socket_path};
pub use container::{Container, Masks, SeccompDefault};
pub use error::Error;
pub use file::{CgroupDriver, File, Format, Level, NriNetwork};
pub use nri::Nri;
pub use read::read;
pub use text::{DEFAULT_TEXT, manual};

#[cfg(test)]
mod config_tests;

//! The monitor's protocol and its pure parts, shared by the monitor, `cairn-create` and the daemon.

pub mod codec;
#[cfg(feature = "spec")]
pub mod from_spec;
pub mod process;
pub mod record;
pub mod wire;

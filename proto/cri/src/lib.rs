//! The wire types of CRI v1, generated from `api.proto`. No logic lives here.

#![allow(clippy::all, clippy::pedantic, reason = "generated code")]

/// Package `runtime.v1`.
pub mod v1 {
    tonic::include_proto!("runtime.v1");

    /// The compiled descriptor of `api.proto`, for tests that walk every field of a message.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/api.bin"));
}

//! The wire types of NRI v1alpha1, generated from `nri.proto`. No logic lives here.

#![allow(clippy::all, clippy::pedantic, reason = "generated code")]

include!(concat!(env!("OUT_DIR"), "/nri.pkg.api.v1alpha1.rs"));

/// The compiled descriptor of `nri.proto`, for tests that walk every field of a message.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/nri.bin"));

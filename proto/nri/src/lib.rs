//! The wire types of NRI, generated from `nri.proto`: one set of messages for v1alpha1 and
//! v1beta1, whose payloads are the same bytes. No logic lives here.

#![allow(clippy::all, clippy::pedantic, reason = "generated code")]

include!(concat!(env!("OUT_DIR"), "/nri.pkg.api.v1alpha1.rs"));

/// The compiled descriptor of `nri.proto`, for tests that walk every field of a message.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/nri.bin"));

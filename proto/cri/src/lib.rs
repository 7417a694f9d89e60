//! The wire types of CRI v1, generated from `api.proto` by `proto-gen`. No logic lives here.

#![allow(clippy::all, clippy::pedantic, reason = "generated code")]

/// Package `runtime.v1`.
pub mod v1 {
    include!("../generated/runtime.v1.rs");
}

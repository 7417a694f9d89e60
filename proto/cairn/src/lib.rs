//! The wire types of `cairn.v1`, generated from `cairn.proto` by `proto-gen`. No logic lives here.

#![allow(clippy::all, clippy::pedantic, reason = "generated code")]

/// Package `cairn.v1`.
pub mod v1 {
    include!("../generated/cairn.v1.rs");
}

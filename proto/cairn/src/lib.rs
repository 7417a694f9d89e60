//! The wire types of `cairn.v1`, generated from `cairn.proto`. No logic lives here.

#![allow(clippy::all, clippy::pedantic, reason = "generated code")]

/// Package `cairn.v1`.
pub mod v1 {
    tonic::include_proto!("cairn.v1");
}

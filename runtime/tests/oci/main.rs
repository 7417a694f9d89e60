//! The public interface of the module `oci`: golden specs, each requirement as a test, and a check
//! of every field of the wire types.

#![allow(clippy::disallowed_methods, reason = "tests may block")]

mod cdi;
mod container;
mod golden;
mod hostile;
mod limits;
mod matters;
mod mounts;
mod nri_apply;
mod nri_messages;
mod requests;
mod support;
mod walk;

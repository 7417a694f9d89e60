//! This host: facts read once at start, and look-ups for the pure `oci`.

#![expect(
    clippy::disallowed_methods,
    reason = "blocks by nature: called by blocking(), by Lookups, or at the start"
)]

pub mod apparmor;
pub mod cdi;
pub mod facts;
pub mod lookup;
pub mod lookup_helper;
pub mod relabel;
pub mod selinux;

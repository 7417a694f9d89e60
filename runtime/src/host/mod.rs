//! This host: its facts, read once at start, and look-ups on it for the pure `oci`.

pub mod apparmor;
pub mod cdi;
pub mod facts;
pub mod lookup;
pub mod lookup_helper;
pub mod relabel;
pub mod selinux;

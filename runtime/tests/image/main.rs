//! Images with real disks, real overlay mounts and real registries. Needs root.

#![allow(clippy::disallowed_methods, reason = "tests may block")]

mod confine;
mod crash;
mod model;
mod pull;
mod pull_hosts;
mod registry;
mod store;
mod stress;
mod support;
mod unpack;

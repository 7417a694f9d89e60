//! Plugins that break the rules, written with frames and bytes: each misbehaviour at each event. The
//! operation goes on as the policy says, in bounded time; the next plugin is told; nothing is left.
#![expect(clippy::disallowed_methods, reason = "the tests' own tasks")]

#[path = "../common/mod.rs"]
mod common;

mod connections;
mod messages;
mod misdeeds;
mod raw;

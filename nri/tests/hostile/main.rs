//! Plugins that break the rules, made of frames and bytes: each misdeed at each event. The
//! operation continues by the policy and in bounded time, the next plugin gets the event, and no
//! resources remain.
#![expect(clippy::disallowed_methods, reason = "the tests' own tasks")]

#[path = "../common/mod.rs"]
mod common;

mod attacks;
mod connections;
mod messages;
mod raw;

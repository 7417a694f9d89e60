//! The oracles of the fuzz targets of nri: one function per target, which takes bytes and panics if
//! a rule is broken. The test `seeds` runs the same functions over every seed of the repository.
//!
//! `nri::internals` exports the private parts of the library.

mod answered;
mod answers;
mod check;
mod clock;
mod connection;
mod connection_seeds;
mod frames;
mod input;
mod peer;
mod requests;
mod samples;
mod script;
mod seed;
mod seeds;
mod watcher;

pub use seed::Seed;
pub use seeds::seeds;

/// One fuzz target.
pub struct Target {
    /// The name of the program and of the directory of seeds.
    pub name: &'static str,
    /// The longest useful input, in bytes.
    pub max_len: usize,
    pub run: fn(&[u8]),
}

/// All targets; `nri/fuzz/seeds` has a directory for each.
pub const TARGETS: [Target; 13] = [
    target("mux_read", 4096, frames::read),
    target("mux_write", 512, frames::write),
    target("connection", 4096, connection::run),
    target("configure", 64, answers::configure),
    target("synchronize", 2048, answers::synchronize),
    target("create", 2048, answers::create),
    target("update", 2048, answers::update),
    target("stop", 2048, answers::stop),
    target("run", 512, answers::run),
    target("validate", 512, answers::validate),
    target("plain", 128, answers::plain),
    target("register", 512, requests::register),
    target("unsolicited", 2048, requests::unsolicited),
];

const fn target(name: &'static str, max_len: usize, run: fn(&[u8])) -> Target {
    Target { name, max_len, run }
}

/// Runs the target of this name.
///
/// # Panics
///
/// If the target does not exist, or finds a fault.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("a target of this name").run)(data);
}

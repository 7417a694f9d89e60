//! Checks this host by trials: for `cairn check`, and for the daemon's log at start.
//!
//! ```text
//!   Config ──► inspect ──► Report ──► cli/check_table.rs: a table, JSON
//!                            └─► log (the daemon); Status reports its `no_user_namespaces`
//! ```
//! No check compares kernel versions. Trials use their own directory on the checked file system,
//! and remove it.

#![expect(
    clippy::disallowed_methods,
    reason = "blocks by nature: called by blocking()"
)]

mod finding;
mod kernel;
mod storage;
mod surroundings;

pub use finding::{Finding, Report, State};

use std::path::Path;

use crate::config::Config;

/// Runs all checks; blocks for some ten milliseconds. `program` is cairn itself, with its helpers
/// in the same directory. `unanswered`: a network directory that does not answer, and is skipped.
pub fn inspect(config: &Config, program: &Path, unanswered: Option<String>) -> Report {
    let mounts = kernel::mounts();
    // Mount trials would fail for the same reason, and blame the file system.
    let mountable = mounts.state != State::Fails;
    let mut findings = vec![mounts, kernel::cgroups(), kernel::namespaces()];
    let place = storage::Place::on(&config.root);
    findings.extend([storage::root(&config.root), storage::state(&config.state)]);
    let mut no_user_namespaces = None;
    if mountable {
        findings.push(storage::overlay(&place));
        let trial = storage::user_namespaces(&place, program);
        findings.push(storage::shown(&trial));
        if let storage::Trial::Refused(why) = trial {
            no_user_namespaces = Some(why);
        }
    }
    findings.extend(kernel::security());
    findings.push(surroundings::helpers(
        program.parent().unwrap_or(Path::new("/")),
    ));
    findings.push(surroundings::open_files());
    findings.extend(surroundings::network(config, unanswered));
    findings.push(surroundings::nri(config));
    Report {
        version: env!("CARGO_PKG_VERSION"),
        kernel: kernel::release(),
        findings,
        no_user_namespaces,
    }
}

/// Checks that containers can be made at all, before anything is touched.
///
/// # Errors
/// One line: the missing feature and the remedy.
pub fn required() -> Result<(), String> {
    let finding = kernel::mounts();
    match finding.state {
        State::Fails => Err(format!("{}: {}", finding.found, finding.cost)),
        State::Ok | State::Limited => Ok(()),
    }
}

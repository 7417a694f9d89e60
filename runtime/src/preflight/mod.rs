//! Checks of what this host offers to pods, by trying it: `cairn check`, and the lines the daemon logs at
//! its start.
//!
//! ```text
//!   Config ──► inspect ──► Report ──► cli/check_table.rs: a table, JSON
//!                            └─► log (the daemon); its `no_user_namespaces` is what Status tells
//! ```
//! Nothing here decides by a kernel's version. What is made to try something is made in a directory
//! of its own on the file system in question, and removed.

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

/// Looks at everything. Blocks for some ten milliseconds. `program` is cairn itself; its helpers lie
/// beside it. `unanswered`: a directory of the network that does not answer, which is not looked at then.
pub fn inspect(config: &Config, program: &Path, unanswered: Option<String>) -> Report {
    let mounts = kernel::mounts();
    // Trials of mounts would fail for the same reason, and blame the file system.
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

/// Whether containers can be made at all; asked before anything is touched.
///
/// # Errors
/// One line: what is missing, and what to do.
pub fn required() -> Result<(), String> {
    let finding = kernel::mounts();
    match finding.state {
        State::Fails => Err(format!("{}: {}", finding.found, finding.cost)),
        State::Ok | State::Limited => Ok(()),
    }
}

//! Usage of `logger`:
//!
//! ```text
//! logger -idx 99                                # everything, as YAML, on standard error
//! logger -idx 99 -events-only -log-file /tmp/l  # one line per event: EVENT pod container
//! logger -idx 99 -events pod -set-env SEEN_BY   # pods only; or mark containers
//! ```

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::logger::Logger>()
}

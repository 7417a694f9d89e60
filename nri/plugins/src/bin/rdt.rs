//! Usage of `rdt`:
//!
//! ```text
//! rdt -idx 10
//! pod annotation: closid.rdt.noderesource.dev/container.c0: gold
//! also schemata (lines with commas between) and enablemonitoring (true, false)
//! ```

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::rdt::Rdt>()
}

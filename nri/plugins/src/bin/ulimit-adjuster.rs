//! Usage of `ulimit-adjuster`:
//!
//! USAGE

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::ulimit_adjuster::UlimitAdjuster>()
}

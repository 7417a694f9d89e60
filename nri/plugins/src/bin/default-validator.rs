//! Usage of `default-validator`:
//!
//! USAGE

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::default_validator::DefaultValidator>()
}

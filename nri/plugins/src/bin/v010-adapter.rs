//! Usage of `v010-adapter`:
//!
//! USAGE

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::v010_adapter::V010Adapter>()
}

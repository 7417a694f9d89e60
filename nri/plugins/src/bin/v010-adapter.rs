//! The program `v010-adapter`: `-help` tells how to use it, `nri_plugins::v010_adapter` what it does.

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::v010_adapter::V010Adapter>()
}

//! The program `rdt`: `-help` tells how to use it, `nri_plugins::rdt` what it does.

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::rdt::Rdt>()
}

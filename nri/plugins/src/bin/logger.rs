//! The program `logger`: `-help` tells how to use it, `nri_plugins::logger` what it does.

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::logger::Logger>()
}

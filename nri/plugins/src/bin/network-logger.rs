//! The program `network-logger`: `-help` tells how to use it, `nri_plugins::network_logger` what it does.

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::network_logger::NetworkLogger>()
}

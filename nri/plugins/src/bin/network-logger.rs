//! Usage of `network-logger`:
//!
//! USAGE

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::network_logger::NetworkLogger>()
}

//! Usage of `device-injector`:
//!
//! USAGE

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::device_injector::DeviceInjector>()
}

//! Usage of `network-device-injector`:
//!
//! USAGE

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::network_device_injector::NetworkDeviceInjector>()
}

//! The program `device-injector`: `-help` tells how to use it, `nri_plugins::device_injector` what it does.

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::device_injector::DeviceInjector>()
}

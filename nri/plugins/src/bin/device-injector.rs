//! The program `device-injector`: `-help` tells how to use it, `nri_plugins::device_injector` what it does.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::device_injector::DeviceInjector>()
}

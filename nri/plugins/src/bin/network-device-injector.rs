//! The program `network-device-injector`: `-help` tells how to use it, `nri_plugins::network_device_injector` what it does.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::network_device_injector::NetworkDeviceInjector>()
}

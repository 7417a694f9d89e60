//! The program `network-device-injector`; see `-help` and `nri_plugins::network_device_injector`.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::network_device_injector::NetworkDeviceInjector>()
}

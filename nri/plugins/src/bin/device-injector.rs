//! The program `device-injector`; see `-help` and `nri_plugins::device_injector`.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::device_injector::DeviceInjector>()
}

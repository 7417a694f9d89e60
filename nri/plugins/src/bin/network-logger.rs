//! The program `network-logger`: `-help` tells how to use it, `nri_plugins::network_logger` what it does.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::network_logger::NetworkLogger>()
}

//! The program `network-logger`; see `-help` and `nri_plugins::network_logger`.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::network_logger::NetworkLogger>()
}

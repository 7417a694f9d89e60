//! The program `logger`: `-help` tells how to use it, `nri_plugins::logger` what it does.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::logger::Logger>()
}

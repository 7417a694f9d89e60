//! The program `rdt`: `-help` tells how to use it, `nri_plugins::rdt` what it does.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::rdt::Rdt>()
}

//! The program `v010-adapter`: `-help` tells how to use it, `nri_plugins::v010_adapter` what it does.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::v010_adapter::V010Adapter>()
}

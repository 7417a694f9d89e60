//! The program `v010-adapter`; see `-help` and `nri_plugins::v010_adapter`.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::v010_adapter::V010Adapter>()
}

//! The program `rdt`; see `-help` and `nri_plugins::rdt`.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::rdt::Rdt>()
}

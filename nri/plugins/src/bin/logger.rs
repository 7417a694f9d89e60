//! The program `logger`; see `-help` and `nri_plugins::logger`.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::logger::Logger>()
}

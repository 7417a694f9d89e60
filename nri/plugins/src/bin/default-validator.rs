//! The program `default-validator`; see `-help` and `nri_plugins::default_validator`.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::default_validator::DefaultValidator>()
}

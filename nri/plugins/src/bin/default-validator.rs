//! The program `default-validator`: `-help` tells how to use it, `nri_plugins::default_validator` what it does.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::default_validator::DefaultValidator>()
}

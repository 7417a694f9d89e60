//! The program `template`: `-help` tells how to use it, `nri_plugins::template` what it does.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::template::Template>()
}

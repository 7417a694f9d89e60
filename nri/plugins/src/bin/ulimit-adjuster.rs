//! The program `ulimit-adjuster`: `-help` tells how to use it, `nri_plugins::ulimit_adjuster` what it does.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::ulimit_adjuster::UlimitAdjuster>()
}

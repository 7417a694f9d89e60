//! The program `demo-adjuster`: `-help` tells how to use it, `nri_plugins::demo_adjuster` what it does.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::demo_adjuster::DemoAdjuster>()
}

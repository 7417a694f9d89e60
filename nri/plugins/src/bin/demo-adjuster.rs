//! The program `demo-adjuster`; see `-help` and `nri_plugins::demo_adjuster`.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::demo_adjuster::DemoAdjuster>()
}

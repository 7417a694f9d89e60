//! The program `ulimit-adjuster`; see `-help` and `nri_plugins::ulimit_adjuster`.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::ulimit_adjuster::UlimitAdjuster>()
}

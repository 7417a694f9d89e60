//! Usage of `demo-adjuster`:
//!
//! USAGE

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::demo_adjuster::DemoAdjuster>()
}

//! The program `template`: `-help` tells how to use it, `nri_plugins::template` what it does.

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::template::Template>()
}

//! Usage of `hook-injector`:
//!
//! USAGE

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::hook_injector::HookInjector>()
}

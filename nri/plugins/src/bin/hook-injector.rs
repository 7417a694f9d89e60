//! The program `hook-injector`: `-help` tells how to use it, `nri_plugins::hook_injector` what it does.

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::hook_injector::HookInjector>()
}

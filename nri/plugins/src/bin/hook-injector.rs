//! The program `hook-injector`: `-help` tells how to use it, `nri_plugins::hook_injector` what it does.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::hook_injector::HookInjector>()
}

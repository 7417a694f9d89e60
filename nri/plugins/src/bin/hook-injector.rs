//! The program `hook-injector`; see `-help` and `nri_plugins::hook_injector`.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::hook_injector::HookInjector>()
}

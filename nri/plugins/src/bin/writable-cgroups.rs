//! The program `writable-cgroups`; see `-help` and `nri_plugins::writable_cgroups`.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::writable_cgroups::WritableCgroups>()
}

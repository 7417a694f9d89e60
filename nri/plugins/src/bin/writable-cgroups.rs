//! The program `writable-cgroups`: `-help` tells how to use it, `nri_plugins::writable_cgroups` what it does.

fn main() -> std::process::ExitCode {
    nri_plugins::plugin::main::<nri_plugins::writable_cgroups::WritableCgroups>()
}

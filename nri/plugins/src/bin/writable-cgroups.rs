//! Usage of `writable-cgroups`:
//!
//! USAGE

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::writable_cgroups::WritableCgroups>()
}

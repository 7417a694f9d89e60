//! The built-in network as a CNI program: see [`cni_shim::program`].

use std::process::ExitCode;

fn main() -> ExitCode {
    cni_shim::program::main()
}

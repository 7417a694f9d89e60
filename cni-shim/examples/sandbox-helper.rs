//! The helper process of [`cni_shim::namespaces`] as a separate program, for the tests; cairn's is
//! `cairn sandbox`.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni_shim::namespaces::helper_main()
}

//! `nri-bench`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_bench::cli::main(std::env::args_os())
}

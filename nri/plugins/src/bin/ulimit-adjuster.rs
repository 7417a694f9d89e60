//! Usage of `ulimit-adjuster`:
//!
//! ```text
//! ulimit-adjuster -idx 10
//! pod annotation: ulimits.noderesource.dev/container.c0: '[{type: nofile, hard: 4096, soft: 1024}]'
//! ulimit-adjuster -idx 10 -verbose  # tells what it sets
//! ```

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::ulimit_adjuster::UlimitAdjuster>()
}

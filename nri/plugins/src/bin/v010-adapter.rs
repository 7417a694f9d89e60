//! Usage of `v010-adapter`:
//!
//! ```text
//! v010-adapter -idx 10                   # programs listed in /etc/nri/conf.json
//! v010-adapter -idx 10 -config FILE      # {"version": "0.1", "plugins": [{"type": "prog"}]}
//! each is run as `prog invoke`, from PATH or /opt/nri/bin
//! ```

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::v010_adapter::V010Adapter>()
}

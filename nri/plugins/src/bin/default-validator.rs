//! Usage of `default-validator`:
//!
//! ```text
//! default-validator -idx 99 -config rules.yaml
//! rules.yaml: `rejectOCIHookAdjustment: true`, `requiredPlugins: [foo]`, …
//! launched by a runtime: rules in /etc/nri/conf.d/99-default-validator.conf
//! ```

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::default_validator::DefaultValidator>()
}

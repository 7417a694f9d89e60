//! Usage of `template`:
//!
//! ```text
//! template -idx 10
//! template -idx 10 -name my-plugin -socket /run/nri.sock
//! configuration: /etc/nri/conf.d/10-template.conf with `cfgParam1: value`
//! ```

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::template::Template>()
}

//! Usage of `network-logger`:
//!
//! ```text
//! network-logger -idx 10
//! network-logger -idx 10 -log-file PATH
//! prints: network-logger: RunPodSandbox: default/pod0: /run/netns/x, addresses 10.0.0.2
//! ```

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::network_logger::NetworkLogger>()
}

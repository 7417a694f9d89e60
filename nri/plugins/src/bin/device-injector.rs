//! Usage of `device-injector`:
//!
//! ```text
//! device-injector -idx 10
//! pod annotation: devices.noderesource.dev/container.c0: '[{path: /dev/x, type: c, major: 1, minor: 3}]'
//! pod annotation: mounts.noderesource.dev/pod: '[{source: /src, destination: /dst, type: bind, options: [bind]}]'
//! ```

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::device_injector::DeviceInjector>()
}

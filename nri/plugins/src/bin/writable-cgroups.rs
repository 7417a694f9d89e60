//! Usage of `writable-cgroups`:
//!
//! ```text
//! writable-cgroups -idx 10                                        # in a container with /host
//! writable-cgroups -idx 10 -host-mount-file /proc/self/mountinfo  # on the host
//! pod annotation: writable-cgroups.noderesource.dev/container.c0: "true"
//! ```

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::writable_cgroups::WritableCgroups>()
}

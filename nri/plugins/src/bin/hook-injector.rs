//! Usage of `hook-injector`:
//!
//! ```text
//! hook-injector -idx 10                        # /usr/share/containers and /etc/containers
//! hook-injector -idx 10 -hooks-dir /my/hooks.d # only this directory
//! hook-injector -idx 10 -disableWatch          # what is there now, not what comes later
//! ```

use std::process::ExitCode;

fn main() -> ExitCode {
    nri_plugins::plugin::main::<nri_plugins::hook_injector::HookInjector>()
}

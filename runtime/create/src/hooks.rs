//! OCI hooks after create: libcontainer has them in its start and delete, which cairn does not use.

use std::fs;

use cairn_monitor::record::{HOOKS, Launch};
use libcontainer::container::{ContainerStatus, State};
use libcontainer::hooks::run_hooks;
use oci_spec::runtime::{Hook, Spec};

use crate::reports;

/// Lists the hooks to run later, for the monitor.
pub(crate) fn save_names(spec: &Spec) -> Result<(), String> {
    let names: String = ["poststart", "poststop"]
        .into_iter()
        .filter(|point| hooks(spec, point).is_some_and(|h| !h.is_empty()))
        .flat_map(|point| [point, "\n"])
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    fs::write(HOOKS, names).map_err(|e| format!("write {HOOKS}: {e}"))
}

/// Runs the hooks of one point, up to the first failure.
pub(crate) fn run(launch: &Launch, spec: &Spec, point: &str, pid: i32) -> Result<(), String> {
    let status = if point == "poststart" {
        ContainerStatus::Running
    } else {
        ContainerStatus::Stopped
    };
    let pid = Some(pid).filter(|_| point == "poststart");
    let bundle = std::env::current_dir().map_err(|e| format!("find our directory: {e}"))?;
    let mut state = State::new(&launch.id, status, pid, bundle);
    state.annotations = spec.annotations().clone();
    run_hooks(hooks(spec, point), Some(&state), None, None, None).map_err(|e| reports::chain(&e))
}

fn hooks<'a>(spec: &'a Spec, point: &str) -> Option<&'a Vec<Hook>> {
    let hooks = spec.hooks().as_ref()?;
    match point {
        "poststart" => hooks.poststart().as_ref(),
        _ => hooks.poststop().as_ref(),
    }
}

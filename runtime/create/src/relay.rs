//! Relay between libcontainer and the OCI hooks it runs: prestart, createRuntime, createContainer.
//!
//! libcontainer passes hooks its own bundle, with a stripped spec (`adjust.rs`). Many read
//! environment and mounts there, so the relay passes the container's directory instead. It also
//! closes our descriptors: a process that a hook leaves behind would keep the status pipe open.

use std::ffi::CString;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use cairn_monitor::sys::{self, ExecVector};
use oci_spec::runtime::{Hook, Spec};
use serde_json::Value;

pub(crate) const OPTION: &str = "--hook";

/// Limit of a state's size: annotations have at most 256 KiB.
const MAX_STATE: u64 = 4 << 20;

/// This program, also from a user namespace without access to its path.
const SELF: &str = "/proc/self/exe";

/// Puts a relay before each hook that libcontainer runs. `directory` is the container's.
pub(crate) fn install(spec: &mut Spec, directory: &Path) {
    let Some(hooks) = spec.hooks_mut() else {
        return;
    };
    let each = |list: &mut Option<Vec<Hook>>| {
        for hook in list.iter_mut().flatten() {
            relay(hook, directory);
        }
    };
    each(hooks.prestart_mut());
    each(hooks.create_runtime_mut());
    each(hooks.create_container_mut());
}

fn relay(hook: &mut Hook, directory: &Path) {
    let path = hook.path().display().to_string();
    let own = hook.args().clone().filter(|args| !args.is_empty());
    let mut args = vec![
        SELF.to_owned(),
        OPTION.to_owned(),
        directory.display().to_string(),
        path.clone(),
    ];
    args.extend(own.unwrap_or_else(|| vec![path]));
    hook.set_args(Some(args));
    // Without one, libcontainer would choose an environment.
    let env = hook.env().clone().unwrap_or_default();
    hook.set_env(Some(env));
    hook.set_path(SELF.into());
}

/// Executes the hook; `args` follow the option. Returns only on error.
pub(crate) fn run(args: impl Iterator<Item = String>) -> String {
    match prepare(args) {
        Ok((path, argv, env)) => format!("{path:?}: {}", sys::execve(&path, &argv, &env)),
        Err(text) => text,
    }
}

fn prepare(
    mut args: impl Iterator<Item = String>,
) -> Result<(CString, ExecVector, ExecVector), String> {
    let directory = args.next().ok_or("no directory is given")?;
    let path = args.next().ok_or("no hook is given")?;
    let at = |e: std::io::Error| format!("the hook's state: {e}");
    let mut state = Vec::new();
    std::io::stdin()
        .take(MAX_STATE)
        .read_to_end(&mut state)
        .map_err(at)?;
    let mut state: Value =
        serde_json::from_slice(&state).map_err(|e| format!("the hook's state: {e}"))?;
    state["bundle"] = directory.into();
    let stdin = sys::memory_file(state.to_string().as_bytes()).map_err(at)?;
    sys::dup_to(stdin.as_raw_fd(), 0).map_err(at)?;
    sys::cloexec_from(3).map_err(at)?;
    let nul = |_| "a NUL byte".to_owned();
    let argv: Vec<Vec<u8>> = args.map(String::into_bytes).collect();
    let env: Vec<Vec<u8>> = std::env::vars_os()
        .map(|(name, value)| [name.into_vec(), b"=".to_vec(), value.into_vec()].concat())
        .collect();
    sys::default_signals();
    Ok((
        CString::new(path).map_err(nul)?,
        ExecVector::new(&argv).map_err(nul)?,
        ExecVector::new(&env).map_err(nul)?,
    ))
}

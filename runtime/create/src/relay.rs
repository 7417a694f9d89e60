//! Relay between libcontainer and an OCI hook that it runs (prestart, createRuntime, createContainer).
//!
//! libcontainer tells a hook the bundle that it was given itself, whose spec is stripped (`adjust.rs`). Many hooks read
//! the container's environment and mounts there: they are told the container's directory, which holds the whole spec.
//! The relay also keeps our descriptors from the hook: a process that it leaves behind would hold the status pipe.

use std::ffi::CString;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use cairn_monitor::sys::{self, ExecVector};
use oci_spec::runtime::{Hook, Spec};
use serde_json::Value;

/// The first argument of a relay.
pub(crate) const OPTION: &str = "--hook";

/// A state longer than this is none: annotations have 256 KiB at most.
const MAX_STATE: u64 = 4 << 20;

/// This program, also for a process in a user namespace, which may not be able to walk to it.
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
    // None would be libcontainer's own idea of an environment.
    let env = hook.env().clone().unwrap_or_default();
    hook.set_env(Some(env));
    hook.set_path(SELF.into());
}

/// Becomes the hook; `args` are those behind the option. Returns only with an error.
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

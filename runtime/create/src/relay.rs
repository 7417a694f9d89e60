//! Relay between libcontainer and the OCI hooks it runs: prestart, createRuntime, createContainer.
//!
//! libcontainer passes hooks its own bundle, with a stripped spec (`adjust.rs`). Many read
//! environment and mounts there, so the relay passes the container's directory instead. It enters
//! the host's mount namespace, which libcontainer has left (`place.rs`), except for createContainer.
//! It also closes our descriptors: a process that a hook leaves behind would keep the status pipe
//! open.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use cairn_monitor::sys::{self, ExecVector};
use oci_spec::runtime::{Hook, Spec};
use rustix::io::FdFlags;
use serde_json::Value;

use crate::place;

pub(crate) const OPTION: &str = "--hook";

/// Limit of a state's size: annotations have at most 256 KiB.
const MAX_STATE: u64 = 4 << 20;

/// This program, also from a user namespace without access to its path.
const SELF: &str = "/proc/self/exe";

/// In place of the descriptor of a mount namespace: stay in this one.
const STAY: &str = "-";

/// Puts a relay before each hook that libcontainer runs. `directory` is the container's. This
/// process is in the host's mount namespace.
pub(crate) fn install(spec: &mut Spec, directory: &Path) -> Result<(), String> {
    let Some(hooks) = spec.hooks_mut() else {
        return Ok(());
    };
    let at = |e: io::Error| format!("open the host's mount namespace: {e}");
    let host = File::open("/proc/self/ns/mnt").map_err(at)?;
    rustix::io::fcntl_setfd(&host, FdFlags::empty()).map_err(|e| at(e.into()))?;
    // Inherited by the relays; init closes it.
    let host = host.into_raw_fd().to_string();
    let each = |list: &mut Option<Vec<Hook>>, namespace: &str| {
        for hook in list.iter_mut().flatten() {
            relay(hook, namespace, directory);
        }
    };
    each(hooks.prestart_mut(), &host);
    each(hooks.create_runtime_mut(), &host);
    each(hooks.create_container_mut(), STAY);
    Ok(())
}

fn relay(hook: &mut Hook, namespace: &str, directory: &Path) {
    let path = hook.path().display().to_string();
    let own = hook.args().clone().filter(|args| !args.is_empty());
    let mut args = vec![
        SELF.to_owned(),
        OPTION.to_owned(),
        namespace.to_owned(),
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
    let namespace = args.next().ok_or("no mount namespace is given")?;
    let directory = args.next().ok_or("no directory is given")?;
    if namespace != STAY {
        let host = File::open(format!("/proc/self/fd/{namespace}"));
        let entered = host.and_then(|host| place::enter_mounts(&host));
        entered
            .and_then(|()| std::env::set_current_dir(&directory))
            .map_err(|e| format!("enter the host's mount namespace: {e}"))?;
    }
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

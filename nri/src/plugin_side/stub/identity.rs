//! A plugin's identity, and the variables of a launched one.

use std::{
    env, io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    path::PathBuf,
    process::Command,
};

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use tokio::net::UnixStream;

use super::error::StubError;
use crate::{
    plugin_id::PluginId,
    wire::process::{ENV_INDEX, ENV_NAME, ENV_SOCKET},
};

/// The identity of this process, with the author's settings (NRI-900).
pub(super) fn of_this_process(
    name: Option<String>,
    index: Option<String>,
) -> Result<PluginId, StubError> {
    let arg0 = env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let base = arg0
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let var = |name| env::var(name).ok().filter(|v: &String| !v.is_empty());
    identity(var(ENV_NAME), var(ENV_INDEX), name, index, &base)
}

/// Environment, then options, then the file name `NN-name` (NRI-900).
fn identity(
    env_name: Option<String>,
    env_index: Option<String>,
    name: Option<String>,
    index: Option<String>,
    base: &str,
) -> Result<PluginId, StubError> {
    let index = match (env_index, index) {
        (Some(a), Some(b)) if a != b => return Err(StubError::IndexTwice(a, b)),
        (a, b) => a.or(b),
    };
    let name = name.or(env_name);
    let (index, of_file) = match index {
        Some(index) => (index, base.to_owned()),
        None => {
            let no_index = |_| StubError::NoIndex {
                file: base.to_owned(),
            };
            let file: PluginId = base.parse().map_err(no_index)?;
            (file.index, file.name)
        }
    };
    Ok(PluginId::new(index, name.unwrap_or(of_file))?)
}

/// Takes the socket that the runtime passed to a launched plugin (NRI-121).
///
/// The descriptor is duplicated as a new close-on-exec one, and the old one is closed, so that no
/// child of the plugin keeps the connection open.
pub(super) fn inherited(value: &str) -> io::Result<UnixStream> {
    let fd: i32 = value.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    let ours: OwnedFd = pidfd_getfd(this, fd, PidfdGetfdFlags::empty())?;
    nix::unistd::close(fd)?;
    let stream = StdUnixStream::from(ours);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Removes the three variables of a launched plugin from the environment of a program that it
/// starts, which must not take itself for the launched plugin. The library cannot remove them from
/// the process: other threads may be reading its environment.
pub fn forget_launch(command: &mut Command) -> &mut Command {
    command
        .env_remove(ENV_NAME)
        .env_remove(ENV_INDEX)
        .env_remove(ENV_SOCKET)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(s: &str) -> Option<String> {
        Some(s.to_owned())
    }

    #[test]
    fn identity_comes_from_environment_then_options_then_file_name() {
        let id = |en, ei, n, i, base| identity(en, ei, n, i, base).map(|id| id.to_string()).ok();
        assert_eq!(
            id(some("foo"), some("10"), None, None, "x").as_deref(),
            Some("10-foo")
        );
        assert_eq!(
            id(some("foo"), some("10"), some("bar"), None, "x").as_deref(),
            Some("10-bar")
        );
        assert_eq!(
            id(None, some("10"), None, None, "plug").as_deref(),
            Some("10-plug")
        );
        assert_eq!(
            id(None, None, None, None, "07-a-b").as_deref(),
            Some("07-a-b")
        );
        // A name by option survives an index from the file name (NRI-900, mended).
        assert_eq!(
            id(None, None, some("n"), None, "07-a").as_deref(),
            Some("07-n")
        );
        assert_eq!(id(None, None, some("n"), None, "plug"), None);
        assert_eq!(id(None, some("1"), some("n"), None, "plug"), None);
    }

    #[test]
    fn a_program_started_by_hand_without_an_index_is_named_with_what_to_do() {
        let started = identity(None, None, None, None, "my-plugin").unwrap_err();
        assert_eq!(
            started.to_string(),
            "no index for this plugin: no runtime launched it, the program does not call index(), \
             and its file name \"my-plugin\" is not NN-name, such as \"10-my-plugin\""
        );
    }

    #[test]
    fn an_index_that_contradicts_the_environment_is_refused() {
        let twice = identity(None, some("10"), some("n"), some("11"), "x");
        assert!(matches!(twice, Err(StubError::IndexTwice(..))));
        assert!(identity(None, some("10"), some("n"), some("10"), "x").is_ok());
    }
}

//! Runs work inside a pinned network namespace, on its own thread.

use std::io;
use std::path::Path;

use super::error::NamespaceError;
use super::sysctl;
use crate::link::{self, Counters};
use crate::netlink::{Family, Socket};

/// File systems of network namespace files: nsfs, and proc for `/proc/<pid>/ns/net`.
const NAMESPACE_MAGIC: [i128; 2] = [0x6e73_6673, 0x9fa0];

/// Sets those parameters of an attached pod that belong to its interface.
/// [`super::PinSpec::validate`] has checked the names.
pub fn set_interface_sysctls(
    netns: &Path,
    sysctls: &[(String, String)],
) -> Result<(), NamespaceError> {
    let late: Vec<_> = sysctls
        .iter()
        .filter(|(name, _)| sysctl::is_of_interface(name))
        .collect();
    if late.is_empty() {
        return Ok(());
    }
    in_netns(netns, || {
        late.iter()
            .try_for_each(|(name, value)| sysctl::write(name, value))
    })?
}

/// The interfaces of a network namespace by name, with their traffic. Blocks for some 0.1 ms.
pub fn interfaces(netns: &Path) -> Result<Vec<(String, Counters)>, NamespaceError> {
    in_netns(netns, || {
        Ok(link::traffic(&mut Socket::open(Family::Route)?)?)
    })?
}

/// Whether a path is (still) a network namespace's file.
pub(crate) fn is_namespace(path: &Path) -> bool {
    !path.as_os_str().is_empty()
        && rustix::fs::statfs(path)
            .is_ok_and(|stat| NAMESPACE_MAGIC.contains(&i128::from(stat.f_type)))
}

/// Runs `work` on its own thread in the network namespace at `netns`. Its sockets stay there.
pub fn in_netns<T: Send>(
    netns: &Path,
    work: impl FnOnce() -> T + Send,
) -> Result<T, NamespaceError> {
    let step =
        |verb: &str| NamespaceError::io(format!("{verb} network namespace {}", netns.display()));
    on_thread("netns", || {
        // `NetNs::run` would return to the old namespace, which can fail; this thread ends here.
        let inside = netns_rs::get_from_path(netns).map_err(|e| step("open")(cause(e)))?;
        inside.enter().map_err(|e| step("enter")(cause(e)))?;
        Ok(work())
    })?
}

/// The system's error inside the crate's, whose text repeats the path.
fn cause(error: netns_rs::Error) -> io::Error {
    match error {
        netns_rs::Error::OpenNsError(_, cause) => cause,
        netns_rs::Error::SetnsError(errno) => errno.into(),
        other => io::Error::other(other),
    }
}

/// Runs `work` on its own thread, so that unshared or entered namespaces affect no other.
pub(super) fn on_thread<T: Send>(
    name: &str,
    work: impl FnOnce() -> T + Send,
) -> Result<T, NamespaceError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn_scoped(scope, work);
        let thread = thread.map_err(NamespaceError::io("start a thread"))?;
        thread
            .join()
            .map_err(|_| NamespaceError::Invalid("the namespace thread panicked".into()))
    })
}

//! Makes namespaces, on the daemon's thread or in the helper. The only `unsafe` of the crate.

use std::io;
use std::path::Path;

use rustix::thread::UnshareFlags;

use super::error::NamespaceError;
use super::spec::PinSpec;
use super::sysctl;
use crate::link;
use crate::netlink::{Family, Socket};

/// Moves the calling thread to new namespaces of these `flags`.
#[allow(unsafe_code)]
pub(super) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    debug_assert!(!flags.intersects(UnshareFlags::FILES | UnshareFlags::FS | UnshareFlags::NEWNS));
    // SAFETY: the call is unsafe because of CLONE_FILES, which would separate this thread's
    // descriptor table from the others'. `PinSpec::flags` sets namespace flags only.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// The last steps inside the new namespaces.
pub(super) fn prepare(spec: &PinSpec) -> Result<(), NamespaceError> {
    if let Some(hostname) = &spec.hostname {
        rustix::system::sethostname(hostname.as_bytes())
            .map_err(NamespaceError::io(format!("set hostname {hostname}")))?;
    }
    if spec.net {
        Socket::open(Family::Route)?.run(&[link::loopback_up()])?;
    }
    let now = spec
        .sysctls
        .iter()
        .filter(|(name, _)| !sysctl::is_of_interface(name));
    now.into_iter()
        .try_for_each(|(name, value)| sysctl::write(name, value))
}

/// Binds a process's or thread's namespaces, in `namespaces`, over the files in `dir`.
pub(super) fn bind_all(
    spec: &PinSpec,
    namespaces: &Path,
    dir: &Path,
) -> Result<(), NamespaceError> {
    for name in spec.wanted() {
        let file = dir.join(name);
        rustix::mount::mount_bind(namespaces.join(name), &file).map_err(NamespaceError::io(
            format!("pin namespace {}", file.display()),
        ))?;
    }
    Ok(())
}

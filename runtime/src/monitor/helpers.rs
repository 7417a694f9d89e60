//! The programs `cairn-monitor` and `cairn-create`, in a read-only mount tree.
//!
//! The helpers run from a mount tree that is attached nowhere. A container with SYS_PTRACE in a
//! shared pid namespace can open a helper's image through `/proc/<pid>/exe`, but cannot write to it
//! there. Every daemon start makes a new tree, and each monitor gets a descriptor of it, so the
//! tree lasts as long as one of its users. It is independent of the mount options of `run_dir`, a
//! crash leaves no mount behind, and no mount blocks a shutdown.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cairn_monitor::mount_tree::{self, Attributes};
use rustix::mount::MountFlags;

use super::error::MonitorError;
use crate::detached;

pub(super) const MONITOR: &str = "cairn-monitor";
pub(super) const CREATE: &str = "cairn-create";

/// Makes the tree of the helpers in this directory.
///
/// It binds the files, not their directory: an update on disk does not change the tree.
#[expect(
    clippy::disallowed_methods,
    reason = "at the start, before anybody is served"
)]
pub(super) fn gather(dir: &Path) -> Result<OwnedFd, MonitorError> {
    let sources = [MONITOR, CREATE].map(|name| dir.join(name));
    for source in &sources {
        check(source)?;
    }
    let frame = Path::new(detached::FREE);
    let failed = |e| MonitorError::Helpers(format!("gather them in {}: {e}", frame.display()));
    let programs = sources.iter().map(|source| {
        let copied = mount_tree::copy(source, false);
        copied.map_err(|e| MonitorError::file("bind the helper", source, e))
    });
    let programs = programs.collect::<Result<Vec<_>, _>>()?;
    let gather = || -> io::Result<OwnedFd> {
        let options = Some(c"mode=700,size=64k");
        rustix::mount::mount("cairn", frame, "tmpfs", MountFlags::empty(), options)?;
        for (name, program) in [MONITOR, CREATE].iter().zip(programs) {
            File::create(frame.join(name))?;
            mount_tree::attach(&program, &frame.join(name))?;
        }
        let tree = mount_tree::copy(frame, true)?;
        let attributes = Attributes {
            set: libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
            clear: libc::MOUNT_ATTR_NOEXEC,
            recursive: true,
            ..Attributes::default()
        };
        mount_tree::set_attributes(&tree, &attributes)?;
        Ok(tree)
    };
    detached::in_bare_namespace(gather).map_err(failed)
}

#[expect(
    clippy::disallowed_methods,
    reason = "at the start, before anybody is served"
)]
fn check(path: &Path) -> Result<(), MonitorError> {
    let wrong = |text: &str| MonitorError::Helpers(format!("{}: {text}", path.display()));
    let meta = fs::metadata(path).map_err(|e| MonitorError::file("find the helper", path, e))?;
    let mode = meta.permissions().mode();
    if !meta.is_file() || mode & 0o111 == 0 {
        return Err(wrong("is not an executable file"));
    }
    if mode & 0o022 != 0 {
        return Err(wrong("is writable by users other than its owner"));
    }
    Ok(())
}

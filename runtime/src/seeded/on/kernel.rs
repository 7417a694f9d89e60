//! Files of cgroups in memory: on a plain file system they would keep the directories from being
//! removed.

use std::{io, path::Path};

use super::with;

/// `None`: not a seeded run.
#[expect(clippy::disallowed_methods, reason = "in a test")]
pub fn write_kernel(path: &Path, value: &str) -> Option<io::Result<()>> {
    with(|run| {
        run.seed?;
        if !path.parent().is_some_and(Path::is_dir) {
            return Some(Err(io::ErrorKind::NotFound.into()));
        }
        run.kernel.insert(path.to_owned(), value.to_owned());
        Some(Ok(()))
    })
}

/// `None`: not a seeded run, or the file was not written.
pub fn read_kernel(path: &Path) -> Option<String> {
    with(|run| run.kernel.get(path).cloned())
}

/// The machine has started again.
pub fn forget_kernel() {
    with(|run| run.kernel.clear());
}

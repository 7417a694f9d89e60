//! The root file system of pause processes: one program.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use cairn_monitor::own_file;

use crate::{
    host::relabel::relabel,
    oci::SelinuxFacts,
    pod::error::{AtStep as _, Error, Result},
    store,
};

/// The static monitor program is also the pause program, and the only file of the root.
#[expect(
    clippy::disallowed_methods,
    reason = "at the start, before anybody is served"
)]
pub(super) fn make(state: &Path, helpers: &Path) -> Result<PathBuf> {
    let root = state.join("pause-root");
    // Mount points for init, which may be root of a user namespace.
    for dir in [
        root.clone(),
        root.join("proc"),
        root.join("dev"),
        root.join("sys"),
    ] {
        store::make_dir(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).step("pause root")?;
    }
    let (from, to, tmp) = (
        helpers.join("cairn-monitor"),
        root.join("pause"),
        root.join("pause.tmp"),
    );
    let program = fs::read(&from).step("pause root")?;
    if names_a_linker(&program) {
        let from = from.display();
        return Err(Error::failed(format!(
            "{from} is dynamically linked, so it cannot run in a pod's own root: build it by hack/build"
        )));
    }
    // A full tmpfs has no room for a second copy.
    if !own_file::read(&to).is_ok_and(|there| there == program) {
        fs::copy(&from, &tmp)
            .and_then(|_| fs::rename(&tmp, &to))
            .step("pause root")?;
    }
    // If a process may not read its program, the kernel makes it undumpable from its execve on.
    fs::set_permissions(&to, fs::Permissions::from_mode(0o111)).step("pause root")?;
    Ok(root)
}

/// Sets a label without categories, since all pods read it. If that fails in permissive mode, pods
/// run without labels.
#[expect(
    clippy::disallowed_methods,
    reason = "at the start, before anybody is served"
)]
pub(super) fn label(root: &Path, selinux: &mut SelinuxFacts) -> Result<()> {
    let Ok(contexts) = &selinux.contexts else {
        return Ok(());
    };
    let labelled =
        fs::canonicalize(root).and_then(|root| relabel(&root, &contexts.file, &|| false));
    match labelled {
        Err(error) if !selinux.enforcing => {
            selinux.contexts = Err(format!("label {}: {error}", root.display()));
            Ok(())
        }
        other => other.step("label the pause root"),
    }
}

/// Whether this program, a 64-bit ELF file like all of ours, needs a dynamic linker.
fn names_a_linker(program: &[u8]) -> bool {
    const PT_INTERP: usize = 3;
    let number = |at: usize, length: usize| {
        let bytes = program.get(at..at.checked_add(length)?)?;
        let number = bytes
            .iter()
            .rev()
            .fold(0, |n, byte| n << 8 | usize::from(*byte));
        Some(number)
    };
    let headers = || Some((number(32, 8)?, number(54, 2)?, number(56, 2)?));
    let Some((first, size, count)) = headers() else {
        return false;
    };
    (0..count).any(|n| {
        let kind = n
            .checked_mul(size)
            .and_then(|at| number(at.checked_add(first)?, 4));
        kind == Some(PT_INTERP)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_wants_a_linker_is_told_from_one_that_does_not() {
        let ours = fs::read("/proc/self/exe").unwrap();
        assert!(names_a_linker(&ours));
        let headers = usize::from(u16::from_le_bytes([ours[56], ours[57]]));
        let mut without = ours;
        without[56..58].copy_from_slice(&0_u16.to_le_bytes());
        assert!(headers > 0 && !names_a_linker(&without));
        // The kernel rejects files that are not programs, with its own error.
        assert!(!names_a_linker(b"#!/bin/sh\n"));
        assert!(!names_a_linker(&[0xff; 64]));
    }
}

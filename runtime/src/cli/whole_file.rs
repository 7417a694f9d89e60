//! Atomic file replacement for outputs of commands.

use std::{io::Write as _, os::unix::fs::PermissionsExt as _, path::Path};

/// Writes `text` to `path` atomically: a reader sees the old or the new file, and a failure leaves
/// the old one, or none. The umask decides about its mode.
///
/// # Errors
/// One line for the user, with the path.
pub(super) fn write(path: &Path, text: &str) -> Result<(), String> {
    let failed = |why: &dyn std::fmt::Display| format!("write {}: {why}", path.display());
    // Follows a link, so that the link stays; never replaces a device or a directory.
    let target = match path.canonicalize() {
        Ok(there) if there.is_file() => there,
        Ok(_) => {
            return Err(failed(
                &"it exists and is not a regular file; give another name",
            ));
        }
        Err(_) => path.to_path_buf(),
    };
    let dir = match target.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .prefix(".cairn-")
        .permissions(std::fs::Permissions::from_mode(0o666))
        .tempfile_in(dir)
        .map_err(|error| failed(&error))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.as_file().sync_all())
        .map_err(|error| failed(&error))?;
    file.persist(&target)
        .map(drop)
        .map_err(|error| failed(&error.error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_through_a_link_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("page"), dir.path().join("link"));
        write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, "new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert!(link.is_symlink());
        assert_eq!(names(dir.path()), ["link", "page"]);
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_and_says_where() {
        let dir = tempfile::tempdir().unwrap();
        let taken = dir.path().join("taken");
        fs::create_dir(&taken).unwrap();
        let error = write(&taken, "x").unwrap_err();
        assert!(
            error.contains("taken: it exists and is not a regular file"),
            "{error}"
        );
        let error = write(&dir.path().join("no/page"), "x").unwrap_err();
        assert!(error.contains("no/page: "), "{error}");
        assert_eq!(names(dir.path()), ["taken"]);
    }
}

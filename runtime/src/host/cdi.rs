//! CDI files of this host (CRI-227), read for each container that requests a device, so that
//! changes apply at once and nothing is cached. `oci/cdi` interprets them.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use crate::oci::{
    CdiFile, CdiRegistry,
    cdi::{DIRECTORIES, MAX_FILE},
};

/// Limit of files read per directory.
const MAX_FILES: usize = 256;

/// The devices of the standard directories.
pub fn registry() -> CdiRegistry {
    load(&DIRECTORIES.map(PathBuf::from))
}

fn load(directories: &[PathBuf]) -> CdiRegistry {
    let (registry, warnings) = CdiRegistry::load(&read(directories));
    for warning in warnings {
        tracing::warn!(%warning, "cdi");
    }
    registry
}

/// The files of all directories, each sorted by name; a missing directory has none.
fn read(directories: &[PathBuf]) -> Vec<CdiFile> {
    let mut files = Vec::new();
    for (priority, directory) in directories.iter().enumerate() {
        let Ok(entries) = fs::read_dir(directory) else {
            continue;
        };
        let mut paths: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| is_cdi(path))
            .collect();
        paths.sort();
        paths.truncate(MAX_FILES);
        for path in paths {
            match read_bounded(&path) {
                Ok(text) => files.push(CdiFile {
                    priority,
                    path: path.display().to_string(),
                    text,
                }),
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "cannot read a CDI file")
                }
            }
        }
    }
    files
}

fn is_cdi(path: &Path) -> bool {
    let ending = path.extension().and_then(|e| e.to_str());
    matches!(ending, Some("json" | "yaml" | "yml"))
}

/// Reads up to one byte over the limit, by which `oci/cdi` detects an oversized file.
fn read_bounded(path: &Path) -> std::io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    fs::File::open(path)?
        .take(MAX_FILE as u64 + 1)
        .read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::SpecError;

    fn file(value: &str) -> String {
        format!(
            r#"{{"cdiVersion":"1.0.0","kind":"v.com/c","devices":[{{"name":"d","containerEdits":{{"env":["FROM={value}"]}}}}]}}"#
        )
    }

    #[test]
    fn files_are_read_at_each_use_and_the_later_directory_wins() {
        let (low, high) = (
            tempfile::tempdir().expect("dir"),
            tempfile::tempdir().expect("dir"),
        );
        let directories = [
            low.path().to_owned(),
            high.path().to_owned(),
            "/nowhere".into(),
        ];
        let env = || {
            let registry = load(&directories);
            let edits = registry.edits(&["v.com/c=d".to_owned()])?;
            Ok::<_, SpecError>(edits.iter().flat_map(|e| e.env.clone()).collect::<Vec<_>>())
        };
        assert!(env().is_err());
        fs::write(low.path().join("a.json"), file("low")).expect("written");
        assert_eq!(env().expect("resolved"), ["FROM=low"]);
        fs::write(high.path().join("b.yaml"), file("high")).expect("written");
        fs::write(high.path().join("b.txt"), "not CDI").expect("written");
        fs::create_dir(high.path().join("dir.json")).expect("made");
        fs::write(high.path().join("binary.json"), b"\xff").expect("written");
        assert_eq!(env().expect("resolved"), ["FROM=high"]);
    }
}

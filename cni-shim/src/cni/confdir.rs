//! The configuration directory: chooses the list (CRI-500) and detects changes (CRI-502).
//!
//! There is no watcher. Every use compares the directory with the last read (names, inodes, sizes,
//! times: some 20 µs) and reads it again if it differs. A change therefore takes effect at once,
//! the directory may disappear and return, and a half-written file is invalid until it is complete.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::conflist::{CONFIG_MAX, ConfList};

/// Limit of files read.
const FILES_MAX: usize = 1024;

/// The content of the configuration directory.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    /// The first valid list.
    List(Arc<ConfList>),
    /// Files exist, but none is valid.
    Invalid(Vec<String>),
    /// The directory is missing or has no files.
    Nothing,
}

/// The directory, and its content when last read.
#[derive(Debug)]
pub(crate) struct ConfDir {
    dir: PathBuf,
    last: Mutex<Option<(Vec<Stamp>, Found)>>,
}

/// The identity of a file's content.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Stamp {
    path: PathBuf,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl ConfDir {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            last: Mutex::new(None),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.dir
    }

    /// Reads the present content. Blocking.
    pub(crate) fn look(&self) -> Found {
        let now = match self.stamps() {
            Ok(stamps) => stamps,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Found::Nothing,
            Err(error) => return Found::Invalid(vec![format!("{}: {error}", self.dir.display())]),
        };
        let mut last = self.last.lock();
        match &*last {
            Some((stamps, found)) if *stamps == now => found.clone(),
            _ => {
                let found = self.read(&now);
                *last = Some((now, found.clone()));
                found
            }
        }
    }

    fn read(&self, stamps: &[Stamp]) -> Found {
        let mut wrong = Vec::new();
        for stamp in stamps
            .iter()
            .filter(|stamp| stamp.path.parent() == Some(&self.dir))
        {
            match self.read_list(&stamp.path) {
                Ok(list) => {
                    // Logged once: only a changed file leads here again.
                    for why in &wrong {
                        tracing::warn!(
                            network = list.name,
                            "skipped an invalid CNI configuration: {why}"
                        );
                    }
                    return Found::List(Arc::new(list));
                }
                Err(why) => wrong.push(format!("{}: {why}", stamp.path.display())),
            }
        }
        if wrong.is_empty() {
            Found::Nothing
        } else {
            Found::Invalid(wrong)
        }
    }

    fn read_list(&self, path: &Path) -> Result<ConfList, String> {
        let mut list = ConfList::parse(&read_bounded(path)?)?;
        if !list.inlined_only {
            let beside = self.dir.join(&list.name);
            for file in candidates(&beside, &["conf"]).unwrap_or_default() {
                let added = read_bounded(&file).and_then(|text| list.append(&text));
                added.map_err(|why| format!("{}: {why}", file.display()))?;
            }
        }
        if list.plugins.is_empty() {
            return Err("no plugins".into());
        }
        // Some distributions install such a file beside the real one.
        if list.plugins.iter().all(|plugin| plugin.kind == "loopback") {
            return Err("gives no address: only loopback".into());
        }
        Ok(list)
    }

    /// The relevant files, sorted by name; those in subdirectories last.
    fn stamps(&self) -> io::Result<Vec<Stamp>> {
        let mut files = candidates(&self.dir, &["conflist", "conf", "json"])?;
        for entry in fs::read_dir(&self.dir)?.take(FILES_MAX) {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                files.extend(candidates(&entry.path(), &["conf"]).unwrap_or_default());
            }
        }
        let stamp = |path: PathBuf| {
            let data = fs::metadata(&path).ok()?;
            Some(Stamp {
                path,
                inode: data.ino(),
                size: data.size(),
                changed: (data.ctime(), data.ctime_nsec()),
            })
        };
        Ok(files.into_iter().filter_map(stamp).collect())
    }
}

fn candidates(dir: &Path, extensions: &[&str]) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)?.take(FILES_MAX) {
        let path = entry?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if extension.is_some_and(|extension| extensions.contains(&extension)) && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read;
    let mut text = Vec::new();
    let file = fs::File::open(path).map_err(|e| e.to_string())?;
    // A FIFO or a device would block or never end.
    if !file.metadata().map_err(|e| e.to_string())?.is_file() {
        return Err("not a regular file".into());
    }
    file.take(CONFIG_MAX as u64 + 1)
        .read_to_end(&mut text)
        .map_err(|e| e.to_string())?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"cniVersion":"1.0.0","name":"NAME","plugins":[{"type":"bridge"}]}"#;

    fn name(found: &Found) -> Option<String> {
        match found {
            Found::List(list) => Some(list.name.clone()),
            _ => None,
        }
    }

    #[test]
    fn the_first_valid_file_by_name_is_used_and_invalid_ones_are_reported_if_there_is_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let write =
            |file: &str, text: &str| fs::write(dir.path().join(file), text).expect("writes");
        let conf = ConfDir::new(dir.path().to_owned());
        assert!(matches!(conf.look(), Found::Nothing));

        write("10-broken.conflist", "{");
        assert!(matches!(conf.look(), Found::Invalid(wrong) if wrong[0].contains("10-broken")));

        write("20-b.conflist", &GOOD.replace("NAME", "b"));
        write("15-a.json", &GOOD.replace("NAME", "a"));
        write("00-not-mine.txt", "x");
        assert_eq!(name(&conf.look()).as_deref(), Some("a"));
    }

    #[test]
    fn a_list_of_no_plugins_is_invalid_unless_files_beside_it_add_some() {
        let dir = tempfile::tempdir().expect("a directory");
        let conf = ConfDir::new(dir.path().to_owned());
        let list = r#"{"cniVersion":"1.0.0","name":"net","plugins":[]}"#;
        fs::write(dir.path().join("a.conflist"), list).expect("writes");
        assert!(matches!(conf.look(), Found::Invalid(_)));

        fs::create_dir(dir.path().join("net")).expect("makes");
        fs::write(dir.path().join("net/10-x.conf"), r#"{"type":"ptp"}"#).expect("writes");
        assert!(matches!(conf.look(), Found::List(list) if list.plugins[0].kind == "ptp"));
    }

    #[test]
    fn a_list_that_only_makes_the_loopback_is_passed_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let conf = ConfDir::new(dir.path().to_owned());
        let only = r#"{"cniVersion":"0.4.0","name":"lo","type":"loopback"}"#;
        fs::write(dir.path().join("00-lo.conf"), only).expect("writes");
        assert!(matches!(conf.look(), Found::Invalid(_)));
        fs::write(
            dir.path().join("99-net.conflist"),
            GOOD.replace("NAME", "net"),
        )
        .expect("writes");
        assert_eq!(name(&conf.look()).as_deref(), Some("net"));
    }

    #[test]
    fn a_replaced_file_and_a_directory_made_again_are_seen_at_once() {
        let parent = tempfile::tempdir().expect("a directory");
        let dir = parent.path().join("net.d");
        let conf = ConfDir::new(dir.clone());
        for round in ["one", "two"] {
            fs::create_dir(&dir).expect("makes");
            fs::write(dir.join("new"), GOOD.replace("NAME", round)).expect("writes");
            fs::rename(dir.join("new"), dir.join("a.conflist")).expect("renames");
            assert_eq!(name(&conf.look()).as_deref(), Some(round));
            fs::remove_dir_all(&dir).expect("removes");
            assert!(matches!(conf.look(), Found::Nothing));
        }
    }
}

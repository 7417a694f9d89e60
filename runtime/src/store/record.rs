//! Records on disk: one JSON file per object, so that damage stays with one object (CRI-818).
//!
//! Unreadable files (which include objects other than regular files, and files longer than
//! [`own_file::MAX`]), and those of a newer schema, stay in place for the program that wrote them.

use std::{
    fs, io,
    marker::PhantomData,
    path::{Path, PathBuf},
};

use cairn_monitor::own_file;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    dirs::make_dir,
    error::Error,
    unsynced::{Unsynced, discard_unfinished},
};

/// A type whose objects a store keeps, one file each.
pub trait Record: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The kind, also in the fault point of its writes: `store.<KIND>`.
    const KIND: &'static str;
    /// The schema this program writes; it reads this one and older ones.
    const SCHEMA: u32;

    fn id(&self) -> &str;
}

#[derive(Serialize, Deserialize)]
struct Envelope<R> {
    schema: u32,
    record: R,
}

/// An existing record that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// From the file's name.
    pub id: String,
    pub path: PathBuf,
    pub reason: String,
}

/// A directory of records of one kind.
#[derive(Clone)]
pub struct Store<R> {
    dir: PathBuf,
    unsynced: Unsynced,
    kind: PhantomData<fn() -> R>,
}

impl<R: Record> Store<R> {
    /// Opens or makes the directory (mode 0700: records contain environment values).
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn open(dir: PathBuf, unsynced: Unsynced) -> Result<Self, Error> {
        make_dir(&dir)?;
        Ok(Self {
            dir,
            unsynced,
            kind: PhantomData,
        })
    }

    pub fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    /// Loads the readable records, and lists the others. After a reboot a renamed but unsynced file
    /// may be empty: no caller relied on it, its object ended with the machine, and it is removed.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn load(&self, rebooted: bool) -> Result<(Vec<R>, Vec<Unreadable>), Error> {
        self.restore_unreadable()?;
        discard_unfinished(&self.dir)?;
        let mut records = Vec::new();
        let mut unreadable = Vec::new();
        let entries = fs::read_dir(&self.dir).map_err(Error::io("read", &self.dir))?;
        for entry in entries {
            let path = entry.map_err(Error::io("read", &self.dir))?.path();
            let name = path.file_name().and_then(|n| n.to_str());
            let Some(id) = name.and_then(|n| n.strip_suffix(".json")) else {
                continue;
            };
            let reason = match read_record::<R>(&path) {
                Ok(record) if record.id() == id => {
                    records.push(record);
                    continue;
                }
                Ok(record) => format!("is the record of {}", record.id()),
                Err(_) if rebooted && is_blank(&path) => {
                    tracing::warn!(path = %path.display(), "removed a record that a power loss left empty");
                    self.unsynced.remove(&path)?;
                    continue;
                }
                Err(reason) => reason,
            };
            unreadable.push(Unreadable {
                id: id.to_owned(),
                path: path.clone(),
                reason,
            });
        }
        Ok((records, unreadable))
    }

    /// Before 0.2 an unreadable record was moved to `unreadable/`.
    fn restore_unreadable(&self) -> Result<(), Error> {
        let aside = self.dir.join("unreadable");
        let entries = match fs::read_dir(&aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(Error::io("read", &aside))?,
        };
        for entry in entries {
            let entry = entry.map_err(Error::io("read", &aside))?;
            let to = self.dir.join(entry.file_name());
            if !to.exists() {
                fs::rename(entry.path(), &to).map_err(Error::io("restore", &to))?;
            }
        }
        Ok(())
    }

    /// Waits until all earlier writes are on disk, in every store that shares [`Unsynced`].
    ///
    /// # Errors
    /// The disk's.
    pub async fn sync(&self) -> Result<(), Error> {
        self.unsynced.sync().await
    }

    pub(super) fn save(&self, record: &R) -> Result<(), Error> {
        crate::fault::point(format_args!("store.{}", R::KIND))?;
        let bytes = serde_json::to_vec_pretty(&Envelope {
            schema: R::SCHEMA,
            record,
        })
        .map_err(|error| Error::Encode {
            id: record.id().to_owned(),
            message: error.to_string(),
        })?;
        let path = self.path(record.id());
        own_file::check_length(bytes.len() as u64).map_err(Error::io("write", &path))?;
        self.unsynced.replace(&path, &bytes)
    }

    /// Removes a record; a missing one is fine.
    ///
    /// # Errors
    /// The file system's.
    pub fn delete(&self, id: &str) -> Result<(), Error> {
        self.unsynced.remove(&self.path(id))
    }
}

/// Empty, or zeros, which file systems show for unwritten blocks.
fn is_blank(path: &Path) -> bool {
    own_file::read(path).is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 0))
}

fn read_record<R: Record>(path: &Path) -> Result<R, String> {
    parse_record(&own_file::read(path).map_err(|error| error.to_string())?)
}

/// Parses the bytes of a record's file.
///
/// # Errors
/// The reason why this version cannot read it.
pub fn parse_record<R: Record>(bytes: &[u8]) -> Result<R, String> {
    #[derive(Deserialize)]
    struct Head {
        schema: u32,
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if head.schema > R::SCHEMA {
        return Err(format!(
            "schema {} is newer than this cairn's {}",
            head.schema,
            R::SCHEMA
        ));
    }
    serde_json::from_slice::<Envelope<R>>(bytes)
        .map(|envelope| envelope.record)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Stone {
        id: String,
        weight: u32,
    }

    impl Record for Stone {
        const KIND: &'static str = "stone";
        const SCHEMA: u32 = 2;

        fn id(&self) -> &str {
            &self.id
        }
    }

    fn stone(id: &str, weight: u32) -> Stone {
        Stone {
            id: id.into(),
            weight,
        }
    }

    #[test]
    fn an_unreadable_record_stays_in_place() {
        let dir = tempfile::tempdir().expect("tempdir");
        let store = Store::<Stone>::open(dir.path().to_owned(), Unsynced::default()).expect("open");
        store.save(&stone("good", 1)).expect("save");
        fs::write(dir.path().join("torn.json"), b"{\"schema\":2,").expect("write");
        fs::write(
            dir.path().join("newer.json"),
            b"{\"schema\":3,\"record\":{\"id\":\"newer\",\"weight\":1}}",
        )
        .expect("write");
        fs::write(
            dir.path().join("other.json"),
            b"{\"schema\":2,\"record\":{\"id\":\"x\",\"weight\":1}}",
        )
        .expect("write");
        fs::write(dir.path().join("half.tmp"), b"{").expect("write");
        // Moved there by an earlier version.
        fs::create_dir(dir.path().join("unreadable")).expect("make");
        fs::write(
            dir.path().join("unreadable/back.json"),
            b"{\"schema\":2,\"record\":{\"id\":\"back\",\"weight\":4}}",
        )
        .expect("write");
        let (mut records, mut unreadable) = store.load(false).expect("load");
        records.sort_by(|a, b| a.id.cmp(&b.id));
        unreadable.sort_by(|a, b| a.id.cmp(&b.id));
        assert_eq!(records, [stone("back", 4), stone("good", 1)]);
        let ids: Vec<_> = unreadable.iter().map(|found| found.id.as_str()).collect();
        assert_eq!(ids, ["newer", "other", "torn"]);
        assert_eq!(
            unreadable[0].reason,
            "schema 3 is newer than this cairn's 2"
        );
        assert!(unreadable.iter().all(|found| found.path.exists()));
        assert!(!dir.path().join("half.tmp").exists());
    }

    #[test]
    fn objects_that_are_no_files_and_endless_ones_are_unreadable_records() {
        let dir = tempfile::tempdir().expect("tempdir");
        let store = Store::<Stone>::open(dir.path().to_owned(), Unsynced::default()).expect("open");
        store.save(&stone("good", 1)).expect("save");
        std::os::unix::fs::symlink("/dev/zero", store.path("zero")).expect("linked");
        std::os::unix::fs::symlink(store.path("good"), store.path("link")).expect("linked");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, store.path("fifo"), fifo, mode, 0).expect("made");
        fs::create_dir(store.path("dir")).expect("made");
        let long = fs::File::create(store.path("long")).expect("made");
        long.set_len(own_file::MAX + 1).expect("sparse");
        for rebooted in [false, true] {
            let (records, mut unreadable) = store.load(rebooted).expect("load");
            assert_eq!(records, [stone("good", 1)]);
            unreadable.sort_by(|a, b| a.id.cmp(&b.id));
            let found = unreadable
                .iter()
                .map(|u| (u.id.as_str(), u.reason.as_str()));
            let regular = "must be a regular file";
            let all = ["dir", "fifo", "link"].map(|id| (id, regular));
            let mut all = all.to_vec();
            all.extend([("long", "is longer than 64 MiB"), ("zero", regular)]);
            assert_eq!(found.collect::<Vec<_>>(), all);
        }
    }

    #[test]
    fn an_empty_record_goes_only_where_the_machine_has_rebooted() {
        let dir = tempfile::tempdir().expect("tempdir");
        let store = Store::<Stone>::open(dir.path().to_owned(), Unsynced::default()).expect("open");
        for (name, content) in [("empty", ""), ("zeros", "\0\0"), ("torn", "{")] {
            fs::write(store.path(name), content).expect("write");
        }
        let unreadable = |rebooted| {
            let (_, unreadable) = store.load(rebooted).expect("load");
            let mut ids: Vec<_> = unreadable.into_iter().map(|found| found.id).collect();
            ids.sort();
            ids
        };
        assert_eq!(unreadable(false), ["empty", "torn", "zeros"]);
        assert_eq!(unreadable(true), ["torn"]);
        assert!(!store.path("empty").exists());
    }
}

//! Records on disk: one JSON file per object, replaced atomically and fsynced, so that an RPC
//! that said OK is on disk (CRI-811) and damage to one file is damage to one object (CRI-818).
//!
//! A file that cannot be read, or is of a newer schema, is left where it is: the program that wrote it finds it there.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    marker::PhantomData,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{step} {}: {source}", path.display())]
    Io {
        step: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} is in use by another cairn, pid {pid}", path.display())]
    Locked { path: PathBuf, pid: String },
    #[error("write record {id}: {message}")]
    Encode { id: String, message: String },
    #[error("fault point {0}")]
    Fault(String),
}

impl Error {
    fn io(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { step, path, source }
    }
}

/// What a store keeps one file of.
pub trait Record: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Names the fault point of its writes: `store.<KIND>`.
    const KIND: &'static str;
    /// The newest schema this program writes; it reads this one and older.
    const SCHEMA: u32;

    fn id(&self) -> &str;
}

#[derive(Serialize, Deserialize)]
struct Envelope<R> {
    schema: u32,
    record: R,
}

/// A record that is there and cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// From the file's name.
    pub id: String,
    pub path: PathBuf,
    pub reason: String,
}

/// A directory of records of one kind.
pub struct Store<R> {
    dir: PathBuf,
    kind: PhantomData<fn() -> R>,
}

impl<R> Clone for Store<R> {
    fn clone(&self) -> Self {
        Self {
            dir: self.dir.clone(),
            kind: PhantomData,
        }
    }
}

impl<R: Record> Store<R> {
    /// Opens, or makes, the directory (mode 0700: records hold environment values).
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn open(dir: PathBuf) -> Result<Self, Error> {
        make_dir(&dir)?;
        Ok(Self {
            dir,
            kind: PhantomData,
        })
    }

    /// Where the record of this id lies.
    pub fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    /// Every readable record, and what is there beside them.
    ///
    /// # Errors
    /// When the directory itself cannot be read.
    pub fn load(&self) -> Result<(Vec<R>, Vec<Unreadable>), Error> {
        self.take_back()?;
        discard_unfinished(&self.dir)?;
        let mut records = Vec::new();
        let mut unreadable = Vec::new();
        let entries = fs::read_dir(&self.dir).map_err(Error::io("read", &self.dir))?;
        for entry in entries {
            let path = entry.map_err(Error::io("read", &self.dir))?.path();
            let Some(name) = path.file_name().and_then(|n| n.to_str()) else {
                continue;
            };
            if let Some(id) = name.strip_suffix(".json") {
                let reason = match read_record::<R>(&path) {
                    Ok(record) if record.id() == id => {
                        records.push(record);
                        continue;
                    }
                    Ok(record) => format!("is the record of {}", record.id()),
                    Err(reason) => reason,
                };
                unreadable.push(Unreadable {
                    id: id.to_owned(),
                    path: path.clone(),
                    reason,
                });
            }
        }
        Ok((records, unreadable))
    }

    /// Before 0.2 a record that could not be read was moved to `unreadable/`.
    fn take_back(&self) -> Result<(), Error> {
        let aside = self.dir.join("unreadable");
        let entries = match fs::read_dir(&aside) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(Error::io("read", &aside))?,
        };
        for entry in entries {
            let entry = entry.map_err(Error::io("read", &aside))?;
            let to = self.dir.join(entry.file_name());
            if !to.exists() {
                fs::rename(entry.path(), &to).map_err(Error::io("take back", &to))?;
            }
        }
        Ok(())
    }

    fn save(&self, record: &R) -> Result<(), Error> {
        crate::fault::point(&format!("store.{}", R::KIND)).map_err(Error::Fault)?;
        let bytes = serde_json::to_vec_pretty(&Envelope {
            schema: R::SCHEMA,
            record,
        })
        .map_err(|error| Error::Encode {
            id: record.id().to_owned(),
            message: error.to_string(),
        })?;
        replace(&self.path(record.id()), &bytes)
    }

    /// Removes a record; one that is gone already is fine.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn delete(&self, id: &str) -> Result<(), Error> {
        let path = self.path(id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("remove", &path)(error))
            }
            _ => sync_dir(&self.dir),
        }
    }
}

fn read_record<R: Record>(path: &Path) -> Result<R, String> {
    parse_record(&fs::read(path).map_err(|error| error.to_string())?)
}

/// A record out of the bytes of its file.
///
/// # Errors
/// Why it is none of this version.
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

/// Writes a file so that after a crash either the old or the new content is there, whole.
///
/// # Errors
/// When any step fails; the old content is then still there.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let tmp = path.with_extension("tmp");
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&tmp)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        fs::rename(&tmp, path)
    };
    if let Err(error) = write() {
        let _ = fs::remove_file(&tmp);
        return Err(Error::io("write", path)(error));
    }
    match path.parent() {
        Some(dir) => sync_dir(dir),
        None => Ok(()),
    }
}

/// Removes what [`replace`] left in a directory when it was cut off: writes that never became a file. For a start,
/// before anything is written there.
///
/// # Errors
/// When the file system refuses.
pub fn discard_unfinished(dir: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(dir).map_err(Error::io("read", dir))? {
        let path = entry.map_err(Error::io("read", dir))?.path();
        if path.extension().is_some_and(|kind| kind == "tmp") {
            fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(())
}

fn sync_dir(dir: &Path) -> Result<(), Error> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(Error::io("sync", dir))
}

/// Makes a directory that others may pass through and not list: on the way to what a
/// container in a user namespace must reach, each below a directory of [`make_private`].
///
/// # Errors
/// When the file system refuses.
pub fn make_passage(dir: &Path) -> Result<(), Error> {
    make_dir(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o711)).map_err(Error::io("open", dir))
}

/// Makes a directory that none but the daemon enters, and, to pass through, this user: the root of a user namespace, who
/// must reach what a container is made from. The ids of pods and containers are no secret on their host.
///
/// # Errors
/// When the file system refuses.
pub fn make_private(dir: &Path, passes: Option<u32>) -> Result<(), Error> {
    make_dir(dir)?;
    let mode = if passes.is_some() { 0o500 } else { 0o700 };
    std::os::unix::fs::chown(dir, passes, None)
        .and_then(|()| fs::set_permissions(dir, fs::Permissions::from_mode(mode)))
        .map_err(Error::io("close", dir))
}

/// Makes a directory and its parents, private to the daemon.
///
/// # Errors
/// When the file system refuses.
pub fn make_dir(dir: &Path) -> Result<(), Error> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(Error::io("make", dir))
}

/// One object's record: memory and disk change together, in the order of the calls.
///
/// Readers take a snapshot and never wait for a write.
pub struct Cell<R> {
    store: Store<R>,
    current: RwLock<Arc<R>>,
    writing: tokio::sync::Mutex<()>,
}

impl<R: Record> Cell<R> {
    /// A record that is on disk already.
    pub fn loaded(store: Store<R>, record: R) -> Self {
        Self {
            store,
            current: RwLock::new(Arc::new(record)),
            writing: tokio::sync::Mutex::new(()),
        }
    }

    /// Writes a new record.
    ///
    /// # Errors
    /// When it cannot be written; nothing is left then.
    pub async fn create(store: Store<R>, record: R) -> Result<Self, Error> {
        let cell = Self::loaded(store, record);
        cell.change(|_| {}).await?;
        Ok(cell)
    }

    pub fn get(&self) -> Arc<R> {
        match self.current.read() {
            Ok(current) => Arc::clone(&current),
            Err(poisoned) => Arc::clone(&poisoned.into_inner()),
        }
    }

    /// Changes the record on disk, then in memory.
    ///
    /// # Errors
    /// When it cannot be written; memory then still holds the old record.
    pub async fn change(&self, edit: impl FnOnce(&mut R)) -> Result<Arc<R>, Error> {
        let turn = self.writing.lock().await;
        let mut record = R::clone(&self.get());
        edit(&mut record);
        let record = Arc::new(record);
        let (store, written) = (self.store.clone(), Arc::clone(&record));
        blocking(move || store.save(&written)).await?;
        self.set(&record);
        drop(turn);
        Ok(record)
    }

    /// Changes memory even where the disk refuses: for facts that hold whether or not they
    /// could be written, such as an exit. The error is the disk's.
    ///
    /// # Errors
    /// When it cannot be written; memory holds the new record all the same.
    pub async fn record_fact(&self, edit: impl FnOnce(&mut R)) -> Result<Arc<R>, Error> {
        let turn = self.writing.lock().await;
        let mut record = R::clone(&self.get());
        edit(&mut record);
        let record = Arc::new(record);
        self.set(&record);
        let (store, written) = (self.store.clone(), Arc::clone(&record));
        let saved = blocking(move || store.save(&written)).await;
        drop(turn);
        saved.map(|()| record)
    }

    /// Changes memory, and the disk if it takes it: for marks without which a removal goes on all the same, as it must
    /// where the disk is full.
    pub async fn note(&self, edit: impl FnOnce(&mut R)) {
        if let Err(error) = self.record_fact(edit).await {
            tracing::warn!(record = %self.get().id(), kind = R::KIND, %error, "not on record");
        }
    }

    /// Removes the record from disk; memory keeps the last one for whoever still holds it.
    ///
    /// # Errors
    /// When the file system refuses.
    pub async fn delete(&self) -> Result<(), Error> {
        let turn = self.writing.lock().await;
        let (store, id) = (self.store.clone(), self.get().id().to_owned());
        let result = blocking(move || store.delete(&id)).await;
        drop(turn);
        result
    }

    fn set(&self, record: &Arc<R>) {
        match self.current.write() {
            Ok(mut current) => *current = Arc::clone(record),
            Err(poisoned) => *poisoned.into_inner() = Arc::clone(record),
        }
    }
}

/// File system work off the async threads. A panic there is carried on here.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Only at shutdown of the runtime, when nobody polls us any more.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Holds a directory for this process; dropped with the process.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes `<dir>/lock` and writes our pid into it.
    ///
    /// # Errors
    /// [`Error::Locked`] with the holder's pid.
    pub fn take(dir: &Path) -> Result<Self, Error> {
        make_dir(dir)?;
        let path = dir.join("lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            return Err(Error::Locked {
                path: dir.to_owned(),
                pid: pid.trim().to_owned(),
            });
        }
        let pid = format!("{}\n", std::process::id());
        // Over the old one, whose place on a full disk is ours; the pid is for people, the lock holds without it.
        let written = file
            .rewind()
            .and_then(|()| file.write_all(pid.as_bytes()))
            .and_then(|()| file.set_len(pid.len() as u64));
        match written {
            Err(error) if error.kind() != io::ErrorKind::StorageFull => {
                Err(Error::io("write", &path)(error))
            }
            _ => Ok(Self { _file: file }),
        }
    }

    /// Who holds `<dir>/lock`, if anybody does.
    pub fn holder(dir: &Path) -> Option<u32> {
        let mut file = File::open(dir.join("lock")).ok()?;
        flock(&file, FlockOperation::NonBlockingLockShared).err()?;
        let mut pid = String::new();
        file.read_to_string(&mut pid).ok()?;
        pid.trim().parse().ok()
    }
}

impl<R> fmt::Debug for Store<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.dir.display())
    }
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

    #[tokio::test]
    async fn a_change_is_on_disk_when_it_returns() {
        let dir = tempfile::tempdir().expect("tempdir");
        let store = Store::open(dir.path().join("stones")).expect("open");
        let cell = Cell::create(store.clone(), stone("a", 1))
            .await
            .expect("create");
        cell.change(|s| s.weight = 7).await.expect("change");
        assert_eq!(store.load().expect("load").0, [stone("a", 7)]);
        cell.delete().await.expect("delete");
        assert!(store.load().expect("load").0.is_empty());
    }

    #[tokio::test]
    async fn a_write_that_fails_changes_nothing() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("stones");
        let store = Store::open(path.clone()).expect("open");
        let cell = Cell::create(store, stone("a", 1)).await.expect("create");
        fs::remove_dir_all(&path).expect("remove");
        cell.change(|s| s.weight = 7)
            .await
            .expect_err("no directory");
        assert_eq!(cell.get().weight, 1);
        cell.record_fact(|s| s.weight = 9)
            .await
            .expect_err("no directory");
        assert_eq!(cell.get().weight, 9);
    }

    #[test]
    fn what_cannot_be_read_stays_where_it_is() {
        let dir = tempfile::tempdir().expect("tempdir");
        let store = Store::<Stone>::open(dir.path().to_owned()).expect("open");
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
        // One that an earlier version had moved away.
        fs::create_dir(dir.path().join("unreadable")).expect("make");
        fs::write(
            dir.path().join("unreadable/back.json"),
            b"{\"schema\":2,\"record\":{\"id\":\"back\",\"weight\":4}}",
        )
        .expect("write");
        let (mut records, mut unreadable) = store.load().expect("load");
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
    fn a_second_daemon_is_told_the_pid_of_the_first() {
        let dir = tempfile::tempdir().expect("tempdir");
        let _held = Lock::take(dir.path()).expect("free");
        let error = Lock::take(dir.path()).expect_err("held").to_string();
        assert!(
            error.ends_with(&format!("pid {}", std::process::id())),
            "{error}"
        );
    }
}

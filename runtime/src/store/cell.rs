//! One object's record in memory and on disk.

use std::sync::Arc;

use parking_lot::RwLock;

use super::{
    error::Error,
    record::{Record, Store},
};
use crate::blocking::blocking;

/// One object's record: memory and disk change together, in the order of the calls.
///
/// Readers take a snapshot and never wait for a write.
pub struct Cell<R> {
    store: Store<R>,
    current: RwLock<Arc<R>>,
    writing: tokio::sync::Mutex<()>,
}

impl<R: Record> Cell<R> {
    /// A record, on disk or not: the next [`change`](Self::change) writes it.
    pub fn of(store: Store<R>, record: R) -> Self {
        Self {
            store,
            current: RwLock::new(Arc::new(record)),
            writing: tokio::sync::Mutex::new(()),
        }
    }

    pub fn get(&self) -> Arc<R> {
        Arc::clone(&self.current.read())
    }

    /// Changes the record on disk, then in memory.
    ///
    /// # Errors
    /// When it cannot be written; memory then still holds the old record.
    pub async fn change(&self, edit: impl FnOnce(&mut R)) -> Result<Arc<R>, Error> {
        let _turn = self.writing.lock().await;
        let record = self.edited(edit);
        self.save(&record).await?;
        *self.current.write() = Arc::clone(&record);
        Ok(record)
    }

    /// Changes memory even where the disk refuses: for facts that hold whether or not they
    /// could be written, such as an exit. The error is the disk's.
    ///
    /// # Errors
    /// When it cannot be written; memory holds the new record all the same.
    pub async fn record_fact(&self, edit: impl FnOnce(&mut R)) -> Result<Arc<R>, Error> {
        let _turn = self.writing.lock().await;
        let record = self.edited(edit);
        *self.current.write() = Arc::clone(&record);
        self.save(&record).await?;
        Ok(record)
    }

    fn edited(&self, edit: impl FnOnce(&mut R)) -> Arc<R> {
        let mut record = R::clone(&self.get());
        edit(&mut record);
        Arc::new(record)
    }

    async fn save(&self, record: &Arc<R>) -> Result<(), Error> {
        let (store, record) = (self.store.clone(), Arc::clone(record));
        blocking(move || store.save(&record)).await
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
        let _turn = self.writing.lock().await;
        let (store, id) = (self.store.clone(), self.get().id().to_owned());
        blocking(move || store.delete(&id)).await
    }
}

#[cfg(test)]
mod tests {
    use super::super::unsynced::Unsynced;
    use super::*;
    use serde::{Deserialize, Serialize};
    use std::fs;

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
        let store = Store::open(dir.path().join("stones"), Unsynced::default()).expect("open");
        let cell = Cell::of(store.clone(), stone("a", 1));
        cell.change(|s| s.weight = 7).await.expect("change");
        assert_eq!(store.load(false).expect("load").0, [stone("a", 7)]);
        cell.delete().await.expect("delete");
        assert!(store.load(false).expect("load").0.is_empty());
    }

    #[tokio::test]
    async fn a_write_that_fails_changes_nothing() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("stones");
        let store = Store::open(path.clone(), Unsynced::default()).expect("open");
        let cell = Cell::of(store, stone("a", 1));
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
}

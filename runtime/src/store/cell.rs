//! One record in memory and on disk.

use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::OwnedMutexGuard;

use super::{
    error::Error,
    record::{Record, Store},
};
use crate::blocking::blocking;

/// One object's record: memory and disk change together, in the order of the calls. A deleted
/// record is never written again. Readers take a snapshot and never wait for a write.
pub struct Cell<R> {
    store: Store<R>,
    current: Arc<RwLock<Arc<R>>>,
    writing: Arc<tokio::sync::Mutex<State>>,
}

/// Whether the record may be written; locked by one change at a time.
#[derive(PartialEq)]
enum State {
    Open,
    Deleted,
}

impl<R: Record> Cell<R> {
    /// Wraps a record, on disk or not: the next [`change`](Self::change) writes it.
    pub fn of(store: Store<R>, record: R) -> Self {
        Self {
            store,
            current: Arc::new(RwLock::new(Arc::new(record))),
            writing: Arc::new(tokio::sync::Mutex::new(State::Open)),
        }
    }

    pub fn get(&self) -> Arc<R> {
        Arc::clone(&self.current.read())
    }

    /// Changes the record on disk, then in memory.
    ///
    /// # Errors
    /// It cannot be written, or was deleted; memory keeps the old record.
    pub async fn change(&self, edit: impl FnOnce(&mut R)) -> Result<Arc<R>, Error> {
        self.change_after(async { Ok(()) }, edit).await
    }

    /// [`Self::change`] after `beside`, a write of related files; no change comes between.
    ///
    /// # Errors
    /// As there, and those of `beside`, which does not run after a deletion.
    #[expect(
        clippy::await_holding_invalid_type,
        reason = "only a step or a task, which nobody drops, has something to write beside"
    )]
    pub async fn change_after<E: From<Error>>(
        &self,
        beside: impl Future<Output = Result<(), E>>,
        edit: impl FnOnce(&mut R),
    ) -> Result<Arc<R>, E> {
        let turn = Arc::clone(&self.writing).lock_owned().await;
        let record = self.edited(edit);
        self.check(&turn)?;
        beside.await?;
        Ok(self.save(turn, record).await?)
    }

    /// Changes memory even if the disk fails: for facts such as an exit, which hold in any case.
    ///
    /// # Errors
    /// It cannot be written, or was deleted; memory has the new record.
    pub async fn record_fact(&self, edit: impl FnOnce(&mut R)) -> Result<Arc<R>, Error> {
        let saved = {
            let turn = Arc::clone(&self.writing).lock_owned().await;
            let record = self.edited(edit);
            *self.current.write() = Arc::clone(&record);
            self.check(&turn)?;
            self.save(turn, record)
        };
        saved.await
    }

    fn edited(&self, edit: impl FnOnce(&mut R)) -> Arc<R> {
        let mut record = R::clone(&self.get());
        edit(&mut record);
        Arc::new(record)
    }

    fn check(&self, turn: &State) -> Result<(), Error> {
        match turn {
            State::Open => Ok(()),
            State::Deleted => Err(Error::Deleted {
                kind: R::KIND,
                id: self.get().id().to_owned(),
            }),
        }
    }

    /// Disk, then memory, in the turn, also where nobody waits any more.
    fn save(
        &self,
        turn: OwnedMutexGuard<State>,
        record: Arc<R>,
    ) -> impl Future<Output = Result<Arc<R>, Error>> + use<R> {
        let (store, current) = (self.store.clone(), Arc::clone(&self.current));
        blocking(move || {
            let _turn = turn;
            store.save(&record)?;
            *current.write() = Arc::clone(&record);
            Ok(record)
        })
    }

    /// Changes memory, and the disk if possible: marks of a removal, which a full disk must not
    /// stop.
    pub async fn note(&self, edit: impl FnOnce(&mut R)) {
        match self.record_fact(edit).await {
            Ok(_) | Err(Error::Deleted { .. }) => {}
            Err(error) => {
                tracing::warn!(record = %self.get().id(), kind = R::KIND, %error, "cannot write the record");
            }
        }
    }

    /// Removes the record from disk for good; memory keeps the last one for owners of the cell.
    ///
    /// # Errors
    /// The file system's; the record can then still be changed.
    pub async fn delete(&self) -> Result<(), Error> {
        self.delete_after(async { Ok(()) }).await
    }

    /// [`Self::delete`] after `beside`; no change comes between.
    ///
    /// # Errors
    /// As there, and those of `beside`.
    #[expect(
        clippy::await_holding_invalid_type,
        reason = "only a step or a task, which nobody drops, has something to write beside"
    )]
    pub async fn delete_after<E: From<Error>>(
        &self,
        beside: impl Future<Output = Result<(), E>>,
    ) -> Result<(), E> {
        let mut turn = Arc::clone(&self.writing).lock_owned().await;
        beside.await?;
        let (store, id) = (self.store.clone(), self.get().id().to_owned());
        blocking(move || {
            store.delete(&id)?;
            *turn = State::Deleted;
            Ok(())
        })
        .await
        .map_err(|error: Error| error.into())
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

    fn refused(message: &str) -> Error {
        Error::Encode {
            id: "a".into(),
            message: message.into(),
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

    #[tokio::test]
    async fn a_deleted_record_stays_deleted() {
        let dir = tempfile::tempdir().expect("tempdir");
        let store = Store::open(dir.path().join("stones"), Unsynced::default()).expect("open");
        let cell = Arc::new(Cell::of(store.clone(), stone("a", 1)));
        cell.change(|_| {}).await.expect("write");
        // A change that waits during the deletion.
        let (waiting, deleted) = (
            Arc::clone(&cell),
            cell.delete_after(async {
                tokio::task::yield_now().await;
                Ok::<(), Error>(())
            }),
        );
        let change = waiting.change(|s| s.weight = 2);
        let (deleted, changed) = tokio::join!(deleted, change);
        deleted.expect("delete");
        let text = changed.expect_err("it was deleted").to_string();
        assert_eq!(text, "stone a: not found");
        let beside = async { Err::<(), _>(refused("written beside a deleted record")) };
        let error = cell
            .change_after(beside, |_| {})
            .await
            .expect_err("deleted");
        assert!(matches!(error, Error::Deleted { .. }), "{error}");
        cell.record_fact(|s| s.weight = 3)
            .await
            .expect_err("deleted");
        assert_eq!(cell.get().weight, 3, "memory has the fact");
        assert!(store.load(false).expect("load").0.is_empty());
        cell.delete().await.expect("again");
    }

    #[tokio::test]
    async fn a_deletion_that_fails_leaves_the_record_open() {
        let dir = tempfile::tempdir().expect("tempdir");
        let store = Store::open(dir.path().join("stones"), Unsynced::default()).expect("open");
        let cell = Cell::of(store.clone(), stone("a", 1));
        cell.change(|_| {}).await.expect("write");
        let beside = async { Err(refused("x")) };
        cell.delete_after(beside).await.expect_err("refused");
        cell.change(|s| s.weight = 2).await.expect("still there");
        assert_eq!(store.load(false).expect("load").0, [stone("a", 2)]);
    }
}

//! Serializes operations per sandbox; those of different sandboxes run concurrently.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// Clones share the table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<HashMap<String, SandboxLock>>>);

type SandboxLock = Arc<tokio::sync::Mutex<()>>;

/// The right to change one sandbox's network, or the wait for it. The last removes the entry.
pub(crate) struct Turn {
    turns: Turns,
    sandbox_id: String,
    own: SandboxLock,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    pub(crate) async fn wait(&self, sandbox_id: &str) -> Turn {
        let id = sandbox_id.to_owned();
        let own = self.0.lock().entry(id).or_default().clone();
        let mut turn = Turn {
            turns: self.clone(),
            sandbox_id: sandbox_id.to_owned(),
            own,
            guard: None,
        };
        turn.guard = Some(turn.own.clone().lock_owned().await);
        turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.guard = None;
        let mut turns = self.turns.0.lock();
        // Table and turn are two owners. Clones are made under the table's lock: more owners wait.
        if Arc::strong_count(&self.own) <= 2 {
            turns.remove(&self.sandbox_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sandbox_has_one_turn_at_a_time_and_leaves_nothing_in_the_table() {
        let turns = Turns::default();
        let first = turns.wait("a").await;
        let other = turns.wait("b").await;
        let second = turns.clone();
        let second = tokio::spawn(async move { second.wait("a").await });
        while Arc::strong_count(&first.own) < 4 {
            tokio::task::yield_now().await;
        }
        assert!(!second.is_finished());
        drop(first);
        let second = second.await.expect("no panic");
        assert_eq!(turns.0.lock().len(), 2);
        drop((second, other));
        assert!(turns.0.lock().is_empty());
    }
}

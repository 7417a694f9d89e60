//! Caches whether a network is ready. A network that was ready remains so for a grace period
//! (CRI-503).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::conflist::ConfList;
use super::error::CniError;
use crate::types::NotReady;

/// How long the programs' answer is cached.
const READY_FOR: Duration = Duration::from_secs(5);
const UNREADY_FOR: Duration = Duration::from_millis(500);
/// "Not available, and existing containers may have limited connectivity" (CRI-516).
const LIMITED: u64 = 51;

/// Callers during a renewal wait for the new answer.
#[derive(Debug)]
pub(super) struct Readiness {
    /// Grace time of a list that was ready: a restarting plugin daemon must not stop a node.
    grace: Duration,
    last: Mutex<Option<Seen>>,
}

#[derive(Debug, Clone)]
struct Seen {
    of: Arc<ConfList>,
    until: Instant,
    answer: Result<(), NotReady>,
    /// When it was last ready.
    well: Option<Instant>,
}

impl Readiness {
    pub(super) fn new(grace: Duration) -> Self {
        Self {
            grace,
            last: Mutex::new(None),
        }
    }

    /// `there` checks for the programs each time. The result of `ask`, their own answer, is cached.
    pub(super) async fn of(
        &self,
        list: &Arc<ConfList>,
        there: impl AsyncFnOnce() -> Result<(), CniError>,
        ask: impl AsyncFnOnce() -> Result<(), CniError>,
    ) -> Result<(), NotReady> {
        let mut last = self.last.lock().await;
        // Kept in place: the caller may leave before the answer.
        let seen = last.clone().filter(|seen| seen.of == *list);
        let (answer, unready_for) = match there().await {
            Err(missing) => (Err(missing), Duration::ZERO),
            Ok(()) => match &seen {
                Some(seen) if Instant::now() < seen.until => return seen.answer.clone(),
                _ => (ask().await, UNREADY_FOR),
            },
        };
        let well = match &answer {
            Ok(()) => Some(Instant::now()),
            Err(_) => seen.and_then(|seen| seen.well),
        };
        let in_grace = well.is_some_and(|well| well.elapsed() < self.grace);
        let (lasts, answer) = match answer {
            Ok(()) => (READY_FOR, Ok(())),
            Err(error) if in_grace => {
                tracing::warn!(network = list.name, %error, "CNI network not ready; within its grace time");
                (unready_for, Ok(()))
            }
            Err(error) => (unready_for, Err(not_ready(&error))),
        };
        *last = Some(Seen {
            of: list.clone(),
            until: Instant::now() + lasts,
            answer: answer.clone(),
            well,
        });
        answer
    }
}

fn not_ready(error: &CniError) -> NotReady {
    let more = match error {
        CniError::Plugin { code: LIMITED, .. } => "; pods that run may have limited connectivity",
        _ => "",
    };
    NotReady::new("NetworkPluginNotReady", format!("{error}{more}"))
}

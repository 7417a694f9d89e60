//! The last answer to whether a network is ready, how long it is good for, and the grace of one that was (CRI-503).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::conflist::ConfList;
use super::error::CniError;
use crate::types::NotReady;

/// An answer of programs is good for this long.
const READY_FOR: Duration = Duration::from_secs(5);
const UNREADY_FOR: Duration = Duration::from_millis(500);
/// "Not available, and existing containers may have limited connectivity" (CRI-516).
const LIMITED: u64 = 51;

/// Whoever asks while the answer is being renewed waits for the new one.
#[derive(Debug)]
pub(super) struct Readiness {
    /// How long a list that was ready may fail before it counts: a daemon behind a plugin that restarts is no reason to
    /// take a node out.
    grace: Duration,
    last: Mutex<Option<Seen>>,
}

#[derive(Debug, Clone)]
struct Seen {
    of: Arc<ConfList>,
    until: Instant,
    answer: Result<(), NotReady>,
    /// When it was last found ready.
    well: Option<Instant>,
}

impl Readiness {
    pub(super) fn new(grace: Duration) -> Self {
        Self {
            grace,
            last: Mutex::new(None),
        }
    }

    /// `there`: whether the programs are, which is looked at each time. What they say, `ask`, is remembered.
    pub(super) async fn of(
        &self,
        list: &Arc<ConfList>,
        there: impl AsyncFnOnce() -> Result<(), CniError>,
        ask: impl AsyncFnOnce() -> Result<(), CniError>,
    ) -> Result<(), NotReady> {
        let mut last = self.last.lock().await;
        // Left in place: whoever asks may go away before the answer.
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
                tracing::warn!(network = list.name, %error, "the network was ready; given some time");
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
    let message = format!("Network plugin returns error: {error}{more}");
    NotReady::new("NetworkPluginNotReady", message)
}

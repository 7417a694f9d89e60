//! The remaining time of a container that is being stopped.

use std::time::Duration;

use tokio::{sync::watch, time::Instant};

/// The deadline of a grace period. A second stop can only shorten it (CRI-132).
pub struct Grace(watch::Sender<Option<Instant>>);

impl Default for Grace {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Grace {
    /// Sets the deadline and replaces any earlier one.
    pub fn begin(&self, grace: Duration) {
        self.0.send_replace(deadline(grace));
    }

    /// Makes the deadline earlier, never later.
    pub fn shorten(&self, grace: Duration) {
        let new = deadline(grace);
        self.0.send_if_modified(|old| match (*old, new) {
            (Some(old_at), Some(new_at)) if old_at <= new_at => false,
            (_, None) => false,
            _ => {
                *old = new;
                true
            }
        });
    }

    /// Returns when the deadline has passed, including later changes of it.
    pub async fn over(&self) {
        let mut deadline = self.0.subscribe();
        loop {
            let at = *deadline.borrow_and_update();
            let passed = async {
                match at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = passed => return,
                _ = deadline.changed() => {}
            }
        }
    }
}

/// `None` for a grace period beyond the range of the clock.
fn deadline(grace: Duration) -> Option<Instant> {
    Instant::now().checked_add(grace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_shorter_stop_brings_the_deadline_nearer_and_a_longer_one_does_not_move_it() {
        let grace = Grace::default();
        let begun = Instant::now();
        grace.begin(Duration::from_secs(60));
        grace.shorten(Duration::from_secs(600));
        let second = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            grace.shorten(Duration::from_secs(2));
        };
        tokio::join!(grace.over(), second);
        assert_eq!(begun.elapsed().as_secs(), 3);
    }
}

//! "Try again later" (code 11, CRI-519): retries such plugins while time is left.

use std::time::Duration;

use tokio::time::Instant;

use super::error::CniError;

const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// Afterwards the caller gets the error; a kubelet retries.
const LONGEST: Duration = Duration::from_secs(15);

/// The growing pauses of one operation.
#[derive(Debug)]
pub(crate) struct Patience {
    pause: Duration,
    deadline: Instant,
}

impl Patience {
    pub(crate) fn until(deadline: Instant) -> Self {
        Self {
            pause: FIRST_PAUSE,
            deadline: deadline.min(Instant::now() + LONGEST),
        }
    }

    /// Waits before a retry if the plugin requests one and time is left. False: the error is final.
    pub(crate) async fn waits_for(&mut self, error: &CniError) -> bool {
        if !error.is_transient() || Instant::now() + self.pause >= self.deadline {
            return false;
        }
        tracing::info!(%error, "retrying a CNI plugin at its request");
        tokio::time::sleep(self.pause).await;
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u64) -> CniError {
        CniError::Plugin {
            kind: "p".into(),
            verb: "ADD",
            code,
            message: "busy".into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_code_11_is_retried_and_never_past_the_deadline() {
        let start = Instant::now();
        let mut patience = Patience::until(start + Duration::from_secs(10));
        assert!(!patience.waits_for(&error(7)).await);
        assert_eq!(start.elapsed(), Duration::ZERO);
        let mut tries = 0;
        while patience.waits_for(&error(11)).await {
            tries += 1;
        }
        assert!(start.elapsed() < Duration::from_secs(10));
        assert_eq!(tries, 5);
        let mut patience = Patience::until(Instant::now() + Duration::from_secs(3600));
        let start = Instant::now();
        while patience.waits_for(&error(11)).await {}
        assert!(start.elapsed() <= LONGEST);
    }
}

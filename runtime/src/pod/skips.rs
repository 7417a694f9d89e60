//! Failing steps of a removal that are skipped on request (`cairn rm --force`), so that every
//! removal can complete. Each skipped step is reported.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::error::Result;

#[derive(Debug, Default)]
pub struct Skips {
    demanded: AtomicBool,
    steps: Mutex<Vec<String>>,
}

impl Skips {
    /// From now on failing steps are recorded and skipped.
    pub fn demand(&self) {
        self.demanded.store(true, Ordering::Release);
    }

    pub fn demanded(&self) -> bool {
        self.demanded.load(Ordering::Acquire)
    }

    /// # Errors
    /// The step's own, unless it is skipped.
    pub fn pass(&self, object: &str, result: Result<()>) -> Result<()> {
        match result {
            Err(error) if self.demanded() => {
                tracing::warn!(object, %error, "skipped, since the removal is forced");
                self.steps.lock().push(format!("{object}: {}", error.text));
                Ok(())
            }
            other => other,
        }
    }

    /// The steps skipped so far.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.steps.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::error::Error, Skips};

    #[test]
    fn a_failed_step_is_an_error_until_somebody_demands_that_it_be_skipped() {
        let skips = Skips::default();
        let failed = || Err(Error::failed("stuck"));
        assert!(skips.pass("network", failed()).is_err());
        assert!(skips.take().is_empty());
        skips.demand();
        assert!(skips.pass("network", failed()).is_ok());
        assert_eq!(skips.take(), ["network: stuck"]);
    }
}

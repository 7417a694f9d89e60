//! The minimum rate of a host over a transfer, and the maximum number of its broken connections.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::Response;

use super::host::{Failure, Host};

/// Bytes per second. A lower rate over a progress timeout counts as no progress: a trickle would
/// block a pull without an end.
const RATE_MIN: u64 = 1024;
/// Tries at one host without a byte, before the next host.
pub(super) const TRIES: u32 = 3;
/// Connections that may break while `FORGIVEN` bytes arrive: 64 KiB each on average.
const BREAKS: u32 = 16;
const FORGIVEN: u64 = 1 << 20;

/// The body of one response.
pub(super) type Chunks = BoxStream<'static, reqwest::Result<Bytes>>;

pub(super) fn chunks(response: Response) -> Chunks {
    response.bytes_stream().boxed()
}

/// The rate of one host in one transfer, over all connections. Only time spent waiting for the host
/// counts: for bytes, for an answer, and before another try.
pub(crate) struct Pace {
    /// The progress timeout, over which the rate is checked.
    stall: Duration,
    /// Time waited, and bytes received, since the last check.
    waited: Duration,
    came: u64,
}

impl Pace {
    pub(crate) fn new(stall: Duration) -> Self {
        Self {
            stall,
            waited: Duration::ZERO,
            came: 0,
        }
    }

    /// Waits for the host and counts the time.
    pub(crate) async fn spend<T>(&mut self, work: impl Future<Output = T>) -> T {
        let from = Instant::now();
        let done = work.await;
        self.waited += from.elapsed();
        done
    }

    /// The next bytes from `host`, or `None` at the end of the response.
    pub(super) async fn next(
        &mut self,
        chunks: &mut Chunks,
        host: &Host,
    ) -> Result<Option<Bytes>, Failure> {
        let next = tokio::time::timeout(self.stall, chunks.next());
        let stalled = || Failure::Transient(host.stalled());
        let Some(chunk) = self.spend(next).await.map_err(|_| stalled())? else {
            return Ok(None);
        };
        if !self.keeps(chunk.as_ref().map_or(0, Bytes::len)) {
            return Err(stalled());
        }
        chunk.map(Some).map_err(|e| host.failure(&e))
    }

    /// Whether the host keeps the rate with these bytes.
    pub(crate) fn keeps(&mut self, bytes: usize) -> bool {
        self.came += bytes as u64;
        if self.waited < self.stall {
            return true;
        }
        let enough = RATE_MIN.saturating_mul(self.stall.as_secs().max(1));
        let kept = self.came >= enough;
        (self.waited, self.came) = (Duration::ZERO, 0);
        kept
    }
}

/// Failures of one host in one transfer.
#[derive(Default)]
pub(super) struct Tries {
    /// Since the last byte.
    pub(super) in_vain: u32,
    /// Since the last megabyte, with the bytes since then.
    breaks: u32,
    came: u64,
}

impl Tries {
    /// Records new bytes of the blob.
    pub(super) fn came(&mut self, bytes: usize) {
        self.in_vain = 0;
        self.came += bytes as u64;
        if self.came >= FORGIVEN {
            *self = Self::default();
        }
    }

    /// Records a failed connection. Returns whether the host may be asked again.
    pub(super) fn failed(&mut self) -> bool {
        self.in_vain += 1;
        self.breaks += 1;
        self.in_vain < TRIES && self.breaks < BREAKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of connections, at most `most`, if each transfers this many bytes.
    fn connections(bytes: usize, most: u32) -> u32 {
        let mut tries = Tries::default();
        for n in 1..most {
            if bytes > 0 {
                tries.came(bytes);
            }
            if !tries.failed() {
                return n;
            }
        }
        most
    }

    #[test]
    fn a_byte_does_not_buy_another_try_and_a_megabyte_buys_all() {
        assert_eq!(connections(0, 1000), TRIES);
        assert_eq!(connections(1, 1000), BREAKS);
        assert_eq!(connections(60_000, 1000), BREAKS);
        assert_eq!(connections(100_000, 1000), 1000, "a link that is bad");
    }

    #[tokio::test(start_paused = true)]
    async fn the_pace_is_kept_over_connections_and_pauses_between_them() {
        let stall = Duration::from_millis(20);
        let mut pace = Pace::new(stall);
        assert!(pace.keeps(1), "it is early yet");
        pace.waited += stall;
        assert!(!pace.keeps(1022), "1,023 bytes in all");
        assert!(pace.keeps(0), "a new window");
        pace.waited += stall;
        assert!(pace.keeps(1024));
    }
}

//! Bytes from a host that must come at some pace.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::Response;

use super::host::{Host, Trouble};

/// Slower than this over a whole progress timeout is no progress: a trickle would hold a pull up
/// for ever. Only time spent waiting for the host counts.
const RATE_MIN: u64 = 1024;

/// The body of an answer.
pub(super) struct Paced {
    chunks: BoxStream<'static, reqwest::Result<Bytes>>,
    /// What counts as no progress, after which time.
    stall: Duration,
    /// Time waited for bytes, and bytes that came, since the rate was looked at last.
    waited: Duration,
    came: u64,
}

impl Paced {
    pub(super) fn new(response: Response, stall: Duration) -> Self {
        Self {
            chunks: response.bytes_stream().boxed(),
            stall,
            waited: Duration::ZERO,
            came: 0,
        }
    }

    /// The next bytes from `host`, or none at the end.
    pub(super) async fn next(&mut self, host: &Host) -> Result<Option<Bytes>, Trouble> {
        let stalled = || Trouble::Transient(host.stalled());
        let from = Instant::now();
        let chunk = tokio::time::timeout(self.stall, self.chunks.next()).await;
        let chunk = chunk.map_err(|_| stalled())?;
        self.waited += from.elapsed();
        self.came += match &chunk {
            Some(Ok(bytes)) => bytes.len() as u64,
            _ => 0,
        };
        if self.waited >= self.stall {
            let enough = RATE_MIN.saturating_mul(self.stall.as_secs().max(1));
            if self.came < enough && chunk.is_some() {
                return Err(stalled());
            }
            (self.waited, self.came) = (Duration::ZERO, 0);
        }
        chunk.transpose().map_err(|e| host.trouble(&e))
    }
}

//! Bytes from a host that must come at some pace.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::Response;

/// Slower than this over a whole progress timeout is no progress: a trickle would hold a pull up
/// for ever. Only time spent waiting for the host counts.
const RATE_MIN: u64 = 1024;

/// The body of an answer.
pub struct Paced {
    chunks: BoxStream<'static, reqwest::Result<Bytes>>,
    /// What counts as no progress, after which time.
    stall: Duration,
    /// Time waited for bytes, and bytes that came, since the rate was looked at last.
    waited: Duration,
    came: u64,
}

/// The host sent nothing, or next to nothing, for too long.
pub struct Stalled;

impl Paced {
    pub fn new(response: Response, stall: Duration) -> Self {
        Self {
            chunks: response.bytes_stream().boxed(),
            stall,
            waited: Duration::ZERO,
            came: 0,
        }
    }

    /// The next bytes, or none at the end.
    pub async fn next(&mut self) -> Result<Option<reqwest::Result<Bytes>>, Stalled> {
        let from = Instant::now();
        let chunk = tokio::time::timeout(self.stall, self.chunks.next()).await;
        let chunk = chunk.map_err(|_| Stalled)?;
        self.waited += from.elapsed();
        self.came += match &chunk {
            Some(Ok(bytes)) => bytes.len() as u64,
            _ => 0,
        };
        if self.waited >= self.stall {
            let enough = RATE_MIN.saturating_mul(self.stall.as_secs().max(1));
            if self.came < enough && chunk.is_some() {
                return Err(Stalled);
            }
            (self.waited, self.came) = (Duration::ZERO, 0);
        }
        Ok(chunk)
    }
}

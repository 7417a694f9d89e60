//! A blob in transfer from a registry: resumed where it stopped, moved to the next host on failure
//! (CRI-405, CRI-406). The reader checks digest and size.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use reqwest::header::{HeaderMap, HeaderValue, RANGE};
use reqwest::{Method, StatusCode};

use super::host::{Failure, Host};
use super::pace::{Chunks, Pace, Tries, chunks};
use super::remote::{Remote, backoff};
use crate::image::digest::Digest;
use crate::image::ingest::{Opened, Source};
use crate::image::manifest::Descriptor;
use crate::image::pull_error::PullError;

struct Body {
    chunks: Chunks,
    /// Bytes received before.
    skip: u64,
}

/// A blob in transfer, over as many connections and hosts as needed.
struct Transfer {
    remote: Arc<Remote>,
    digest: Digest,
    size: Option<u64>,
    offset: u64,
    /// Index of the current host, with its rate and failures over all connections.
    host: usize,
    pace: Pace,
    tries: Tries,
    body: Option<Body>,
}

impl Transfer {
    async fn next(&mut self) -> Result<Option<Bytes>, PullError> {
        loop {
            if self.size.is_some_and(|size| self.offset >= size) {
                return Ok(None);
            }
            let remote = self.remote.clone();
            let Some(host) = remote.hosts.get(self.host) else {
                return Err(PullError::Registry {
                    host: remote.registry.clone(),
                    why: format!("no host serves blob {}", self.digest),
                });
            };
            match self.read(&remote, host).await {
                Ok(chunk) => {
                    let bytes = chunk.as_ref().map_or(0, Bytes::len);
                    self.tries.came(bytes);
                    self.offset += bytes as u64;
                    return Ok(chunk);
                }
                Err(failure) => self.recover(host, failure).await?,
            }
        }
    }

    async fn read(&mut self, remote: &Remote, host: &Host) -> Result<Option<Bytes>, Failure> {
        if !host.endpoint.pull {
            return Err(Failure::Final(host.error("lacks the pull capability")));
        }
        let body = match &mut self.body {
            Some(body) => body,
            none => {
                let opened = remote.open_at(host, &self.digest, self.offset);
                none.insert(self.pace.spend(opened).await?)
            }
        };
        loop {
            let mut chunk = match self.pace.next(&mut body.chunks, host).await? {
                Some(chunk) => chunk,
                None if self.size.is_none() => return Ok(None),
                None => return Err(Failure::Transient(host.error("ended the blob early"))),
            };
            let skip = body.skip.min(chunk.len() as u64);
            body.skip -= skip;
            let _ = chunk.split_to(usize::try_from(skip).unwrap_or(usize::MAX));
            if !chunk.is_empty() {
                return Ok(Some(chunk));
            }
        }
    }

    /// Waits and tries again, or moves to the next host; the last host's error is returned.
    async fn recover(&mut self, host: &Host, failure: Failure) -> Result<(), PullError> {
        self.body = None;
        let (again, error) = match failure {
            Failure::Transient(e) => (self.tries.failed() && !e.is_unreachable(), e),
            Failure::Final(e) => (false, e),
        };
        tracing::debug!(
            host = host.endpoint.host,
            blob = %self.digest,
            again,
            "transfer failed: {error}"
        );
        if again {
            let pause = tokio::time::sleep(backoff(self.tries.in_vain));
            self.pace.spend(pause).await;
            return Ok(());
        }
        self.host += 1;
        self.tries = Tries::default();
        self.pace = Pace::new(self.remote.stall);
        if self.host < self.remote.hosts.len() {
            Ok(())
        } else {
            Err(error)
        }
    }
}

pub(crate) struct RemoteBlobs(pub Arc<Remote>);

impl Source for RemoteBlobs {
    type Error = PullError;

    fn host(&self) -> &str {
        self.0.first_host()
    }

    async fn open(&self, blob: &Descriptor) -> Opened<PullError> {
        let digest = blob
            .digest
            .clone()
            .ok_or_else(|| blob.fault("has no digest"))?;
        let transfer = Transfer {
            remote: self.0.clone(),
            digest,
            size: blob.size,
            offset: 0,
            host: 0,
            pace: Pace::new(self.0.stall),
            tries: Tries::default(),
            body: None,
        };
        let chunks = stream::try_unfold(transfer, async |mut transfer| {
            Ok(transfer.next().await?.map(|chunk| (chunk, transfer)))
        });
        Ok(chunks.boxed())
    }
}

impl Remote {
    /// Opens a blob at `offset`. A host without support for ranges sends all, and the beginning is
    /// skipped.
    async fn open_at(&self, host: &Host, digest: &Digest, offset: u64) -> Result<Body, Failure> {
        let mut headers = HeaderMap::new();
        if offset > 0 {
            // A number is always a valid header.
            let range = HeaderValue::from_str(&format!("bytes={offset}-"));
            headers.extend(range.ok().map(|range| (RANGE, range)));
        }
        let path = format!("blobs/{digest}");
        let response = self.send(host, &Method::GET, &path, &headers).await?;
        let skip = if response.status() == StatusCode::PARTIAL_CONTENT {
            0
        } else {
            offset
        };
        let chunks = chunks(response);
        Ok(Body { chunks, skip })
    }
}

//! Copies bytes between a client and a process, or a port.

use std::time::Duration;

use bytes::BytesMut;
use tokio::{
    io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    link::{Input, Output, PIECE},
    wire::resize::{Decoder, Size},
};
use crate::monitor::StreamOut;

/// How long a quiet stream of an ended process is read: a child in the background may keep it open.
const DRAIN: Duration = Duration::from_secs(2);
/// The most bytes read of it then. All output of the process itself is in a pipe, which holds less.
const DRAIN_BYTES: usize = 1 << 20;

/// Copies until the client ends its side, or the other end accepts no further data. Dropping `to`
/// must end its direction, as it does for OwnedWriteHalf and StreamIn.
pub(super) async fn feed(mut from: Input, mut to: impl AsyncWrite + Unpin) {
    while let Some(bytes) = from.next().await {
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Copies to the end of the stream. Reads nothing while the client is slow. Without a client it
/// reads all the same, so that the process does not block.
pub(super) async fn show(mut from: StreamOut, to: Option<&Output>, ended: &CancellationToken) {
    let mut quiet = DRAIN;
    let mut left = DRAIN_BYTES;
    loop {
        let mut piece = BytesMut::with_capacity(PIECE);
        let reading = from.read_buf(&mut piece);
        tokio::pin!(reading);
        let read = tokio::select! {
            biased;
            read = &mut reading => read,
            () = ended.cancelled() => {
                let began = Instant::now();
                let Ok(read) = timeout(quiet, reading).await else { return };
                quiet = quiet.saturating_sub(began.elapsed());
                read
            }
        };
        let Ok(n @ 1..) = read else { return };
        if ended.is_cancelled() {
            left = left.saturating_sub(n);
            if left == 0 {
                return;
            }
        }
        if let Some(to) = to {
            let _ = to.send(piece.freeze()).await; // the process is read on in any case
        }
    }
}

/// Applies terminal sizes as they come.
pub(super) async fn resize<F: Future<Output = ()>>(mut from: Input, apply: impl Fn(Size) -> F) {
    let mut decoder = Decoder::default();
    while let Some(bytes) = from.next().await {
        match decoder.push(&bytes) {
            Ok(Some(size)) => apply(size).await,
            Ok(None) => {}
            Err(_) => {
                tracing::debug!("a client sent an invalid terminal size");
                return;
            }
        }
    }
}

/// Runs the work, if any.
pub(super) async fn optional<F: Future<Output = ()>>(work: Option<F>) {
    if let Some(work) = work {
        work.await;
    }
}

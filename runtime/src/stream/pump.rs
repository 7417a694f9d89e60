//! Bytes between a client and a process, or a port.

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

/// How long a stream of a process that has ended is read while nothing comes: a child in the
/// background may hold it.
const DRAIN: Duration = Duration::from_secs(2);
/// What is read of it then, at most. All that the process itself wrote waits in a pipe, which
/// holds less.
const DRAIN_BYTES: usize = 1 << 20;

/// Until the client ends its side, or the other end does not take any more. The drop of `to`
/// must end its direction, as that of OwnedWriteHalf and StreamIn does.
pub(super) async fn feed(mut from: Input, mut to: impl AsyncWrite + Unpin) {
    while let Some(bytes) = from.next().await {
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Until the end of the stream. While the client is slow, nothing is read. Without a client for
/// it, it is read all the same, so that the process does not block.
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
            // The client may have reset the stream or disconnected.
            let _ = to.send(piece.freeze()).await;
        }
    }
}

/// Applies sizes of the terminal as they come.
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

/// Runs what there is.
pub(super) async fn optional<F: Future<Output = ()>>(work: Option<F>) {
    if let Some(work) = work {
        work.await;
    }
}

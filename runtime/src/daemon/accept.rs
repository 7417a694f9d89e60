//! Clients of a Unix socket, one after the other. An error of accept ends nothing and makes nothing spin: where the table of
//! descriptors is full, the next try waits a moment.

use std::{io, time::Duration};

use futures_util::stream::{Stream, unfold};
use tokio::net::{UnixListener, UnixStream};

const PAUSE: Duration = Duration::from_millis(100);

pub(super) fn clients(listener: UnixListener) -> impl Stream<Item = io::Result<UnixStream>> {
    unfold(listener, async |listener| {
        loop {
            match listener.accept().await {
                Ok((client, _)) => return Some((Ok(client), listener)),
                Err(error) => {
                    tracing::warn!(%error, "CRI socket: accept; trying again in {PAUSE:?}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    })
}

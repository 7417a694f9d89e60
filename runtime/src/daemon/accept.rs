//! Clients of a Unix socket, one after the other. An error of accept ends nothing and makes nothing spin: where the table of
//! descriptors is full, the next try waits a moment.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    net::{UnixListener, UnixStream},
    time::Sleep,
};
use tokio_stream::Stream;

const PAUSE: Duration = Duration::from_millis(100);

pub struct Accepting {
    listener: UnixListener,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Accepting {
    pub fn new(listener: UnixListener) -> Self {
        Self {
            listener,
            pause: None,
        }
    }
}

impl Stream for Accepting {
    type Item = io::Result<UnixStream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(cx)) {
                Ok((client, _)) => return Poll::Ready(Some(Ok(client))),
                Err(error) => {
                    tracing::warn!(%error, "CRI socket: accept; trying again in {PAUSE:?}");
                    self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
                }
            }
        }
    }
}

//! One connection of the plugin, and its connection to the runtime.

use std::{collections::VecDeque, io::ErrorKind, path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::{Instant, sleep, sleep_until, timeout},
};

use nri::wire::frame::{Message, Reader};

use super::watch::{Fate, LinkState, Shared};
use crate::rules::Rule;

/// Delay of an UpdateContainers from inside a handler, after which the handler is assumed to wait
/// for it.
const HOLD: Duration = Duration::from_millis(500);
/// Time for which a plugin's messages are read after the runtime has closed its connection.
const LAST_WORDS: Duration = Duration::from_millis(200);
const PIECE: usize = 16 << 10;

/// Serves a link until either side closes its connection, or sends an invalid frame.
pub(super) async fn run(shared: Arc<Shared>, plugin: UnixStream, runtime: PathBuf) {
    let Ok(runtime) = UnixStream::connect(runtime).await else {
        return;
    };
    let mut link = Link {
        shared,
        state: LinkState::default(),
        plugin,
        runtime,
        of_plugin: Reader::default(),
        of_runtime: Reader::default(),
        held: VecDeque::new(),
    };
    // An error is the end of one of the sockets.
    let _ = link.relay().await;
}

struct Link {
    shared: Arc<Shared>,
    state: LinkState,
    plugin: UnixStream,
    runtime: UnixStream,
    of_plugin: Reader,
    of_runtime: Reader,
    /// Delayed messages for the runtime, with their times.
    held: VecDeque<(Instant, Message)>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.seen.lock().ended(&self.state);
    }
}

impl Link {
    async fn relay(&mut self) -> std::io::Result<()> {
        let mut from_plugin = vec![0; PIECE];
        let mut from_runtime = vec![0; PIECE];
        loop {
            let due = self.held.front().map(|(due, _)| *due);
            tokio::select! {
                read = self.plugin.read(&mut from_plugin) => match read? {
                    0 => return Ok(()),
                    n => self.take_from_plugin(&from_plugin[..n]).await?,
                },
                read = self.runtime.read(&mut from_runtime) => match read? {
                    0 => {
                        // Without a runtime the remaining messages are only recorded.
                        let _ = timeout(LAST_WORDS, self.hear_out(&mut from_plugin)).await;
                        return Ok(());
                    }
                    n => self.take_from_runtime(&from_runtime[..n]).await?,
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    // Messages that have arrived already were in time.
                    match self.plugin.try_read(&mut from_plugin) {
                        Ok(0) => return Ok(()),
                        Ok(n) => self.take_from_plugin(&from_plugin[..n]).await?,
                        Err(e) if e.kind() == ErrorKind::WouldBlock => self.give_up_holding().await?,
                        Err(e) => return Err(e),
                    }
                }
            }
        }
    }

    async fn hear_out(&mut self, piece: &mut [u8]) -> std::io::Result<()> {
        loop {
            match self.plugin.read(piece).await? {
                0 => return Ok(()),
                n => {
                    for message in self.messages_of_plugin(&piece[..n])? {
                        self.check(&message);
                    }
                }
            }
        }
    }

    fn messages_of_plugin(&mut self, bytes: &[u8]) -> std::io::Result<Vec<Message>> {
        self.of_plugin.push(bytes).map_err(|e| {
            self.shared.seen.lock().found(Rule::Garbage, e.to_string());
            std::io::Error::other(e)
        })
    }

    fn check(&mut self, message: &Message) -> bool {
        let mut seen = self.shared.seen.lock();
        seen.plugin_says(&mut self.state, message, Instant::now())
    }

    async fn take_from_plugin(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        for message in self.messages_of_plugin(bytes)? {
            if self.check(&message) {
                self.held.push_back((Instant::now() + HOLD, message));
            } else {
                self.runtime.write_all(&message.frames()).await?;
            }
        }
        if !self.state.is_asked() {
            // Sent beside a handler that did not wait for it.
            for (_, message) in std::mem::take(&mut self.held) {
                self.runtime.write_all(&message.frames()).await?;
            }
        }
        Ok(())
    }

    async fn give_up_holding(&mut self) -> std::io::Result<()> {
        if let Some((_, message)) = self.held.pop_front() {
            let what = format!(
                "UpdateContainers while {} has no answer, and no answer for {HOLD:?} after",
                self.state.asked()
            );
            self.shared.seen.lock().found(Rule::UpdateInCallback, what);
            self.runtime.write_all(&message.frames()).await?;
        }
        Ok(())
    }

    async fn take_from_runtime(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let messages = self.of_runtime.push(bytes);
        for message in messages.map_err(std::io::Error::other)? {
            let (fate, slow) = {
                let manner = self.shared.manner.lock();
                let mut seen = self.shared.seen.lock();
                let now = Instant::now() + manner.slow;
                let fate = seen.runtime_says(&mut self.state, &manner, message, now);
                (fate, manner.slow)
            };
            if !slow.is_zero() {
                sleep(slow).await;
            }
            match fate {
                Fate::Pass(message) => self.plugin.write_all(&message.frames()).await?,
                Fate::Answer(message) => self.runtime.write_all(&message.frames()).await?,
            }
        }
        Ok(())
    }
}

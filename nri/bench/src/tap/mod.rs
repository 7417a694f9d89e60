//! The tap on the wire: between the plugin under test and the runtime, it sees every message in
//! both directions, and changes a few.
//!
//! ```text
//!   plugin ◄──► the plugin's socket ── Link ── the runtime's own socket ◄──► FakeRuntime
//! ```
//!
//! It gives a launched plugin its configuration, speaks as an older runtime, delays messages, cuts
//! connections, and records plugin behaviour that no runtime can see.

mod link;
mod watch;

use std::{
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    net::{UnixListener, UnixStream},
    task::JoinSet,
    time::timeout,
};

use crate::rules::Finding;

use watch::Shared;
pub(crate) use watch::{Manner, Seen};

/// Time limit for disconnected plugins to close.
const DRAIN: Duration = Duration::from_secs(5);

/// The tap; dropping it cuts its links.
pub(crate) struct Tap {
    shared: Arc<Shared>,
    runtime: PathBuf,
    socket: PathBuf,
    links: Arc<Mutex<JoinSet<()>>>,
    /// Accepts connections; aborting it stops that.
    listening: Option<tokio::task::JoinHandle<()>>,
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.cut();
    }
}

impl Tap {
    /// In front of the runtime at `runtime`; plugins connect to `socket`.
    pub(crate) fn new(runtime: &Path, socket: &Path, manner: Manner) -> Self {
        let shared = Shared {
            manner: Mutex::new(manner),
            seen: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
            runtime: runtime.to_owned(),
            socket: socket.to_owned(),
            links: Arc::default(),
            listening: None,
        }
    }

    /// Accepts connections from now on.
    pub(crate) fn listen(&mut self) -> io::Result<()> {
        let listener = UnixListener::bind(&self.socket).map_err(|e| {
            let what = format!("socket {}: {e}", self.socket.display());
            io::Error::new(e.kind(), what)
        })?;
        let (shared, links) = (self.shared.clone(), self.links.clone());
        let runtime = self.runtime.clone();
        self.listening = Some(tokio::spawn(async move {
            while let Ok((plugin, _)) = listener.accept().await {
                let pid = plugin.peer_cred().ok().and_then(|cred| cred.pid());
                shared.seen.lock().pid = pid.and_then(|pid| u32::try_from(pid).ok());
                let link = link::run(shared.clone(), plugin, runtime.clone());
                links.lock().spawn(link);
            }
        }));
        Ok(())
    }

    /// One end of an open connection, for a plugin that is launched.
    pub(crate) fn connection(&self) -> io::Result<OwnedFd> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let plugin = UnixStream::from_std(ours)?;
        let link = link::run(self.shared.clone(), plugin, self.runtime.clone());
        self.links.lock().spawn(link);
        Ok(theirs.into())
    }

    /// Ends every connection without Shutdown, and accepts no new ones until [`Self::listen`].
    pub(crate) fn cut(&mut self) {
        self.close();
        *self.links.lock() = JoinSet::new();
    }

    /// Waits until the runtime has disconnected every plugin, with a moment for late messages.
    pub(crate) async fn drained(&mut self) {
        self.close();
        let mut links = std::mem::take(&mut *self.links.lock());
        // A plugin that does not read is cut off.
        let _ = timeout(DRAIN, async { while links.join_next().await.is_some() {} }).await;
    }

    fn close(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.abort();
            let _ = std::fs::remove_file(&self.socket);
        }
    }

    pub(crate) fn slow_down(&self, by: Duration) {
        self.shared.manner.lock().slow = by;
    }

    /// Findings since the last call.
    pub(crate) fn take_findings(&self) -> Vec<Finding> {
        std::mem::take(&mut self.shared.seen.lock().findings)
    }

    /// The longest answer to each method since the last call.
    pub(crate) fn take_longest(&self) -> BTreeMap<String, Duration> {
        std::mem::take(&mut self.shared.seen.lock().longest)
    }

    /// The records of the wire.
    pub(crate) fn seen<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.shared.seen.lock())
    }
}

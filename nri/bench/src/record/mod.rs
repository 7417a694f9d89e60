//! A proxy in front of a runtime's socket, which records the traffic unchanged.
//!
//! ```text
//!   plugin ◄──► --listen ── Proxy ── --nri ◄──► runtime
//!                            └─► FILE
//! ```

#[cfg(test)]
mod every_message;

use std::{
    fmt::Write as _,
    fs::Permissions,
    io,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use nri_record::{About, RecordedConnection, Recorder, Side, Summary, Values};
use rustix::{fs::Mode, process::umask};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinSet,
};

const PIECE: usize = 64 << 10;
/// Time limit to complete the file at the end.
const FLUSH: Duration = Duration::from_secs(10);
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

/// The plugins' socket and the destination of their traffic; dropping it removes the socket.
pub(crate) struct Proxy {
    listener: UnixListener,
    listen: PathBuf,
    runtime: PathBuf,
    recorder: Recorder,
    connections: JoinSet<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // An error means that it was removed already.
        let _ = std::fs::remove_file(&self.listen);
    }
}

impl Proxy {
    /// Listens, and creates the file.
    pub(crate) fn new(
        runtime: &Path,
        listen: &Path,
        file: &Path,
        env: Values,
    ) -> Result<Self, String> {
        let recorder = recorder(file, env).map_err(|e| format!("{}: {e}", file.display()))?;
        let listener = bind(listen).map_err(|e| format!("socket {}: {e}", listen.display()))?;
        Ok(Self {
            listener,
            listen: listen.to_owned(),
            runtime: runtime.to_owned(),
            recorder,
            connections: JoinSet::new(),
        })
    }

    /// Accepts plugins until it is dropped.
    pub(crate) async fn serve(&mut self) {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((plugin, _)) => {
                        let seen = Arc::new(self.recorder.connection());
                        let runtime = self.runtime.clone();
                        self.connections.spawn(relay(plugin, runtime, seen));
                    }
                    Err(e) => {
                        eprintln!("nri-bench: accept: {e}; trying again");
                        tokio::time::sleep(PAUSE).await;
                    }
                },
                Some(_) = self.connections.join_next() => {}
            }
        }
    }

    /// Closes every connection and completes the file.
    pub(crate) async fn end(mut self) -> Summary {
        self.connections.shutdown().await;
        self.recorder.finish(FLUSH)
    }
}

fn recorder(file: &Path, env: Values) -> io::Result<Recorder> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
    let about = About {
        recorder: format!("nri-bench {}", env!("CARGO_PKG_VERSION")),
        runtime: None,
        env,
        now: Duration::new(seconds, nanos),
    };
    let name = file.display().to_string();
    Recorder::create(file, about, move |why| {
        eprintln!("nri-bench: {name}: {why}: the recording ends here, connections go on");
    })
}

/// For this user only; replaces a socket without a server.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    // Created without permissions, so that it is never open before its mode is set.
    let usual = umask(Mode::RWXU | Mode::RWXG | Mode::RWXO);
    let listener = UnixListener::bind(path);
    umask(usual);
    let listener = listener?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves one connection until it ends.
async fn relay(plugin: UnixStream, runtime: PathBuf, seen: Arc<RecordedConnection>) {
    let runtime = match UnixStream::connect(&runtime).await {
        Ok(runtime) => runtime,
        Err(e) => {
            let why = format!("the runtime does not answer: {e}");
            eprintln!("nri-bench: socket {}: {why}", runtime.display());
            return seen.closed(None, &why);
        }
    };
    let (from_plugin, to_plugin) = plugin.into_split();
    let (from_runtime, to_runtime) = runtime.into_split();
    let passed = tokio::try_join!(
        pass(from_plugin, to_runtime, Side::Plugin, &seen),
        pass(from_runtime, to_plugin, Side::Runtime, &seen),
    );
    if let Err(e) = passed {
        seen.closed(None, &e.to_string());
    }
}

/// Forwards the bytes of one side, and its end.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    side: Side,
    seen: &RecordedConnection,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let read = from.read(&mut piece).await?;
        if read == 0 {
            seen.closed(Some(side), "");
            // A closed peer needs no end.
            let _ = to.shutdown().await;
            return Ok(());
        }
        seen.saw(side, &piece[..read]);
        to.write_all(&piece[..read]).await?;
    }
}

/// A one-line summary.
pub(crate) fn reported(summary: &Summary, file: &Path) -> String {
    let (file, connections, lines) = (file.display(), summary.connections, summary.lines);
    let mut text = format!("{file}: {connections} connections, {lines} lines");
    if summary.dropped > 0 {
        let dropped = summary.dropped;
        let _ = write!(text, ", {dropped} dropped: the disk was too slow");
    }
    if summary.incomplete {
        text.push_str("; it is not whole");
    }
    text + "\n"
}

//! The daemon's side of the unpack helper: started for one stream, fed with it, and awaited.
//!
//! A dropped future kills the helper.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::BoxStream;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};

use super::error::Error;
use super::images::Shared;

/// A helper's last words.
const STDERR_MAX: u64 = 4096;

/// End of a helper.
pub(super) struct Ended {
    /// Whether it read its input to the end.
    pub(super) took_all: bool,
    status: ExitStatus,
    words: Vec<u8>,
}

impl Ended {
    /// Why it failed, if it did.
    pub(super) fn fault(&self) -> Option<String> {
        if self.status.success() {
            let why = "the helper ended before its input did";
            return (!self.took_all).then(|| why.to_owned());
        }
        Some(match String::from_utf8_lossy(&self.words).trim() {
            "" => self.status.to_string(),
            words => words.to_owned(),
        })
    }
}

impl Shared {
    /// Runs the helper over a stream. It works in `dir` and reports into `said`; `each` is given every
    /// piece before the helper is, `stalled` makes the error of a helper that takes none, or does not end.
    pub(super) async fn run_helper<E: From<Error>>(
        &self,
        (kind, dir, limits): (&str, &Path, &[u64]),
        said: &File,
        stream: BoxStream<'static, Result<Bytes, E>>,
        each: impl FnMut(&Bytes) -> Result<(), E>,
        stalled: impl Fn() -> Error,
    ) -> Result<Ended, E> {
        let mut args = vec![OsString::from(kind), dir.into()];
        args.extend(limits.iter().map(|limit| limit.to_string().into()));
        let failed = |step| Error::io("unpack helper", step, dir);
        let mut child = self.spawn(&args, said).map_err(failed("start"))?;
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        let feed = pin!(self.feed(stdin, stream, each, &stalled));
        let words = pin!(read_some(stderr, STDERR_MAX));
        let patience = self.options.progress_timeout;
        let (took_all, words) = match select(feed, words).await {
            // The stream's own fault comes first: the helper only saw it end too soon.
            Either::Left((fed, words)) => {
                let took_all = fed?;
                let words = tokio::time::timeout(patience, words).await;
                (took_all, words.map_err(|_| stalled())?)
            }
            // It has ended: nobody waits for the rest of the stream.
            Either::Right((words, _)) => (false, words),
        };
        // It may have closed its end and go on.
        let status = tokio::time::timeout(patience, child.wait()).await;
        let status = status.map_err(|_| stalled())?.map_err(failed("await"))?;
        Ok(Ended {
            took_all,
            status,
            words,
        })
    }

    fn spawn(&self, own: &[OsString], said: &File) -> std::io::Result<Child> {
        let helper = self.options.unpack_helper.split_first();
        let (program, args) = helper.ok_or(std::io::ErrorKind::NotFound)?;
        Command::new(program)
            .args(args)
            .args(own)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(said.try_clone()?)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    }

    /// Passes the stream on. False if the helper closed its end: then its exit shows why.
    async fn feed<E: From<Error>>(
        &self,
        stdin: Option<ChildStdin>,
        mut stream: BoxStream<'static, Result<Bytes, E>>,
        mut each: impl FnMut(&Bytes) -> Result<(), E>,
        stalled: impl Fn() -> Error,
    ) -> Result<bool, E> {
        let Some(mut stdin) = stdin else {
            return Ok(false);
        };
        while let Some(chunk) = stream.next().await {
            let chunk = chunk?;
            each(&chunk)?;
            let taken = stdin.write_all(&chunk);
            match tokio::time::timeout(self.options.progress_timeout, taken).await {
                Err(_) => return Err(stalled().into()),
                Ok(Err(_)) => return Ok(false),
                Ok(Ok(())) => {}
            }
        }
        Ok(true)
    }
}

/// What a pipe gives, up to a bound; more is left unread, and the helper ends on the closed pipe.
async fn read_some(pipe: Option<impl AsyncRead + Unpin>, max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // What was read before an error is all there is to judge by.
        let _ = pipe.take(max).read_to_end(&mut bytes).await;
    }
    bytes
}

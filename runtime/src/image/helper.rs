//! The daemon's side of the unpack helper: starts it for one stream, feeds it and awaits it. A
//! dropped future kills the helper.

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

/// The most bytes of a helper's error text.
const STDERR_MAX: u64 = 4096;

/// The task of a helper.
pub(super) struct Task<'a> {
    /// The helper's first argument.
    pub(super) kind: &'static str,
    pub(super) dir: &'a Path,
    /// Its last arguments.
    pub(super) limits: &'a [u64],
}

/// Result of a helper's run.
pub(super) struct Ended {
    /// Whether it read its input to the end.
    pub(super) took_all: bool,
    status: ExitStatus,
    message: Vec<u8>,
}

impl Ended {
    /// The reason of its failure, if it failed.
    pub(super) fn fault(&self) -> Option<String> {
        if self.status.success() {
            let why = "the helper ended before its input did";
            return (!self.took_all).then(|| why.to_owned());
        }
        Some(match String::from_utf8_lossy(&self.message).trim() {
            "" => self.status.to_string(),
            message => message.to_owned(),
        })
    }
}

impl Shared {
    /// Runs the helper over a stream. It works in the task's `dir` and writes to `report`; `each`
    /// gets every piece first; `stalled` makes the error of a helper that takes none, or does not
    /// end.
    pub(super) async fn run_helper<E: From<Error>>(
        &self,
        task: Task<'_>,
        report: &File,
        stream: BoxStream<'static, Result<Bytes, E>>,
        each: impl FnMut(&Bytes) -> Result<(), E>,
        stalled: impl Fn() -> Error,
    ) -> Result<Ended, E> {
        let Task { kind, dir, limits } = task;
        let mut args = vec![OsString::from(kind), dir.into()];
        args.extend(limits.iter().map(|limit| limit.to_string().into()));
        #[cfg(any(test, feature = "seeded"))]
        if crate::seeded::draw(1).is_some() {
            return work_here(args, report, stream, each).await;
        }
        let failed = |step| Error::io("unpack helper", step, dir);
        let mut child = self.spawn(&args, report).map_err(failed("start"))?;
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        let feed = pin!(self.feed(stdin, stream, each, &stalled));
        let message = pin!(read_some(stderr, STDERR_MAX));
        let timeout = self.options.progress_timeout;
        let (took_all, message) = match select(feed, message).await {
            // The stream's own error comes first: the helper only saw an early end.
            Either::Left((fed, message)) => {
                let took_all = fed?;
                let message = tokio::time::timeout(timeout, message).await;
                (took_all, message.map_err(|_| stalled())?)
            }
            // The helper has ended: the rest of the stream is not needed.
            Either::Right((message, _)) => (false, message),
        };
        // It may have closed its end and still run.
        let status = tokio::time::timeout(timeout, child.wait()).await;
        let status = status.map_err(|_| stalled())?.map_err(failed("await"))?;
        Ok(Ended {
            took_all,
            status,
            message,
        })
    }

    fn spawn(&self, own: &[OsString], report: &File) -> std::io::Result<Child> {
        let helper = self.options.unpack_helper.split_first();
        let (program, args) = helper.ok_or(std::io::ErrorKind::NotFound)?;
        Command::new(program)
            .args(args)
            .args(own)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(report.try_clone()?)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    }

    /// Passes the stream on. False if the helper closed its end; its exit status shows why.
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

/// The helper's work in this process, in a seeded run.
#[cfg(any(test, feature = "seeded"))]
async fn work_here<E: From<Error>>(
    args: Vec<OsString>,
    report: &File,
    mut stream: BoxStream<'static, Result<Bytes, E>>,
    mut each: impl FnMut(&Bytes) -> Result<(), E>,
) -> Result<Ended, E> {
    use std::{io::Write as _, os::unix::process::ExitStatusExt as _};
    let failed = Error::io("unpack helper", "copy the report", Path::new("report"));
    let mut report = report.try_clone().map_err(failed)?;
    let mut input = Vec::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk?;
        each(&chunk)?;
        input.extend_from_slice(&chunk);
    }
    let work =
        move || super::unpack::work_here(args, &input).and_then(|text| report.write_all(&text));
    let done = super::error::blocking(move || Ok(work())).await?;
    Ok(Ended {
        took_all: true,
        status: ExitStatus::from_raw(i32::from(done.is_err()) << 8),
        message: done
            .err()
            .map(|error| error.to_string().into_bytes())
            .unwrap_or_default(),
    })
}

/// Reads a pipe up to a bound. The rest is left unread, and the helper ends on the closed pipe.
async fn read_some(pipe: Option<impl AsyncRead + Unpin>, max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // After an error the bytes so far are the message.
        let _ = pipe.take(max).read_to_end(&mut bytes).await;
    }
    bytes
}

//! One exec: a process beside the container's, and its client.
//!
//! When the client leaves, the streams of the process are closed (a terminal hangs up), and after
//! [`GRACE`] it is killed with all that it started.

use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    limits::{Limits, cut},
    pump::{feed, optional, resize, show},
    remote::{Remote, Wanted},
    wire::status::Outcome,
};
use crate::{
    monitor::{ExecSession, ExecSpec, Process},
    one_line::one_line,
    pod::state::Container,
};

/// The time left to a process without a client.
const GRACE: Duration = Duration::from_secs(2);

pub(super) async fn run(
    mut remote: Remote,
    container: &Container,
    process: Process,
    wanted: Wanted,
    limits: &Limits,
) {
    let outcome = match start(container, process, wanted).await {
        Ok(session) => serve(&mut remote, session, limits).await,
        Err(why) => Outcome::Failed(one_line(&why).into_owned()),
    };
    remote.finish(&outcome, limits.idle).await;
}

async fn start(
    container: &Container,
    process: Process,
    wanted: Wanted,
) -> Result<ExecSession, String> {
    let monitor = container
        .running_monitor()
        .await
        .map_err(|error| error.to_string())?;
    let spec = ExecSpec {
        process,
        tty: wanted.tty,
        stdin: wanted.stdin,
        window: None,
        timeout: None,
    };
    monitor.exec(spec).await.map_err(|error| error.to_string())
}

async fn serve(remote: &mut Remote, mut session: ExecSession, limits: &Limits) -> Outcome {
    let ended = CancellationToken::new();
    let (stdin, sizes) = (remote.stdin.take(), remote.resize.take());
    let (to_stdin, terminal) = (session.stdin.take(), session.pty.clone());
    let (stdout, stderr) = (session.stdout.take(), session.stderr.take());
    let outcome = {
        let feeding = optional(stdin.zip(to_stdin).map(|(from, to)| feed(from, to)));
        let resizing = optional(sizes.zip(terminal).map(|(from, pty)| {
            resize(from, move |size| {
                if let Err(error) = pty.resize(size.width, size.height) {
                    tracing::debug!(%error, "cannot resize the terminal");
                }
                std::future::ready(())
            })
        }));
        let showing = async {
            let out = stdout.map(|from| show(from, remote.stdout.as_ref(), &ended));
            let err = stderr.map(|from| show(from, remote.stderr.as_ref(), &ended));
            tokio::join!(optional(out), optional(err));
        };
        let ending = async {
            let end = session.end().await;
            ended.cancel();
            end
        };
        let serving = async { tokio::join!(ending, showing).0 };
        let inputs = async { tokio::join!(feeding, resizing) };
        tokio::pin!(inputs);
        tokio::select! {
            end = async { tokio::select! {
                end = serving => end,
                never = async { inputs.await; std::future::pending().await } => never,
            } } => Ok(end),
            why = cut(&remote.link, limits) => Err(why),
        }
    };
    match outcome {
        Ok(Ok(end)) => Outcome::of_code(end.code),
        Ok(Err(error)) => Outcome::Failed(error.to_string()),
        Err(why) => {
            session.pty = None;
            abandon(session, ended.is_cancelled()).await;
            Outcome::Failed(why.into())
        }
    }
}

/// Ends a session whose streams are closed.
async fn abandon(mut session: ExecSession, ended: bool) {
    if ended || timeout(GRACE, session.end()).await.is_ok() {
        return;
    }
    if let Err(error) = session.kill().await {
        tracing::debug!(%error, "cannot kill an exec after its client has left");
    }
}

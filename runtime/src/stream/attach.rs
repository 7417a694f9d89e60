//! One attachment: a client of a container's own streams, from now on. The container never waits
//! for it.

use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    limits::{Limits, cut},
    pump::{feed, optional, resize, show},
    remote::{Remote, Wanted},
    wire::{resize::Size, status::Outcome},
};
use crate::{
    monitor::{AttachSession, AttachSpec, Monitor},
    pod::state::Container,
};

/// The longest wait between the end of a container's output and its exit.
const EXIT: Duration = Duration::from_secs(3);

pub(super) async fn run(
    mut remote: Remote,
    container: &Container,
    wanted: Wanted,
    limits: &Limits,
) {
    let outcome = match container.running_monitor().await {
        Ok(monitor) => join(&mut remote, &monitor, wanted, limits).await,
        Err(error) => Outcome::Failed(error.to_string()),
    };
    remote.finish(&outcome, limits.idle).await;
}

/// Attaches twice, so that stdin may end alone: with `stdin_once` that ends the container's.
async fn join(remote: &mut Remote, monitor: &Monitor, wanted: Wanted, limits: &Limits) -> Outcome {
    let spec = AttachSpec {
        stdin: false,
        stdout: wanted.stdout,
        stderr: wanted.stderr,
    };
    let output = match monitor.attach(spec).await {
        Ok(output) => output,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    let spec = AttachSpec {
        stdin: true,
        ..AttachSpec::default()
    };
    let input = if wanted.stdin {
        monitor.attach(spec).await.map(Some)
    } else {
        Ok(None)
    };
    let mut ids = vec![output.attach_id];
    let outcome = match input {
        Ok(input) => {
            ids.extend(input.as_ref().map(|input| input.attach_id));
            serve(remote, monitor, output, input, limits).await
        }
        Err(error) => Outcome::Failed(error.to_string()),
    };
    for id in ids {
        let _ = monitor.detach(id).await; // the one of stdin may be over already
    }
    outcome
}

async fn serve(
    remote: &mut Remote,
    monitor: &Monitor,
    output: AttachSession,
    input: Option<AttachSession>,
    limits: &Limits,
) -> Outcome {
    let never = CancellationToken::new();
    let (stdin, sizes) = (remote.stdin.take(), remote.resize.take());
    let feeding = async {
        let input = input.map(|input| (input.attach_id, input.stdin));
        if let (Some(from), Some((id, Some(to)))) = (stdin, input) {
            feed(from, to).await;
            let _ = monitor.detach(id).await;
        }
    };
    let resizing = optional(sizes.map(|from| {
        resize(from, move |size: Size| async move {
            if let Err(error) = monitor.resize(size.width, size.height).await {
                tracing::debug!(%error, "cannot resize the terminal");
            }
        })
    }));
    let shows = output.stdout.is_some() || output.stderr.is_some();
    let serving = async {
        let out = output
            .stdout
            .map(|from| show(from, remote.stdout.as_ref(), &never));
        let err = output
            .stderr
            .map(|from| show(from, remote.stderr.as_ref(), &never));
        tokio::join!(optional(out), optional(err));
        if !shows {
            monitor.wait().await;
        }
        match timeout(EXIT, monitor.wait()).await {
            Ok(_) => Outcome::Success,
            Err(_) => Outcome::Failed(
                "no more output comes here while the container runs: this client read too \
                 slowly, or the container has closed its streams"
                    .into(),
            ),
        }
    };
    let inputs = async {
        tokio::join!(feeding, resizing);
        std::future::pending().await
    };
    tokio::select! {
        outcome = serving => outcome,
        outcome = inputs => outcome,
        why = cut(&remote.link, limits) => Outcome::Failed(why.into()),
    }
}

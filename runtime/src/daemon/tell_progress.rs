//! How far long work is, to a client that reads a stream.

use std::time::Duration;

use tokio::sync::mpsc;
use tonic::Status;

use crate::image::Progress;

/// Between two words.
const TELL: Duration = Duration::from_secs(1);

/// A word a second while there is something new to tell: `word` makes it of what is done and what there is to do.
/// Ends when the client is gone. A courtesy: a slow reader misses some, and the work does not wait.
pub(super) async fn tell_progress<T>(
    progress: &Progress,
    answers: &mpsc::Sender<Result<T, Status>>,
    word: impl Fn(u64, u64) -> T,
) {
    let mut tick = tokio::time::interval(TELL);
    let mut told = 0;
    loop {
        tokio::select! {
            () = answers.closed() => return,
            _ = tick.tick() => {}
        }
        let (done, of_all) = progress.get();
        if done != told {
            told = done;
            let _ = answers.try_send(Ok(word(done, of_all)));
        }
    }
}

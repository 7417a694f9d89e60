//! The progress of long work, for a client that reads a stream.

use std::time::Duration;

use tokio::sync::mpsc;
use tonic::Status;

use crate::image::Progress;

/// Interval of reports.
const REPORT: Duration = Duration::from_secs(1);

/// Sends a report per second while progress changes: `word` makes it from the done and the total
/// work. Ends when the client leaves. A slow reader misses reports, and the work does not wait.
pub(super) async fn report_progress<T>(
    progress: &Progress,
    answers: &mpsc::Sender<Result<T, Status>>,
    word: impl Fn(u64, u64) -> T,
) {
    let mut tick = tokio::time::interval(REPORT);
    let mut notified = 0;
    loop {
        tokio::select! {
            () = answers.closed() => return,
            _ = tick.tick() => {}
        }
        let (done, of_all) = progress.get();
        if done != notified {
            notified = done;
            let _ = answers.try_send(Ok(word(done, of_all)));
        }
    }
}

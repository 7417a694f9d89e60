//! The optional recording of NRI traffic.

use std::{path::Path, time::Duration};

use nri_record::{About, Recorder, Runtime, Values};

use super::error::{Error, Result};
use crate::{clock, config};

/// Time limit for the disk at the end of the daemon.
const FLUSH: Duration = Duration::from_secs(5);

/// Starts the recording; `None` if it is not configured.
///
/// # Errors
/// One line: the file cannot be opened as ours.
pub(super) fn begin(nri: &config::Nri) -> Result<Option<Recorder>> {
    let file = nri.record.clone();
    if file.as_os_str().is_empty() {
        return Ok(None);
    }
    let version = env!("CARGO_PKG_VERSION");
    let about = About {
        recorder: format!("cairn {version}"),
        runtime: Some(Runtime {
            name: "cairn".to_owned(),
            version: version.to_owned(),
        }),
        env: Values::Redacted,
        now: Duration::from_nanos(clock::now_ns().unsigned_abs()),
    };
    let shown = file.display().to_string();
    let failed = move |why: &str| {
        tracing::warn!(
            file = shown,
            why,
            "the recording of NRI ends here; plugins are called as before"
        );
    };
    keep_the_last(&file);
    let recorder = Recorder::create(&file, about, failed);
    let recorder =
        recorder.map_err(|e| Error::failed(format!("NRI: record {}: {e}", file.display())))?;
    tracing::info!(file = %file.display(), "NRI is recorded");
    Ok(Some(recorder))
}

/// A restarted daemon does not overwrite an earlier recording.
#[expect(
    clippy::disallowed_methods,
    reason = "at the start, before anybody is served"
)]
fn keep_the_last(file: &Path) {
    if std::fs::symlink_metadata(file).is_ok_and(|found| found.is_file() && found.len() > 0) {
        let mut last = file.as_os_str().to_owned();
        last.push(".1");
        if let Err(error) = std::fs::rename(file, &last) {
            tracing::warn!(%error, file = %file.display(), "the last recording of NRI is not kept");
        }
    }
}

/// Ends the recording, and waits up to [`FLUSH`] until it is on disk.
pub(super) async fn end(recorder: &Recorder) {
    let recorder = recorder.clone();
    let ended = tokio::task::spawn_blocking(move || recorder.finish(FLUSH)).await;
    if let Ok(summary) = ended
        && (summary.dropped > 0 || summary.incomplete)
    {
        tracing::warn!(
            dropped = summary.dropped,
            "the recording of NRI is not whole: lines are missing"
        );
    }
}

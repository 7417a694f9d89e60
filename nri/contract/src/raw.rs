//! Plugins made of single frames, with the suite's timeouts.

use std::path::Path;

use testkit::raw::{Call, Raw};

use crate::stage::PATIENCE;
use testkit::verdict::{Checked, done, miss};

pub(crate) async fn connect(socket: &Path) -> Checked<Raw> {
    done(
        "the NRI socket takes connections",
        Raw::connect(socket).await,
    )
}

/// As [`Raw::until`].
pub(crate) async fn until(raw: &mut Raw, method: &str, events: i32) -> Checked<Call> {
    let expected = format!("a plugin made of frames gets {method}");
    match tokio::time::timeout(PATIENCE, raw.until(method, events)).await {
        Ok(Ok(call)) => Ok(call),
        Ok(Err(seen)) => miss(expected, seen),
        Err(_) => miss(expected, format!("nothing for {PATIENCE:?}")),
    }
}

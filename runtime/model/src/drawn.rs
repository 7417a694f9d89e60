//! What a seed draws.

use std::time::Duration;

use cairn::seeded;

pub(crate) fn drawn(below: u64) -> u64 {
    seeded::draw(below).expect("a seeded run")
}

/// Sleeps a random time below this many milliseconds.
pub(crate) async fn some_ms(below: u64) {
    tokio::time::sleep(Duration::from_millis(drawn(below))).await;
}

//! In seeded runs.

use std::cell::Cell;

use tokio::task::yield_now;

thread_local! {
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Seeds this thread; `None` ends that.
pub fn begin(seed: Option<u64>) {
    STATE.set(seed);
}

/// The next number below `below`; `None` without a seed.
pub fn draw(below: u64) -> Option<u64> {
    let state = STATE.get()?.wrapping_add(0x9E37_79B9_7F4A_7C15);
    STATE.set(Some(state));
    let mut z = state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    Some((z ^ (z >> 31)) % below)
}

/// Runs the work with turns of other tasks before and after.
///
/// # Errors
/// Without a seed: the caller runs the work.
pub async fn in_line<T, W: FnOnce() -> T>(work: W) -> Result<T, W> {
    let Some(turns) = draw(3) else {
        return Err(work);
    };
    for _ in 0..=turns {
        yield_now().await;
    }
    let done = work();
    yield_now().await;
    Ok(done)
}

pub fn fill(bytes: &mut [u8]) -> bool {
    let drawn = bytes
        .iter_mut()
        .map(|byte| draw(256).map(|drawn| *byte = drawn as u8));
    drawn.collect::<Option<Vec<()>>>().is_some()
}

//! In the product.

/// Returns the work.
///
/// # Errors
/// Always: the caller runs the work.
#[inline(always)]
pub async fn in_line<T, W: FnOnce() -> T>(work: W) -> Result<T, W> {
    Err(work)
}

#[inline(always)]
pub fn fill(_: &mut [u8]) -> bool {
    false
}

//! Rules that a test build breaks on purpose, one at a time: so a suite of the contract can show that it would notice.
//!
//! Nothing can be armed without the feature `violate`, and every question is a constant no. Which names there are is
//! the runtime's affair; each is asked for at one place. `NRI_VIOLATE=name cargo test` breaks one for the tests of this
//! crate, which are then to fail.

#[cfg(feature = "violate")]
static BROKEN: std::sync::OnceLock<String> = std::sync::OnceLock::new();

/// Breaks the rule of this name from now on, in the whole process. The first name holds.
#[cfg(feature = "violate")]
pub fn arm(name: &str) {
    let _ = BROKEN.set(name.to_owned());
}

/// Whether the rule of this name is to be broken.
#[cfg(feature = "violate")]
pub fn is(name: &str) -> bool {
    BROKEN.get_or_init(|| std::env::var("NRI_VIOLATE").unwrap_or_default()) == name
}

/// Whether the rule of this name is to be broken: never in this build.
#[cfg(not(feature = "violate"))]
#[inline(always)]
pub const fn is(_name: &str) -> bool {
    false
}

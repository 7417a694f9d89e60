//! Replaces threads, random bytes, limits, a disk's cache and the files of cgroups in seeded runs
//! (runtime/model): one number generates everything random. It is thread-local: a seeded run has one
//! thread. Without the feature `seeded`, and without a seed, nothing here has an effect.

#[cfg(not(any(test, feature = "seeded")))]
mod off;
#[cfg(any(test, feature = "seeded"))]
mod on;

#[cfg(not(any(test, feature = "seeded")))]
pub use off::*;
#[cfg(any(test, feature = "seeded"))]
pub use on::*;

//! What the helper may make at most.

/// Paths in the lists of a report together: what the daemon has left to do for one layer.
pub const REPORTED_MAX: usize = 200_000;

/// Sums of files in a report; the daemon reads the files that come later once more.
pub const SUMS_MAX: usize = 500_000;

/// Of one layer.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of the uncompressed archive.
    pub bytes: u64,
    /// Entries of the archive, and what is made.
    pub files: u64,
    /// Directories in each other.
    pub depth: usize,
}

//! Limits of an image, and so of a helper.

/// Paths in all lists of a report: the daemon's remaining work for one layer.
pub const REPORTED_MAX: usize = 200_000;

/// Limits of one unpacked image; a helper gets the remainder for one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeBounds {
    /// Bytes on disk of an image; for a layer, also of the uncompressed archive.
    pub bytes: u64,
    /// Inodes; also entries of the archive.
    pub files: u64,
    /// Nested directories.
    pub depth: u32,
}

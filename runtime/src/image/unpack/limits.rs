//! What an image, and so a helper, may make at most.

/// Paths in the lists of a report together: what the daemon has left to do for one layer.
pub const REPORTED_MAX: usize = 200_000;

/// Sums of files in a report; the daemon reads the files that come later once more.
pub const SUMS_MAX: usize = 500_000;

/// What one image may come to, unpacked; a helper is given what is left of it for one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeBounds {
    /// Of an image: bytes on disk. Of a layer: of the uncompressed archive, too.
    pub bytes: u64,
    /// Inodes that are made; entries of the archive, too.
    pub files: u64,
    /// Directories in each other.
    pub depth: u32,
}

//! Checksums of files, by which `verify` finds damage by the disk.
//!
//! A checksum is a CRC of the runs of nonzero pages and their offsets. So a hole equals zeros, and
//! a sparse terabyte takes no time. It does not protect against a user who can write to the store,
//! and so to the checksums. Digests that are compared with those of a registry are computed from
//! the transferred bytes.

use std::fs::File;
use std::io::{self, Read, Seek};

use crc32fast::Hasher;
use rustix::fs::Advice;

use crate::image::fsutil::data_from;

const PAGE: usize = 4096;
/// Bytes per read.
const CHUNK: usize = 128 << 10;

/// A sum in progress; 0 for a file without content.
#[derive(Default)]
pub(crate) struct Sum {
    crc: Hasher,
    at: u64,
    /// The previous page was not zero: its place implies this one's.
    goes_on: bool,
}

impl Sum {
    /// The next bytes: complete pages, except at the end.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let is_zero = |page: &&[u8]| page.iter().all(|byte| *byte == 0);
        let mut rest = bytes;
        while !rest.is_empty() {
            let zeros: usize = rest.chunks(PAGE).take_while(is_zero).map(<[u8]>::len).sum();
            if zeros > 0 {
                self.skip(zeros as u64);
                rest = &rest[zeros..];
                continue;
            }
            let pages = rest.chunks(PAGE).take_while(|page| !is_zero(page));
            let length = pages.map(<[u8]>::len).sum();
            if !self.goes_on {
                self.crc.update(&self.at.to_le_bytes());
            }
            self.crc.update(&rest[..length]);
            self.at += length as u64;
            self.goes_on = true;
            rest = &rest[length..];
        }
    }

    /// Adds this many zeros: complete pages, except at the end.
    pub(crate) fn skip(&mut self, zeros: u64) {
        self.at += zeros;
        self.goes_on &= zeros == 0;
    }

    pub(crate) fn finish(&self) -> u32 {
        self.crc.clone().finalize()
    }
}

/// The sum of bytes outside a file.
pub(crate) fn of(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// The sum of a file of `size` bytes as on disk: cached pages are dropped before and after, if
/// possible. `read` is called for each piece, and may end it by an error.
pub(crate) fn of_file(
    file: &File,
    size: u64,
    read: &mut dyn FnMut(usize) -> io::Result<()>,
) -> io::Result<u32> {
    let forget = || {
        // A file system without support returns cached pages.
        let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
    };
    forget();
    let mut sum = Sum::default();
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while let Some((start, end)) = data_from(file, at, size)? {
        // With smaller blocks data may begin or end within a page.
        let start = start - start % PAGE as u64;
        let end = end.next_multiple_of(PAGE as u64).min(size);
        sum.skip(start - at);
        let mut file = file;
        file.seek(io::SeekFrom::Start(start))?;
        at = start;
        while at < end {
            let want = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
            file.read_exact(&mut buffer[..want])?;
            sum.add(&buffer[..want]);
            at += want as u64;
            read(want)?;
        }
    }
    forget();
    Ok(sum.finish())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn in_file(write: impl FnOnce(&mut File), size: u64) -> u32 {
        let mut file = tempfile::tempfile().unwrap();
        write(&mut file);
        file.set_len(size).unwrap();
        of_file(&file, size, &mut |_| Ok(())).unwrap()
    }

    #[test]
    fn holes_and_zeros_are_the_same_and_pieces_of_any_number_of_pages_too() {
        let mut content = vec![0; 3 * CHUNK + 777];
        content[5] = 1;
        content[CHUNK + PAGE - 1] = 2;
        content[3 * CHUNK + 776] = 3;
        let size = content.len() as u64;
        let written = in_file(|file| file.write_all(&content).unwrap(), size);
        let with_holes = in_file(
            |file| {
                for at in [5, CHUNK + PAGE - 1, 3 * CHUNK + 776] {
                    file.seek(io::SeekFrom::Start(at as u64)).unwrap();
                    file.write_all(&content[at..=at]).unwrap();
                }
            },
            size,
        );
        assert_eq!(written, with_holes);
        for pages in [1, 7, 32] {
            let mut sum = Sum::default();
            for piece in content.chunks(pages * PAGE) {
                if piece.iter().all(|byte| *byte == 0) {
                    sum.skip(piece.len() as u64);
                } else {
                    sum.add(piece);
                }
            }
            assert_eq!(sum.finish(), written, "{pages}");
        }
    }

    #[test]
    fn a_bit_a_place_and_a_lost_page_change_it() {
        let content: Vec<u8> = (0..3 * PAGE).map(|n| (n % 251) as u8).collect();
        let sum = |content: &[u8]| in_file(|f| f.write_all(content).unwrap(), 3 * PAGE as u64);
        let good = sum(&content);
        let mut flipped = content.clone();
        flipped[PAGE + 9] ^= 4;
        assert_ne!(sum(&flipped), good);
        let mut moved = content.clone();
        moved.rotate_left(PAGE);
        assert_ne!(sum(&moved), good);
        let mut lost = content.clone();
        lost[PAGE..2 * PAGE].fill(0);
        assert_ne!(sum(&lost), good);
    }

    #[test]
    fn a_file_of_a_terabyte_of_nothing_is_summed_up_at_once() {
        let mut pieces = 0;
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        let sum = of_file(&file, 1 << 40, &mut |_| {
            pieces += 1;
            Ok(())
        });
        assert_eq!((sum.unwrap(), pieces), (0, 0));
    }
}

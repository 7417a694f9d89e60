//! Decompression by content, not by the media type (CRI-403), with a bound on the expansion of a
//! small blob.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

const BUFFER: usize = 64 * 1024;
/// Largest window of a zstd frame, as a power of two. For a layer zstd's own limit, which `--ultra`
/// reaches and other runtimes accept; for an archive the one that every decoder must support.
pub const LAYER: u32 = 27;
pub const ARCHIVE: u32 = 23;
/// Below this size any ratio is allowed.
const RATIO_FREE: u64 = 1 << 30;
/// Above it: a little more than gzip's best, so that only crafted zstd exceeds it.
const RATIO_MAX: u64 = 1100;

/// The plain bytes of a gzip, zstd or plain stream. More than `max` bytes are an error, and so is a
/// larger window than `window`.
pub fn bounded<'a>(input: impl Read + 'a, max: u64, window: u32) -> io::Result<impl Read + 'a> {
    let went_in = Rc::new(Cell::new(0));
    let count = went_in.clone();
    let input = Counted {
        inner: input,
        count,
    };
    let inner = decoder(input, window)?;
    Ok(Bounded {
        inner,
        went_in,
        came_out: 0,
        max,
    })
}

/// The same without a bound: for [`bounded`], and for tests.
pub fn decoder<'a>(input: impl Read + 'a, window: u32) -> io::Result<Box<dyn Read + 'a>> {
    let mut input = BufReader::with_capacity(BUFFER, input);
    // A pipe may give its first bytes singly, but the decision needs four of them.
    let mut head = Vec::new();
    input.by_ref().take(4).read_to_end(&mut head)?;
    let complete = BufReader::with_capacity(BUFFER, io::Cursor::new(head.clone()).chain(input));
    Ok(match head[..] {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(complete)),
        [0x28, 0xb5, 0x2f, 0xfd] => zstd_decoder(complete, window)?,
        // A skippable frame, which may start a chunked zstd image.
        [0x50..=0x5f, 0x2a, 0x4d, 0x18] => zstd_decoder(complete, window)?,
        [0xfd, b'7', b'z', b'X'] => return Err(unsupported("xz")),
        [b'B', b'Z', b'h', ..] => return Err(unsupported("bzip2")),
        _ => Box::new(complete),
    })
}

fn zstd_decoder<'a>(input: impl BufRead + 'a, window: u32) -> io::Result<Box<dyn Read + 'a>> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?;
    decoder.window_log_max(window)?;
    Ok(Box::new(Zstd { decoder, window }))
}

/// Adds the bound of the window to each error: zstd's own is only "too much memory".
struct Zstd<R> {
    decoder: R,
    window: u32,
}

impl<R: Read> Read for Zstd<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buf).map_err(|e| {
            let most = (1u64 << self.window) >> 20;
            io::Error::new(e.kind(), format!("zstd (windows of up to {most} MiB): {e}"))
        })
    }
}

fn unsupported(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        format!("{what} compression is not supported"),
    )
}

/// Counts the bytes that pass.
struct Counted<R> {
    inner: R,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.count.set(self.count.get() + n as u64);
        Ok(n)
    }
}

/// Fails if the output exceeds `max`, or is out of proportion to the input (CRI-444).
struct Bounded<R> {
    inner: R,
    went_in: Rc<Cell<u64>>,
    came_out: u64,
    max: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.came_out += n as u64;
        let ratio = self.went_in.get().saturating_mul(RATIO_MAX);
        if self.came_out > self.max {
            let why = format!("more than {} bytes unpacked", self.max);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        if self.came_out > RATIO_FREE && self.came_out > ratio {
            return Err(io::Error::other(format!(
                "more than {RATIO_MAX} times its size unpacked"
            )));
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn plain(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        decoder(bytes, LAYER)?.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn gzip_zstd_and_plain_are_distinguished_by_their_bytes() {
        let text = b"the same bytes".repeat(1000);
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&text).unwrap();
        let gz = gz.finish().unwrap();
        let twice = [gz.clone(), gz.clone()].concat();
        assert_eq!(plain(&gz).unwrap(), text);
        assert_eq!(plain(&twice).unwrap(), text.repeat(2));
        assert_eq!(
            plain(&zstd::encode_all(&text[..], 1).unwrap()).unwrap(),
            text
        );
        assert_eq!(plain(&text).unwrap(), text);
        assert_eq!(plain(b"").unwrap(), b"");
        assert_eq!(plain(b"ab").unwrap(), b"ab");
        assert!(plain(&gz[..gz.len() / 2]).is_err());
        assert!(plain(b"\xfd7zXZ\0").is_err());
    }

    #[test]
    fn what_unpacks_to_more_than_the_bound_is_an_error() {
        let bomb = zstd::encode_all(io::repeat(0).take(3 << 20), 1).unwrap();
        let mut bounded = bounded(&bomb[..], 1 << 20, LAYER).unwrap();
        assert!(io::copy(&mut bounded, &mut io::sink()).is_err());
    }

    #[test]
    fn what_unpacks_out_of_all_proportion_is_an_error() {
        let mut input = Counted {
            inner: &b"12345678"[..],
            count: Rc::default(),
        };
        io::copy(&mut input, &mut io::sink()).unwrap();
        let mut bounded = Bounded {
            inner: io::repeat(0).take(2 << 30),
            went_in: input.count,
            came_out: 0,
            max: u64::MAX,
        };
        let copied = io::copy(&mut bounded, &mut io::sink());
        assert!(copied.is_err());
    }
}

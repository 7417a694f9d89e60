//! SPDY's header blocks: one zlib stream per direction of a connection, with a preset dictionary,
//! flushed after each block.
//!
//! ```text
//! inflated  count:32 | (length:32 name length:32 value)*     a name is lower case
//! ```

use flate2::{Decompress, FlushDecompress, Status};

use super::dictionary::{ADLER, dictionary};

/// The longest block, inflated: our streams are opened with some hundred bytes.
pub const MAX_BLOCK: usize = 64 << 10;
/// Headers in one block.
const MAX_HEADERS: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("invalid compression of a header block")]
    Compression,
    #[error("header block exceeds the limit of {MAX_BLOCK} bytes or {MAX_HEADERS} headers")]
    TooLong,
    #[error("truncated header block")]
    Truncated,
}

/// The headers of a stream, names in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(Vec<u8>, Vec<u8>)>);

impl Headers {
    /// The first header of this name, if its value is text. Several values are joined by NUL.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = |(n, _): &&(Vec<u8>, Vec<u8>)| n.eq_ignore_ascii_case(name.as_bytes());
        let (_, value) = self.0.iter().find(found)?;
        std::str::from_utf8(value).ok()
    }

    /// # Errors
    /// The block is malformed.
    fn parse(block: &[u8]) -> Result<Self, Error> {
        let mut rest = block;
        let number = |rest: &mut &[u8]| -> Result<usize, Error> {
            let (head, tail) = rest.split_first_chunk::<4>().ok_or(Error::Truncated)?;
            *rest = tail;
            usize::try_from(u32::from_be_bytes(*head)).map_err(|_| Error::TooLong)
        };
        let count = number(&mut rest)?;
        if count > MAX_HEADERS {
            return Err(Error::TooLong);
        }
        let mut headers = Vec::with_capacity(count);
        for _ in 0..count {
            let mut field = || {
                let len = number(&mut rest)?;
                let (field, tail) = rest.split_at_checked(len).ok_or(Error::Truncated)?;
                rest = tail;
                Ok(field.to_vec())
            };
            headers.push((field()?, field()?));
        }
        Ok(Self(headers))
    }
}

/// The client's direction. An error ends the connection: later blocks are unreadable.
pub struct Inflater(Decompress);

impl Default for Inflater {
    fn default() -> Self {
        Self(Decompress::new(true))
    }
}

impl Inflater {
    /// The next block.
    ///
    /// # Errors
    /// The block is invalid.
    pub fn block(&mut self, compressed: &[u8]) -> Result<Headers, Error> {
        let mut rest = compressed;
        let mut block = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let (read, wrote) = (self.0.total_in(), self.0.total_out());
            let result = self.0.decompress(rest, &mut chunk, FlushDecompress::Sync);
            let used = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
            rest = rest
                .get(used(self.0.total_in(), read)..)
                .ok_or(Error::Compression)?;
            let got = used(self.0.total_out(), wrote);
            block.extend_from_slice(chunk.get(..got).ok_or(Error::Compression)?);
            if block.len() > MAX_BLOCK {
                return Err(Error::TooLong);
            }
            match result {
                Err(error) if error.needs_dictionary() == Some(ADLER) => {
                    self.0
                        .set_dictionary(dictionary())
                        .map_err(|_| Error::Compression)?;
                }
                // A stream of headers ends with its connection only.
                Err(_) | Ok(Status::StreamEnd) => return Err(Error::Compression),
                Ok(_) if rest.is_empty() && got < chunk.len() => return Headers::parse(&block),
                Ok(_) if got == 0 => return Err(Error::Compression),
                Ok(_) => {}
            }
        }
    }
}

/// Our direction, where every block is empty and needs no compression: after the zlib head that
/// names the dictionary, each block is a stored block of four zeros, and an empty one, at which a
/// reader returns what it has.
#[derive(Default)]
pub struct Deflater {
    begun: bool,
}

/// CMF, FLG with the dictionary's bit, the dictionary's Adler-32.
const ZLIB_HEAD: [u8; 6] = [0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2];
const EMPTY_BLOCK: [u8; 14] = [0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

impl Deflater {
    /// The next block.
    pub fn empty_block(&mut self) -> Vec<u8> {
        let first = !std::mem::replace(&mut self.begun, true);
        let head = if first { &ZLIB_HEAD[..] } else { &[] };
        [head, &EMPTY_BLOCK].concat()
    }
}

#[cfg(test)]
mod tests {
    use flate2::{Compress, Compression, FlushCompress};
    use proptest::prelude::*;

    use super::*;

    /// A client's direction.
    struct Client(Compress);

    impl Client {
        fn new() -> Self {
            let mut compress = Compress::new(Compression::best(), true);
            compress.set_dictionary(dictionary()).expect("a dictionary");
            Self(compress)
        }

        fn compress(&mut self, block: &[u8]) -> Vec<u8> {
            let mut out = Vec::with_capacity(block.len() * 2 + 256);
            self.0
                .compress_vec(block, &mut out, FlushCompress::Sync)
                .expect("compresses");
            out
        }

        fn block(&mut self, headers: &[(&str, &str)]) -> Vec<u8> {
            self.compress(&encode(headers))
        }
    }

    fn encode(headers: &[(&str, &str)]) -> Vec<u8> {
        let number = |n: usize| u32::try_from(n).expect("few").to_be_bytes();
        let mut block = number(headers.len()).to_vec();
        for (name, value) in headers {
            for field in [name, value] {
                block.extend_from_slice(&number(field.len()));
                block.extend_from_slice(field.as_bytes());
            }
        }
        block
    }

    #[test]
    fn the_second_block_needs_the_first() {
        let (mut client, mut server) = (Client::new(), Inflater::default());
        let (first, second) = (
            client.block(&[("streamtype", "error"), ("port", "80")]),
            client.block(&[("streamtype", "data"), ("port", "80")]),
        );
        assert_eq!(Inflater::default().block(&second), Err(Error::Compression));
        let first = server.block(&first).expect("inflates");
        assert_eq!(first.get("StreamType"), Some("error"));
        let second = server.block(&second).expect("inflates");
        assert_eq!(
            (second.get("streamtype"), second.get("port")),
            (Some("data"), Some("80"))
        );
        assert_eq!(second.get("requestid"), None);
    }

    #[test]
    fn our_own_empty_blocks_can_be_inflated() {
        let (mut ours, mut theirs) = (Deflater::default(), Inflater::default());
        for _ in 0..3 {
            assert_eq!(theirs.block(&ours.empty_block()), Ok(Headers::default()));
        }
    }

    #[test]
    fn a_block_that_swells_is_refused() {
        let huge = encode(&[("streamtype", &"a".repeat(1 << 20))]);
        let compressed = Client::new().compress(&huge);
        assert!(compressed.len() < 4096, "{}", compressed.len());
        assert_eq!(Inflater::default().block(&compressed), Err(Error::TooLong));
    }

    #[test]
    fn a_malformed_block_is_refused() {
        let block = |block: &[u8]| Inflater::default().block(&Client::new().compress(block));
        assert_eq!(
            block(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]),
            Err(Error::Truncated)
        );
        assert_eq!(block(&[0xff; 4]), Err(Error::TooLong));
        assert_eq!(block(&[]), Err(Error::Truncated));
    }

    proptest! {
        #[test]
        fn blocks_of_any_size_are_read_as_they_were_written(
            blocks in proptest::collection::vec(
                proptest::collection::vec(("[a-z]{1,20}", "[ -~]{0,4000}"), 0..12), 1..4)
        ) {
            let (mut client, mut server) = (Client::new(), Inflater::default());
            for headers in blocks {
                let headers: Vec<_> = headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
                let read = server.block(&client.block(&headers)).expect("inflates");
                let expected = headers.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec()));
                prop_assert_eq!(read, Headers(expected.collect()));
            }
        }

        #[test]
        fn no_bytes_make_it_panic_or_swell(bytes: Vec<u8>) {
            let _ = Inflater::default().block(&bytes);
        }
    }
}

//! Content digests. Only `sha256:` and 64 lower-case hex digits are accepted from outside.
//!
//! A `Digest` is always well-formed, so that its hex part can be a file name.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A well-formed sha256 digest. Shown as `sha256:<hex>`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Digest(String);

/// The text is not `sha256:<64 hex>`.
#[derive(Debug, Clone, thiserror::Error)]
#[error("digest {0:?} is not sha256:<64 lower-case hex digits>")]
pub struct BadDigest(String);

const PREFIX: &str = "sha256:";

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The 64 hex digits, without `sha256:`.
    pub fn hex(&self) -> &str {
        &self.0[PREFIX.len()..]
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// From 64 hex digits without the prefix.
    pub fn from_hex(hex: &str) -> Result<Self, BadDigest> {
        format!("{PREFIX}{hex}").parse()
    }

    /// A digest of this one together with another text.
    pub fn with(&self, other: &str) -> Digest {
        Digest::of(format!("{self} {other}").as_bytes())
    }

    /// The chain id of a layer on `parent` (CRI-440); for the lowest layer its diff id.
    pub fn chain(parent: Option<&Digest>, diff_id: &Digest) -> Digest {
        match parent {
            None => diff_id.clone(),
            Some(parent) => parent.with(diff_id.as_str()),
        }
    }
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        let hex = text.strip_prefix(PREFIX).ok_or_else(|| bad(text))?;
        let good = hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if good {
            Ok(Digest(text.to_owned()))
        } else {
            Err(bad(text))
        }
    }
}

/// Shortens hostile text.
fn bad(text: &str) -> BadDigest {
    BadDigest(text.chars().take(80).collect())
}

impl TryFrom<String> for Digest {
    type Error = BadDigest;

    fn try_from(text: String) -> Result<Self, BadDigest> {
        text.parse()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A digest in progress, with the count of its bytes.
#[derive(Clone, Default)]
pub(super) struct Hasher {
    state: Sha256,
    bytes: u64,
}

impl Hasher {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn finish(self) -> Digest {
        let mut text = String::with_capacity(PREFIX.len() + 64);
        text.push_str(PREFIX);
        for byte in self.state.finalize() {
            for nibble in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
            }
        }
        Digest(text)
    }
}

/// A reader that hashes the bytes that pass.
pub(super) struct HashingReader<R> {
    inner: R,
    pub hasher: Hasher,
}

impl<R: Read> HashingReader<R> {
    pub(super) fn new(inner: R) -> Self {
        Self {
            inner,
            hasher: Hasher::default(),
        }
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.hasher.update(&buf[..n]);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_nothing_is_the_known_one() {
        assert_eq!(
            Digest::of(b"").as_str(),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn only_well_formed_digests_are_taken() {
        let hex = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert!(format!("sha256:{hex}").parse::<Digest>().is_ok());
        for bad in [
            hex.to_owned(),
            format!("sha512:{hex}"),
            format!("sha256:{}", hex.to_uppercase()),
            "sha256:../../etc/passwd".to_owned(),
            format!("sha256:{hex}0"),
        ] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_chain_id_is_the_diff_id_first_and_a_digest_of_both_after() {
        let a = Digest::of(b"a");
        let b = Digest::of(b"b");
        assert_eq!(Digest::chain(None, &a), a);
        assert_eq!(
            Digest::chain(Some(&a), &b),
            Digest::of(format!("{a} {b}").as_bytes())
        );
    }
}

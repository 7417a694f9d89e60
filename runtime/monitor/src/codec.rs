//! The binary codec of every message and every file of the monitor.
//!
//! Pure. Numbers are little-endian; byte strings have a u32 length, lists a u32 count, options a
//! flag. A struct is its fields in the order given to [`coded!`]. Decoding checks every length
//! against the remaining bytes before it allocates.

use std::fmt;

/// Version of the frames and of the files `launch`, `pid` and `exit`.
pub const VERSION: u16 = 1;

/// Decoding error: one line without the bytes, which may contain environment values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError(pub &'static str);

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed monitor message: {}", self.0)
    }
}

impl std::error::Error for DecodeError {}

type Result<T> = std::result::Result<T, DecodeError>;

/// A value with a binary form.
pub trait Coded: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(r: &mut Reader<'_>) -> Result<Self>;
}

/// Implements [`Coded`] for a struct: field by field, in this order.
macro_rules! coded {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl $crate::codec::Coded for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::codec::Coded::put(&self.$field, out);)*
            }

            fn take(
                r: &mut $crate::codec::Reader<'_>,
            ) -> std::result::Result<Self, $crate::codec::DecodeError> {
                Ok(Self { $($field: $crate::codec::Coded::take(r)?),* })
            }
        }
    };
}
pub(crate) use coded;

/// Encodes a value as a file, after the version.
pub fn to_file(value: &impl Coded) -> Vec<u8> {
    let mut out = Vec::new();
    VERSION.put(&mut out);
    value.put(&mut out);
    out
}

/// Decodes a file of [`to_file`]. `unsupported` is the error for another version.
pub fn from_file<T: Coded>(bytes: &[u8], unsupported: &'static str) -> Result<T> {
    let mut r = Reader::new(bytes);
    if u16::take(&mut r)? != VERSION {
        return Err(DecodeError(unsupported));
    }
    let value = T::take(&mut r)?;
    r.end()?;
    Ok(value)
}

pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, tail) = self
            .rest
            .split_at_checked(n)
            .ok_or(DecodeError("truncated value"))?;
        self.rest = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    /// Reads a kind or a flag. `u8` is not [`Coded`], so that a `Vec<u8>` is a byte string.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.bytes(1)?[0])
    }

    /// Ends the decoding. Remaining bytes mean another version or damage.
    pub fn end(self) -> Result<()> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError("trailing bytes"))
        }
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl Coded for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn take(r: &mut Reader<'_>) -> Result<Self> {
                Ok(Self::from_le_bytes(r.array()?))
            }
        })*
    };
}
numbers!(u16, u32, i32, u64);

impl Coded for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(r: &mut Reader<'_>) -> Result<Self> {
        match r.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError("invalid flag")),
        }
    }
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    (bytes.len() as u32).put(out);
    out.extend_from_slice(bytes);
}

impl Coded for Vec<u8> {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self, out);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self> {
        let n = u32::take(r)? as usize;
        Ok(r.bytes(n)?.to_vec())
    }
}

impl Coded for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(self.as_bytes(), out);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self> {
        String::from_utf8(Coded::take(r)?).map_err(|_| DecodeError("text is not UTF-8"))
    }
}

/// An item has at least one byte, so that a count cannot exceed the remaining bytes.
impl<T: Coded> Coded for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|item| item.put(out));
    }

    fn take(r: &mut Reader<'_>) -> Result<Self> {
        let n = u32::take(r)? as usize;
        if n > r.rest.len() {
            return Err(DecodeError("a list exceeds its message"));
        }
        (0..n).map(|_| T::take(r)).collect()
    }
}

impl<T: Coded> Coded for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(r: &mut Reader<'_>) -> Result<Self> {
        bool::take(r)?.then(|| T::take(r)).transpose()
    }
}

impl<A: Coded, B: Coded> Coded for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self> {
        Ok((A::take(r)?, B::take(r)?))
    }
}

impl<T: Coded> Coded for Box<T> {
    fn put(&self, out: &mut Vec<u8>) {
        T::put(self, out);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self> {
        T::take(r).map(Box::new)
    }
}

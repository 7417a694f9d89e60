//! Bytes in, values out: the little codec below every message and every file of the monitor.
//!
//! Pure. Numbers are little-endian, byte strings carry a u32 length, lists a u32 count. Decoding trusts
//! nothing: every length is checked against what is left before anything is allocated.

use std::fmt;

/// Version of the frames and of the files `launch`, `pid` and `exit`.
pub const VERSION: u16 = 1;

/// Decoding error. One line, without the bytes themselves (they may hold environment values).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeError(pub &'static str);

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed monitor message: {}", self.0)
    }
}

impl std::error::Error for DecodeError {}

/// Appends values to a buffer it owns.
#[derive(Default)]
pub struct Writer {
    buf: Vec<u8>,
}

impl Writer {
    pub fn finish(self) -> Vec<u8> {
        self.buf
    }

    pub fn u8(&mut self, v: u8) -> &mut Self {
        self.buf.push(v);
        self
    }

    pub fn bool(&mut self, v: bool) -> &mut Self {
        self.u8(u8::from(v))
    }

    pub fn u16(&mut self, v: u16) -> &mut Self {
        self.buf.extend_from_slice(&v.to_le_bytes());
        self
    }

    pub fn u32(&mut self, v: u32) -> &mut Self {
        self.buf.extend_from_slice(&v.to_le_bytes());
        self
    }

    pub fn i32(&mut self, v: i32) -> &mut Self {
        self.buf.extend_from_slice(&v.to_le_bytes());
        self
    }

    pub fn u64(&mut self, v: u64) -> &mut Self {
        self.buf.extend_from_slice(&v.to_le_bytes());
        self
    }

    pub fn bytes(&mut self, v: &[u8]) -> &mut Self {
        self.u32(v.len() as u32);
        self.buf.extend_from_slice(v);
        self
    }

    pub fn list<T>(
        &mut self,
        items: &[T],
        mut each: impl for<'w> FnMut(&'w mut Self, &T) -> &'w mut Self,
    ) -> &mut Self {
        self.u32(items.len() as u32);
        for item in items {
            each(self, item);
        }
        self
    }

    pub fn option<T>(
        &mut self,
        v: Option<&T>,
        each: impl for<'w> FnOnce(&'w mut Self, &T) -> &'w mut Self,
    ) -> &mut Self {
        match v {
            None => self.u8(0),
            Some(v) => each(self.u8(1), v),
        }
    }
}

/// Takes values off a slice, front to back.
pub struct Reader<'a> {
    rest: &'a [u8],
}

type Result<T> = std::result::Result<T, DecodeError>;

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        if n > self.rest.len() {
            return Err(DecodeError("truncated value"));
        }
        let (head, tail) = self.rest.split_at(n);
        self.rest = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub fn bool(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError("invalid flag")),
        }
    }

    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn bytes(&mut self) -> Result<Vec<u8>> {
        let n = self.u32()? as usize;
        Ok(self.take(n)?.to_vec())
    }

    pub fn string(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?).map_err(|_| DecodeError("text is not UTF-8"))
    }

    /// A list whose items are at least one byte each, so that a count can never outrun the bytes left.
    pub fn list<T>(&mut self, mut each: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let n = self.u32()? as usize;
        if n > self.rest.len() {
            return Err(DecodeError("a list exceeds its message"));
        }
        (0..n).map(|_| each(self)).collect()
    }

    pub fn option<T>(&mut self, each: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        self.bool()?.then(|| each(self)).transpose()
    }

    /// Ends the decoding. Bytes left over mean another version or damage.
    pub fn end(self) -> Result<()> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError("trailing bytes"))
        }
    }
}

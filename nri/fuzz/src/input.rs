//! One input of a fuzz target.

/// The bytes of one input, taken from the front. It continues with zeros after the end.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// Little endian.
    pub(super) fn u16(&mut self) -> u16 {
        let low = self.byte();
        u16::from_le_bytes([low, self.byte()])
    }

    /// Takes up to `n` of the remaining bytes.
    pub(super) fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

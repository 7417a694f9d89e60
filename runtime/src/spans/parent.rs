//! The caller's span, from W3C Trace Context metadata. Pure.

pub(super) type TraceId = [u8; 16];
pub(super) type SpanId = [u8; 8];

/// The header's name.
pub(super) const HEADER: &str = "traceparent";

/// A caller's span, the parent of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parent {
    pub trace: TraceId,
    pub span: SpanId,
    /// Whether the caller records it.
    pub sampled: bool,
}

impl Parent {
    /// `00-<32 hex>-<16 hex>-<2 hex>`. Ignores malformed values: tracing never fails a call.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (version, trace) = (parts.next()?, parts.next()?);
        let (span, flags) = (parts.next()?, parts.next()?);
        let version: [u8; 1] = hex(version)?;
        // Later versions may append fields; version 255 is invalid.
        let more = parts.next().is_some();
        if version == [255] || (version == [0] && more) {
            return None;
        }
        let (trace, span, flags): (TraceId, SpanId, [u8; 1]) =
            (hex(trace)?, hex(span)?, hex(flags)?);
        let is_some = trace != TraceId::default() && span != SpanId::default();
        is_some.then_some(Self {
            trace,
            span,
            sampled: flags[0] & 1 == 1,
        })
    }
}

/// The rule for any client bytes: a parent has the numbers of its text.
#[cfg(any(test, feature = "fuzzing"))]
pub fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(parent) = Parent::parse(&text) {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let named = format!("-{}-{}-", hex(&parent.trace), hex(&parent.span));
        assert_eq!(text.get(2..53), Some(named.as_str()));
    }
}

/// Exactly `N` bytes in lower-case hex digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_parent_is_read_with_its_flag() {
        let parent = Parent::parse(GOOD).expect("good");
        assert_eq!((parent.trace[0], parent.trace[15]), (0x0a, 0x9c));
        assert_eq!((parent.span[0], parent.span[7]), (0xb7, 0x31));
        assert!(parent.sampled);
        let not = GOOD.replace("-01", "-02");
        assert!(!Parent::parse(&not).expect("good").sampled);
        // Known fields of a later version count.
        let later = format!("01{}-more", &GOOD[2..]);
        assert_eq!(Parent::parse(&later), Some(parent));
    }

    #[test]
    fn a_malformed_parent_is_ignored() {
        for bad in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
        ] {
            assert_eq!(Parent::parse(bad), None, "{bad}");
        }
    }
}

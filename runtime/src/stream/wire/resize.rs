//! Terminal sizes on the resize stream: JSON objects in a row, without separators, cut anywhere.

use serde::Deserialize;

/// The most bytes without a complete object.
const MAX_PENDING: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Size {
    #[serde(alias = "width")]
    pub width: u16,
    #[serde(alias = "height")]
    pub height: u16,
}

/// The stream contains something else; no further size is read from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidSize;

#[derive(Default)]
pub struct Decoder {
    pending: Vec<u8>,
}

impl Decoder {
    /// The last complete size, if there is a new one. A size with a zero is ignored.
    ///
    /// # Errors
    /// The stream is invalid.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<Size>, InvalidSize> {
        self.pending.extend_from_slice(bytes);
        let mut sizes = serde_json::Deserializer::from_slice(&self.pending).into_iter::<Size>();
        let mut last = None;
        loop {
            match sizes.next() {
                Some(Ok(size)) if size.width > 0 && size.height > 0 => last = Some(size),
                Some(Ok(_)) => {}
                Some(Err(error)) if error.is_eof() => break,
                Some(Err(_)) => return Err(InvalidSize),
                None => break,
            }
        }
        let used = sizes.byte_offset();
        self.pending.drain(..used);
        if self.pending.len() > MAX_PENDING {
            return Err(InvalidSize);
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_zero_is_no_size_and_nonsense_ends_the_stream() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.push(br#"{"Width":0,"Height":24}"#), Ok(None));
        assert_eq!(
            decoder.push(br#"{"Width":70000,"Height":24}"#),
            Err(InvalidSize)
        );
        assert_eq!(Decoder::default().push(&[b' '; 2000]), Ok(None));
        let long = [b"{\"Width\":1".as_slice(), &[b' '; 2000]].concat();
        assert_eq!(Decoder::default().push(&long), Err(InvalidSize));
    }

    proptest! {
        #[test]
        fn sizes_are_found_wherever_the_stream_is_cut(
            sizes in proptest::collection::vec((1u16.., 1u16..), 1..8),
            cut in 1usize..40,
        ) {
            let text: String = sizes.iter()
                .map(|(w, h)| format!("{{\"Width\":{w},\"Height\":{h}}}\n"))
                .collect();
            let mut decoder = Decoder::default();
            let mut last = None;
            for piece in text.as_bytes().chunks(cut) {
                last = decoder.push(piece).expect("sizes").or(last);
            }
            let (width, height) = *sizes.last().expect("one at least");
            prop_assert_eq!(last, Some(Size { width, height }));
        }
    }
}

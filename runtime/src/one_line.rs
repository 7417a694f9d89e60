//! Pure: texts from outside as one line that nobody's terminal obeys.

use std::{borrow::Cow, fmt::Write as _};

/// Control characters, ends of lines, and characters that change the direction or the place of the text beside them.
pub fn is_hidden(c: char) -> bool {
    let moves =
        matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
    c.is_control() || moves
}

/// The text with each hidden character written out (`\n`, `\u001b`), so that a string of JSON stays one.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden)
}

/// As [`one_line`], of the characters that `which` chooses.
pub fn escaped(text: &str, which: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&which) {
        return text.into();
    }
    let mut line = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !which(c) => line.push(c),
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            // All of them have four digits at most.
            _ => {
                // Writing to memory cannot fail.
                let _ = write!(line, "\\u{:04x}", u32::from(c));
            }
        }
    }
    line.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_written_out_and_all_others_stay() {
        for (text, expected) in [
            ("plain, ümlaut, 漢字", "plain, ümlaut, 漢字"),
            ("a\nb\r\tc", r"a\nb\r\tc"),
            ("\x1b[2J\u{7f}\u{9b}", r"\u001b[2J\u007f\u009b"),
            ("a\u{202e}b\u{2028}", r"a\u202eb\u2028"),
        ] {
            assert_eq!(one_line(text), expected);
            let json = format!("\"{}\"", one_line(text));
            let read: String = serde_json::from_str(&json).expect("a string of JSON");
            assert_eq!(read, text);
        }
    }
}

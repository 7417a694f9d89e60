//! Makes external texts one line, safe for terminals. Pure.

use std::{borrow::Cow, fmt::Write as _};

/// Control characters, line ends, and characters that change the direction or position of text.
pub fn is_hidden(c: char) -> bool {
    let moves =
        matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
    c.is_control() || moves
}

/// Escapes each hidden character (`\n`, `\u001b`), so that a JSON string stays one.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden)
}

/// As [`one_line`], for the characters that `which` selects.
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
            // These characters have at most four hex digits.
            _ => {
                let _ = write!(line, "\\u{:04x}", u32::from(c));
            }
        }
    }
    line.into()
}

/// The first of its characters, and a sign where there are more.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
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

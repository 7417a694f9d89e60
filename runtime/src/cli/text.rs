//! Text and numbers for a terminal (folded, cut, cleaned, colored), and messages as JSON. Pure.

use std::borrow::Cow;

use cairn_monitor::log::date_of;
use serde::Serialize;
use serde_json::{Value, json};

pub use crate::one_line::cut;
use crate::one_line::{escaped, is_hidden};

/// Limit of the text of one event.
const LONGEST: usize = 2000;

/// `0.42 ms`, `15.2 ms`, `2.00 s`: three digits, at most nine columns below a day.
pub fn duration(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    match ns {
        0..10_000_000 => format!("{ms:.2} ms"),
        10_000_000..100_000_000 => format!("{ms:.1} ms"),
        100_000_000..1_000_000_000 => format!("{ms:.0} ms"),
        _ => format!("{:.2} s", ms / 1e3),
    }
}

/// `42s`, `7m`, `3h`, `12d`.
pub fn age(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7199 => format!("{}m", seconds / 60),
        7200..=172_799 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// `7 B`, `12.3 MB`: decimal units, as of disks and registries.
pub fn size(bytes: u64) -> String {
    let mut shown = bytes as f64;
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    for unit in ["kB", "MB", "GB"] {
        shown /= 1000.0;
        if shown < 999.95 {
            return format!("{shown:.1} {unit}");
        }
    }
    format!("{:.1} TB", shown / 1000.0)
}

/// The length of ids in crictl, which is sufficient to distinguish them.
pub fn short_id(id: &str) -> &str {
    let hex = id.strip_prefix("sha256:").unwrap_or(id);
    hex.char_indices()
        .nth(13)
        .map_or(hex, |(end, _)| &hex[..end])
}

/// The same JSON, safe for terminals: serde_json leaves U+009B and the like in strings as they are.
pub fn safe_json(json: &str) -> Cow<'_, str> {
    escaped(json, |c| is_hidden(c) && !c.is_ascii_whitespace())
}

/// `2026-11-21 02:51:07.120 UTC` from ns since the epoch.
pub fn date(wall_ns: i64) -> String {
    let ms = wall_ns.div_euclid(1_000_000);
    let (days, ms) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000));
    let [year, month, day] = date_of(days);
    let (h, m, s) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!(
        "{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02}.{:03} UTC",
        ms % 1000
    )
}

/// A message as JSON, with an additional field.
pub fn with(message: &impl Serialize, key: &str, value: impl Into<Value>) -> Value {
    let mut all = json!(message);
    all[key] = value.into();
    all
}

/// Wraps the text in color codes if colors are on.
pub fn painted(code: &str, text: &str, color: bool) -> String {
    if color && !code.is_empty() {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// Replaces hidden characters by spaces: external text must not move the cursor or set colors.
pub fn clean(text: &str) -> String {
    let printable = |c| if is_hidden(c) { ' ' } else { c };
    cut(text, LONGEST).chars().map(printable).collect()
}

pub fn pad(text: &str, columns: usize) -> String {
    let length = text.chars().count();
    if length > columns {
        return cut(text, columns - 1);
    }
    format!("{text}{}", " ".repeat(columns - length))
}

/// The widest cell of each column.
pub fn widths<const N: usize>(rows: &[[String; N]]) -> [usize; N] {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths
}

/// Pads each cell to the width of its column.
pub fn aligned<const N: usize>(rows: &[[String; N]]) -> Vec<[String; N]> {
    let widths = widths(rows);
    let padded = rows.iter().map(|row| {
        std::array::from_fn(|column| {
            let width = widths[column];
            format!("{:width$}", row[column])
        })
    });
    padded.collect()
}

/// The cells of one row with two spaces between, and a newline.
pub fn line(row: &[String]) -> String {
    row.join("  ").trim_end().to_owned() + "\n"
}

/// A line per row.
pub fn lines<const N: usize>(rows: &[[String; N]]) -> String {
    aligned(rows).iter().map(|row| line(row)).collect()
}

/// Breaks `text` at spaces into pieces of at most `width` columns; all but the first begin with
/// `indent` spaces. Longer words are cut.
pub fn fold(text: &str, width: usize, indent: usize) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut used = 0;
    for word in text.split_inclusive(' ') {
        let length = word.trim_end().chars().count();
        if used + length > width && used > indent {
            pieces.push(" ".repeat(indent));
            used = indent;
        }
        for c in word.chars() {
            if used == width {
                if c == ' ' {
                    continue;
                }
                pieces.push(" ".repeat(indent));
                used = indent;
            }
            if let Some(last) = pieces.last_mut() {
                last.push(c);
            }
            used += 1;
        }
    }
    let trimmed = pieces.iter().map(|piece| piece.trim_end().to_owned());
    trimmed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_the_same_and_has_no_hidden_characters() {
        let value = json!({ "a\u{9b}": ["\u{7f}\n\u{202e}", "ü"] });
        for text in [value.to_string(), format!("{value:#}\n")] {
            let safe = safe_json(&text);
            assert!(safe.chars().all(|c| c == '\n' || !is_hidden(c)), "{safe:?}");
            let read: Value = serde_json::from_str(&safe).expect("JSON");
            assert_eq!(read, value);
        }
    }
}

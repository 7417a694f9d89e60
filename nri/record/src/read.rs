//! Reads a recording. Its contents are untrusted.

use std::io::BufRead;

use serde_json::Value;

use super::line::{FORMAT, Header, Line};

/// The longest line, far above a message of 4 MiB as JSON.
const LONGEST_LINE: u64 = 64 << 20;
/// The key that identifies a recording.
const KEY: &str = "nri-recording";

/// A recording, complete or truncated at the recorder's end.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    pub header: Header,
    pub lines: Vec<Line>,
    /// Notes for its reader: truncation and gaps.
    pub notes: Vec<String>,
}

/// Why it is not a valid recording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct Bad {
    pub line: usize,
    pub why: String,
}

/// Whether a text begins like a recording.
pub fn is_recording(text: &[u8]) -> bool {
    let start = text.trim_ascii_start();
    let start = &start[..start.len().min(64)];
    start.starts_with(b"{")
        && start
            .windows(KEY.len())
            .any(|bytes| bytes == KEY.as_bytes())
}

/// Reads a recording to its end.
///
/// # Errors
/// It is not a recording, of another version of the format, or damaged; with the line. A truncated
/// last line is a note.
pub fn read(mut from: impl BufRead) -> Result<Recording, Bad> {
    let first = next_line(&mut from, 1)?.map(|line| line.text);
    let header = header(&first.unwrap_or_default()).map_err(|why| Bad { line: 1, why })?;
    let mut recording = Recording {
        header,
        lines: Vec::new(),
        notes: Vec::new(),
    };
    for number in 2.. {
        let Some(line) = next_line(&mut from, number)? else {
            break;
        };
        match serde_json::from_slice(&line.text) {
            Ok(read) => recording.lines.push(read),
            Err(_) if !line.is_whole => {
                let note = format!("line {number} is cut off: the recording is read up to it");
                recording.notes.push(note);
            }
            Err(e) => {
                let why = format!("not a line of a recording: {}", of_one_line(&e));
                return Err(Bad { line: number, why });
            }
        }
    }
    Ok(recording)
}

struct Text {
    text: Vec<u8>,
    /// Whether it has a line end.
    is_whole: bool,
}

fn next_line(from: &mut impl BufRead, number: usize) -> Result<Option<Text>, Bad> {
    let bad = |why: String| Bad { line: number, why };
    let mut text = Vec::new();
    let mut limited = std::io::Read::take(from, LONGEST_LINE);
    let length = limited.read_until(b'\n', &mut text);
    let length = length.map_err(|e| bad(e.to_string()))?;
    let is_whole = text.ends_with(b"\n");
    if !is_whole && length as u64 == LONGEST_LINE {
        return Err(bad(format!("it is longer than {LONGEST_LINE} bytes")));
    }
    Ok((length > 0).then_some(Text { text, is_whole }))
}

fn header(text: &[u8]) -> Result<Header, String> {
    let none = || format!("not an NRI recording: no first line with {KEY:?}");
    let value: Value = serde_json::from_slice(text).map_err(|_| none())?;
    match value.get(KEY) {
        None => Err(none()),
        Some(version) if version.as_u64() != Some(u64::from(FORMAT)) => Err(format!(
            "a recording of format {version}: this version reads {FORMAT}"
        )),
        Some(_) => serde_json::from_value(value)
            .map_err(|e| format!("not the header of a recording: {}", of_one_line(&e))),
    }
}

/// An error of JSON without its position, which is relative to the line, and without secret or long
/// text.
fn of_one_line(error: &serde_json::Error) -> String {
    let text = error.to_string().replace(['\n', '\r'], " ");
    let text = text.split(" at line ").next().unwrap_or_default();
    text.chars().take(200).collect()
}

//! A span that has ended.

pub type TraceId = [u8; 16];
pub type SpanId = [u8; 8];

/// Longest name, attribute or error that is sent.
const TEXT_MAX: usize = 1024;

/// What a span says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Number(i64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Internal,
    /// A call from outside.
    Server,
}

#[derive(Debug, Clone)]
pub struct Span {
    pub trace: TraceId,
    pub id: SpanId,
    pub parent: Option<SpanId>,
    pub name: String,
    pub kind: Kind,
    /// Nanoseconds since the epoch.
    pub start_ns: u64,
    pub end_ns: u64,
    pub attributes: Vec<(&'static str, Value)>,
    pub error: Option<String>,
}

/// A text that may be anybody's, shortened.
pub fn clipped(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

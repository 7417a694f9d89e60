//! YAML of configurations, annotations and printed messages.

use serde::{Serialize, de::DeserializeOwned};

/// A number with a leading 0 is octal, as in Go's parsers. An error is one line.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut options = serde_saphyr::Options::default();
    options.legacy_octal_numbers = true;
    options.with_snippet = false;
    serde_saphyr::from_str_with_options(text, options).map_err(|e| e.to_string())
}

pub(crate) fn print(value: &impl Serialize) -> Result<String, String> {
    let mut options = serde_saphyr::SerializerOptions::default();
    // Long texts stay on one line.
    options.folded_wrap_chars = usize::MAX;
    serde_saphyr::to_string_with_options(value, options).map_err(|e| e.to_string())
}

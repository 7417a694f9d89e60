//! Parses text to [`File`]: unknown keys are rejected by name and line.

use std::{fs, path::Path};

use super::{error::Error, file::File};

/// Reads a file and rejects unknown keys; [`Config::check`](super::Config::check) follows.
///
/// # Errors
/// The file cannot be read, or the first invalid line.
pub fn read(path: &Path) -> Result<File, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(path, &text)
}

pub(super) fn parse(path: &Path, text: &str) -> Result<File, Error> {
    let refuse = |key: &str, error: &toml::de::Error| Error::Parse {
        path: path.to_owned(),
        message: one_line(text, key, error),
    };
    let document = toml::Deserializer::parse(text).map_err(|error| refuse("", &error))?;
    serde_path_to_error::deserialize(document)
        .map_err(|error| refuse(&error.path().to_string(), error.inner()))
}

fn one_line(text: &str, key: &str, error: &toml::de::Error) -> String {
    let mut message = error.message().replace('\n', " ");
    // The path of an unknown key ends at its table; the message adds the key.
    if !key.is_empty() && key != "." {
        message = format!("{key}: {message}");
    }
    match error.span() {
        Some(span) => {
            let line = text[..span.start].matches('\n').count() + 1;
            format!("line {line}: {message}")
        }
        None => message,
    }
}

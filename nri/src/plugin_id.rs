//! The id of a plugin, index and name, and the check of both at registration. Pure.

use std::{fmt, str::FromStr};

/// The identity of a plugin: `10-foo` in logs, owner tables and metrics.
///
/// Ordered by index, then name; plugins are called in order of the index alone (NRI-402).
/// Identities need not be unique among plugins (NRI-303).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PluginId {
    /// Two ASCII digits.
    pub index: String,
    /// One or more of `A-Z a-z 0-9 _ . + -`.
    pub name: String,
}

/// As text, because `.parse().unwrap()` prints it.
impl fmt::Debug for BadPluginId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An invalid index or name of a plugin.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPluginId {
    #[error("plugin name {0:?}: only letters, digits, '_', '.', '+' and '-' are allowed")]
    Name(String),
    #[error("plugin name of {0} bytes: at most {MAX_NAME} are allowed")]
    NameTooLong(usize),
    #[error("plugin index {0:?}: must be exactly two digits")]
    Index(String),
    #[error("plugin id {0:?}: must be two digits, a dash and a name")]
    Form(String),
}

/// Bytes of a plugin's name, as of a file name. Every owner, metric and log line contains it.
const MAX_NAME: usize = 255;

impl PluginId {
    /// Checks the name, then the index (NRI-301, NRI-302). A name may have 255 bytes.
    pub fn new(index: impl Into<String>, name: impl Into<String>) -> Result<Self, BadPluginId> {
        let (index, name) = (index.into(), name.into());
        if name.len() > MAX_NAME {
            return Err(BadPluginId::NameTooLong(name.len()));
        }
        let in_name = |b: u8| b.is_ascii_alphanumeric() || b"_.+-".contains(&b);
        if name.is_empty() || !name.bytes().all(in_name) {
            return Err(BadPluginId::Name(name));
        }
        if index.len() != 2 || !index.bytes().all(|b| b.is_ascii_digit()) {
            return Err(BadPluginId::Index(index));
        }
        Ok(Self { index, name })
    }
}

impl fmt::Display for PluginId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.index, self.name)
    }
}

impl FromStr for PluginId {
    type Err = BadPluginId;

    /// Parses `NN-name`, as in file names of plugins and owner entries.
    fn from_str(s: &str) -> Result<Self, BadPluginId> {
        let (index, name) = s
            .split_once('-')
            .ok_or_else(|| BadPluginId::Form(s.to_owned()))?;
        Self::new(index, name)
    }
}

//! The lines of a recording.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the format; others are rejected.
pub const FORMAT: u32 = 1;
/// Replaces the value of an environment variable.
pub const REDACTED: &str = "<redacted>";

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    #[serde(rename = "nri-recording")]
    pub format: u32,
    /// The program that wrote it, with its version.
    pub recorder: String,
    /// Start time in UTC: RFC 3339.
    pub began: String,
    pub env: Values,
    /// The runtime, if it wrote the recording itself. Otherwise its Configure identifies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Runtime>,
}

/// A runtime's name and version, as sent to plugins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runtime {
    pub name: String,
    pub version: String,
}

/// Whether the file contains values of environment variables, and bytes that cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Values {
    #[default]
    Redacted,
    Kept,
}

/// The sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    Plugin,
    Runtime,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plugin => "plugin",
            Self::Runtime => "runtime",
        })
    }
}

/// Every line but the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Seconds since the recording began.
    pub at: f64,
    /// Number of the plugin's connection, from 1; 0 is the recording itself.
    pub connection: u64,
    /// `NN-name`, from its registration on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<String>,
    #[serde(flatten)]
    pub what: What,
}

/// The contents of a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase")]
pub enum What {
    /// A plugin has connected.
    Opened,
    Request {
        from: Side,
        /// Id of the call on its connection; the answer has the same.
        id: u32,
        service: String,
        method: String,
        /// The caller's time limit in seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout: Option<f64>,
        /// Metadata of the call.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        metadata: BTreeMap<String, String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Value>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unread: Option<Unread>,
    },
    Answer {
        from: Side,
        id: u32,
        service: String,
        method: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Value>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Failure>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unread: Option<Unread>,
    },
    /// Bytes that are neither a request nor an answer to one.
    Unread { from: Side, unread: Unread },
    /// This side sends no further bytes; both sides if none is named.
    Closed {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Side>,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        why: String,
    },
    /// The disk was slower than the traffic: this number of lines is missing here.
    Dropped { lines: u64 },
    /// The recording was ended; missing if the recorder was killed.
    Ended {
        #[serde(default, skip_serializing_if = "String::is_empty")]
        why: String,
    },
}

/// An error instead of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub code: i32,
    #[serde(default)]
    pub message: String,
}

/// Bytes that do not parse as NRI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    pub why: String,
    pub bytes: usize,
    /// The bytes, if values are kept: unparsed bytes cannot be redacted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

/// Time since the epoch as RFC 3339, with milliseconds.
pub(super) fn utc(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days from the first of March of the year 0, in eras of 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let millis = since_epoch.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_the_one_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.007Z"),
            (951_782_400, "2000-02-29T00:00:00.007Z"),
            (4_107_542_399, "2100-02-28T23:59:59.007Z"),
            (4_107_542_400, "2100-03-01T00:00:00.007Z"),
        ] {
            let time = Duration::from_secs(seconds) + Duration::from_millis(7);
            assert_eq!(utc(time), text);
        }
    }
}

//! Small values of scenarios: durations, bounded numbers, overlaid tables.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

/// Pods that `join` and `churn` may request.
const MOST: u32 = 100_000;

/// The text of a duration; another type is rejected with an example.
#[derive(Debug)]
pub(super) struct DurationText(pub String);

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl de::Visitor<'_> for Text {
            type Value = DurationText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"100ms\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<DurationText, E> {
                Ok(DurationText(text.to_owned()))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

pub(super) fn not_a_duration(text: &str) -> String {
    format!("{text:?}: must be a number and us, ms or s")
}

pub(super) fn duration(text: &str) -> Option<Duration> {
    let at = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..at].parse().ok()?;
    match &text[at..] {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

pub(super) fn bounded(given: Option<u32>, usual: u32) -> Result<u32, String> {
    match given.unwrap_or(usual) {
        fits @ 0..=MOST => Ok(fits),
        more => Err(format!("{more} is more than {MOST}")),
    }
}

/// Overlays `given` on `whole`: tables key by key, other values replaced.
pub(super) fn lay_over(whole: &mut Value, given: Value) {
    match (whole, given) {
        (Value::Object(whole), Value::Object(given)) => {
            for (key, value) in given {
                lay_over(whole.entry(key).or_insert(Value::Null), value);
            }
        }
        (whole, given) => *whole = given,
    }
}

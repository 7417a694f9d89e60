//! Durations and sizes as in `500ms`, `5m`; `512MiB`, `64GiB`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error};

/// Splits a number from its unit.
fn split(text: &str) -> Option<(u64, &str)> {
    let at = text.find(|c: char| !c.is_ascii_digit())?;
    Some((text[..at].parse().ok()?, &text[at..]))
}

/// Durations are written as in Go: `500ms`, `2s`, `5m`, `1h`.
fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        "h" => number.checked_mul(3600).map(Duration::from_secs),
        _ => None,
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let unit = match unit {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(unit)
}

pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).ok_or_else(|| {
        D::Error::custom(format!(
            "\"{text}\": invalid duration (must be a whole number followed by ms, s, m or h)"
        ))
    })
}

pub(super) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_size(&text).ok_or_else(|| {
        D::Error::custom(format!(
            "\"{text}\" is not a size; write a whole number and KiB, MiB, GiB or TiB"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_in_go() {
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("5m"), Some(Duration::from_secs(300)));
        for bad in ["", "5", "ms", "5 s", "-1s", "99999999999999999999h"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_have_a_binary_unit() {
        assert_eq!(parse_size("0MiB"), Some(0));
        assert_eq!(parse_size("64GiB"), Some(64 << 30));
        for bad in ["", "5", "GiB", "5 GiB", "5GB", "-1MiB", "99999999999TiB"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }
}

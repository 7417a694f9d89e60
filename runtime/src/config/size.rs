//! Sizes as people write them: `512MiB`, `64GiB`.

use serde::{Deserialize, Deserializer};

fn parse_size(text: &str) -> Option<u64> {
    let at = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..at].parse().ok()?;
    let unit = match &text[at..] {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(unit)
}

pub fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_size(&text).ok_or_else(|| {
        serde::de::Error::custom(format!(
            "\"{text}\" is no size; write a whole number and KiB, MiB, GiB or TiB"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_binary_unit() {
        assert_eq!(parse_size("0MiB"), Some(0));
        assert_eq!(parse_size("64GiB"), Some(64 << 30));
        for bad in ["", "5", "GiB", "5 GiB", "5GB", "-1MiB", "99999999999TiB"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }
}

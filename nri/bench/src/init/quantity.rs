//! Quantities of Kubernetes: `250m`, `1.5`, `64Mi`, `1G`, `1e3`.

/// In thousandths, rounded up as Kubernetes does.
pub(super) fn milli(text: &str) -> Option<i64> {
    let exponent = |text: &str| text.trim_start_matches(['e', 'E']).parse::<i32>().ok();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let number: f64 = number.parse().ok()?;
    let factor = match suffix {
        "m" => 0.001,
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "Ki" => 1024.0,
        "Mi" => 1024f64.powi(2),
        "Gi" => 1024f64.powi(3),
        "Ti" => 1024f64.powi(4),
        "Pi" => 1024f64.powi(5),
        other if other.starts_with(['e', 'E']) => 10f64.powi(exponent(other)?),
        _ => return None,
    };
    let value = (number * factor * 1000.0).ceil();
    #[expect(clippy::cast_possible_truncation, reason = "bounded by the line above")]
    (value.is_finite() && value < 9e18).then_some(value as i64)
}

/// In whole units, rounded up.
pub(super) fn whole(text: &str) -> Option<i64> {
    milli(text).map(|milli| milli.div_euclid(1000) + i64::from(milli % 1000 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("250m", Some(250)),
            ("1", Some(1000)),
            ("1.5", Some(1500)),
            ("0.1", Some(100)),
            ("2k", Some(2_000_000)),
            ("1e3", Some(1_000_000)),
            ("1Ki", Some(1_024_000)),
            ("", None),
            ("x", None),
            ("1Q", None),
        ] {
            assert_eq!(milli(text), expected, "{text}");
        }
        assert_eq!(whole("64Mi"), Some(64 << 20));
        assert_eq!(whole("1m"), Some(1));
    }
}

//! Pure conversions between OCI numbers and the texts of cgroup files.

/// v2 `cpu.weight` for v1 shares, by the current curve of runc and crun: it maps the least, the
/// default and the greatest shares (2, 1024, 262144) to 1, 100 and 10000 (CRI-230). `None` for 0,
/// which means "not set".
pub(super) fn weight_from_shares(shares: u64) -> Option<u64> {
    match shares {
        0 => None,
        1..=2 => Some(1),
        262_144.. => Some(10_000),
        _ => {
            let log = (shares as f64).log2();
            let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
            // The small decrement keeps 10^2 from becoming 101 by the last bit of a float.
            let weight = (10_f64.powf(exponent) - 1e-9).ceil() as u64;
            Some(weight.clamp(1, 10_000))
        }
    }
}

/// v2 text of a byte or count limit; negative means unlimited.
pub(super) fn max_or(value: i64) -> String {
    if value < 0 {
        "max".to_owned()
    } else {
        value.to_string()
    }
}

/// A limit as read back: `max`, or more than any machine has (v1's form), means unlimited.
pub(super) fn parse_limit(text: &str) -> Option<u64> {
    let value: u64 = text.trim().parse().ok()?;
    (value < 1 << 62).then_some(value)
}

/// The two numbers of `cpu.max`: quota (`None` if unlimited) and period, in µs.
pub(super) fn parse_cpu_max(text: &str) -> Option<(Option<u64>, u64)> {
    let mut words = text.split_whitespace();
    let quota = words.next()?.parse().ok();
    Some((quota, words.next()?.parse().ok()?))
}

/// A page size as in cgroup file names (`2MB`, `1GB`, `64KB`): digits and a unit, so that it cannot
/// name another file.
pub(super) fn is_page_size(text: &str) -> bool {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_uppercase());
    let unit = &text[digits.len()..];
    !digits.is_empty()
        && digits.len() <= 6
        && digits.bytes().all(|b| b.is_ascii_digit())
        && matches!(unit, "KB" | "MB" | "GB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_curve_meets_least_default_and_greatest_shares() {
        let pairs = [
            (2, 1),
            (1024, 100),
            (262_144, 10_000),
            (1, 1),
            (1 << 40, 10_000),
        ];
        for (shares, weight) in pairs {
            assert_eq!(weight_from_shares(shares), Some(weight), "{shares}");
        }
        assert_eq!(weight_from_shares(0), None);
    }

    #[test]
    fn limits_read_back_as_the_kernel_writes_them() {
        assert_eq!(parse_limit("max\n"), None);
        assert_eq!(parse_limit("9223372036854771712\n"), None);
        assert_eq!(parse_limit("4096\n"), Some(4096));
        assert_eq!(parse_cpu_max("max 100000\n"), Some((None, 100_000)));
        assert_eq!(parse_cpu_max("5000 100000"), Some((Some(5000), 100_000)));
    }

    #[test]
    fn a_page_size_cannot_name_another_file() {
        for good in ["2MB", "1GB", "64KB"] {
            assert!(is_page_size(good));
        }
        for bad in ["", "MB", "2", "2mb", "../2MB", "2MB/x", "2é", "1234567MB"] {
            assert!(!is_page_size(bad), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn more_shares_never_weigh_less(a in 2_u64..300_000, b in 2_u64..300_000) {
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!(weight_from_shares(low) <= weight_from_shares(high));
        }

        #[test]
        fn any_text_is_checked_without_panic(text in "\\PC{0,20}") {
            let _ = (is_page_size(&text), parse_cpu_max(&text), parse_limit(&text));
        }
    }
}

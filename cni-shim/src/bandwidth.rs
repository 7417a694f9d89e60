//! Bandwidth limits of pods: parsed from annotations (CRI-520), in the form of CNI plugins. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";
/// The accepted range, 1k to 1P bits per second, as in other runtimes.
const RATES: std::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000_000;

/// In bits per second, and bits; 0 is unlimited. Some runtimes capitalize the keys, as Go accepts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Limits {
    pub(crate) ingress_rate: u64,
    pub(crate) egress_rate: u64,
}

impl Limits {
    /// The limits in a pod's annotations, without bursts; `None` without such annotations.
    pub(crate) fn of(annotations: &BTreeMap<String, String>) -> Result<Option<Self>, String> {
        let rate = |annotation: &str| {
            let Some(text) = annotations.get(annotation) else {
                return Ok(0);
            };
            bits_per_second(text).ok_or_else(|| {
                let shown: String = text.chars().take(64).collect();
                format!("annotation {annotation}: invalid quantity {shown:?} (must be 1k to 1P)")
            })
        };
        let limits = Self {
            ingress_rate: rate(INGRESS)?,
            egress_rate: rate(EGRESS)?,
        };
        Ok((limits != Self::default()).then_some(limits))
    }

    /// As other runtimes ask plugins for them: with a burst that limits nothing.
    pub(crate) fn for_plugins(self) -> Value {
        let of = |way: &str, rate: u64| {
            let keys = [("Rate", rate), ("Burst", u32::MAX.into())];
            keys.map(|(key, value)| (format!("{way}{key}"), Value::from(value)))
        };
        let mut asked = Map::new();
        for (way, rate) in [("ingress", self.ingress_rate), ("egress", self.egress_rate)] {
            if rate > 0 {
                asked.extend(of(way, rate));
            }
        }
        Value::Object(asked)
    }
}

/// Parses a Kubernetes quantity, rounded up likewise: decimal digits with an optional sign and
/// fraction, a suffix (`k`, `Mi`, `m`…) or an exponent (`e6`). `None` outside of [`RATES`].
fn bits_per_second(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let number_end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let (factor, exponent) = scale(suffix)?;
    let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = [integer, fraction].concat();
    // No rate in range has more digits; the rest of the arithmetic then cannot overflow.
    if digits.is_empty() || digits.len() > 18 || fraction.contains('.') {
        return None;
    }
    let exact = digits.parse::<u128>().ok()?.checked_mul(factor)?;
    let exponent = exponent - i32::try_from(fraction.len()).ok()?;
    let power = 10u128.checked_pow(exponent.unsigned_abs())?;
    let rate = if exponent < 0 {
        exact.div_ceil(power)
    } else {
        exact.checked_mul(power)?
    };
    u64::try_from(rate).ok().filter(|rate| RATES.contains(rate))
}

/// The factor of a suffix: a power of two, and the exponent of a power of ten.
fn scale(suffix: &str) -> Option<(u128, i32)> {
    let position = |suffixes: &[&str]| suffixes.iter().position(|one| *one == suffix);
    // By position: 10^-9, 10^-6, …
    if let Some(thousands) = position(&["n", "u", "m", "", "k", "M", "G", "T", "P", "E"]) {
        return Some((1, 3 * thousands as i32 - 9));
    }
    // By position: 2^0 (matched above), 2^10, …
    if let Some(kibis) = position(&["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]) {
        return Some((1 << (10 * kibis), 0));
    }
    let digits = suffix.strip_prefix(['e', 'E'])?;
    let plain = digits.strip_prefix(['+', '-']).unwrap_or(digits);
    let number = !plain.is_empty() && plain.bytes().all(|b| b.is_ascii_digit());
    let exponent = (number && plain.len() <= 2).then(|| digits.parse().ok());
    Some((1, exponent.flatten()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, rate) in [
            ("10M", Some(10_000_000)),
            ("+10M", Some(10_000_000)),
            ("1.5G", Some(1_500_000_000)),
            (".5M", Some(500_000)),
            ("2.M", Some(2_000_000)),
            ("64Ki", Some(65_536)),
            ("1e6", Some(1_000_000)),
            ("1.5E+3", Some(1_500)),
            ("5E", None),
            ("15000e-1", Some(1_500)),
            ("1000500m", Some(1_001)),
            ("1000", Some(1_000)),
            ("1P", Some(1_000_000_000_000_000)),
            ("999", None),
            ("2P", None),
            ("1Pi", None),
            ("-1k", None),
            ("1.2.3M", None),
            ("M", None),
            (".", None),
            ("", None),
            (" 1M", None),
            ("1 M", None),
            ("1m", None),
            ("1K", None),
            ("1e", None),
            ("1e+", None),
            ("1e999", None),
            ("1e--3", None),
            ("10Mbit", None),
            ("99999999999999999999999k", None),
        ] {
            assert_eq!(bits_per_second(text), rate, "{text}");
        }
    }

    #[test]
    fn an_invalid_quantity_is_rejected_with_the_annotations_name() {
        let with = |value: &str| Limits::of(&[(EGRESS.to_owned(), value.to_owned())].into());
        assert_eq!(
            with("10mbps").expect_err("is no quantity"),
            "annotation kubernetes.io/egress-bandwidth: invalid quantity \"10mbps\" (must be 1k to 1P)"
        );
        let hostile = with(&"9\n".repeat(5000)).expect_err("is no quantity");
        assert!(hostile.len() < 300 && !hostile.contains('\n'), "{hostile}");
        let limits = with("1M").expect("is valid").expect("is one");
        assert_eq!(
            limits.for_plugins(),
            serde_json::json!({"egressRate": 1_000_000, "egressBurst": u32::MAX})
        );
        assert_eq!(Limits::of(&BTreeMap::new()), Ok(None));
    }

    proptest! {
        #[test]
        fn no_annotation_panics(text in "\\PC{0,40}") {
            let _ = bits_per_second(&text);
        }

        #[test]
        fn no_quantity_panics(text in "[+-]?[0-9.]{0,25}(m|u|n|k|Ki|Ei|E|P|[eE][+-]?[0-9]{0,4})?") {
            if let Some(rate) = bits_per_second(&text) {
                prop_assert!(RATES.contains(&rate));
            }
        }
    }
}

//! Whether one message contains the values that another expects.
//!
//! Fields at their default expect nothing in a message; in JSON every key expects its value. Every
//! entry of a map and every message of a list must be present, besides others; a list of plain
//! values (`args`, the `options` of a mount) must be equal.

use std::fmt;

use nri::proto::{ContainerAdjustment, Field};
use serde::Serialize;
use serde_json::Value;

use nri::{
    Created,
    mask::FieldMask,
    place::{Place, place},
};

/// A missing expected value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// As in [`place::path`](nri::place::path): `linux.resources.memory.limit`,
    /// `env["DEMO"].value`.
    pub path: String,
    pub expected: Value,
    /// `None`: no value.
    pub found: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            expected,
            found,
        } = self;
        write!(f, "{path}: expected {}, found ", bare(expected))?;
        match found {
            Some(found) => write!(f, "{}", bare(found)),
            None => f.write_str("nothing"),
        }
    }
}

/// The value of a wrapper, or the value itself.
fn bare(value: &Value) -> &Value {
    match value
        .as_object()
        .map(|fields| (fields.len(), fields.get("value")))
    {
        Some((1, Some(bare))) => bare,
        _ => value,
    }
}

/// The values of `expected` that `found` lacks.
pub fn differences<T: Serialize>(expected: &T, found: &T) -> Vec<Difference> {
    let mut all = Vec::new();
    compare("", &json(expected), Some(&json(found)), false, &mut all);
    all
}

/// As [`differences`], of messages as JSON, with the snake-case field names of `nri.proto`.
pub fn includes(expected: &Value, found: &Value) -> Vec<Difference> {
    let mut all = Vec::new();
    compare("", expected, Some(found), true, &mut all);
    all
}

/// Fails with all values of `wanted` that plugins did not adjust, one per line.
///
/// ```compile_fail
/// # fn test(created: nri::Created, wanted: nri::proto::ContainerAdjustment) {
/// // Exchanged arguments are no test.
/// nri_testing::assert_has(&wanted, &created);
/// # }
/// ```
///
/// # Panics
/// If there is any.
#[track_caller]
pub fn assert_has(created: &Created, wanted: &ContainerAdjustment) {
    assert_none(&differences(wanted, &created.merged.adjust));
}

/// As [`assert_has`], and with all other adjustments of plugins. For no change:
/// `&Default::default()`.
///
/// # Panics
/// If there is any.
#[track_caller]
pub fn assert_only(created: &Created, wanted: &ContainerAdjustment) {
    let found = &created.merged.adjust;
    let mut all = differences(wanted, found);
    for more in differences(found, wanted) {
        all.push(Difference {
            path: more.path,
            expected: more.found.unwrap_or_default(),
            found: Some(more.expected),
        });
    }
    assert_none(&all);
}

#[track_caller]
fn assert_none(all: &[Difference]) {
    let lines: Vec<_> = all.iter().map(ToString::to_string).collect();
    assert!(all.is_empty(), "{}", lines.join("\n"));
}

fn json<T: Serialize>(message: &T) -> Value {
    serde_json::to_value(message).unwrap_or_default()
}

/// Whether nothing is expected: the default of its kind.
fn is_default(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        // A present empty message has a meaning, such as "no limit"; one with default fields
        // expects only its presence.
        Value::Object(_) => false,
    }
}

/// `written`: each key of `expected` is compared, even at its default.
fn compare(
    path: &str,
    expected: &Value,
    found: Option<&Value>,
    written: bool,
    all: &mut Vec<Difference>,
) {
    let differs = || Difference {
        path: path.to_owned(),
        expected: expected.clone(),
        found: found.filter(|found| !found.is_null()).cloned(),
    };
    match (expected, found) {
        (_, None | Some(Value::Null)) => {
            if written || !is_empty(expected) {
                all.push(differs());
            }
        }
        (Value::Object(expected), Some(Value::Object(found))) => {
            // The field of a wrapper is compared, even if it is 0, false or "".
            let wrapper = expected.len() == 1 && expected.contains_key("value");
            for (key, expected) in expected {
                let path = if wrapper {
                    path.to_owned()
                } else {
                    below(path, key)
                };
                match found.get(key) {
                    // A message always has its fields, so this is an entry of a map.
                    None => all.push(Difference {
                        path,
                        expected: expected.clone(),
                        found: None,
                    }),
                    found if written || wrapper || !is_default(expected) => {
                        compare(&path, expected, found, written, all);
                    }
                    Some(_) => {}
                }
            }
        }
        (Value::Array(wanted), Some(Value::Array(there)))
            if !wanted.is_empty() && wanted.iter().all(Value::is_object) =>
        {
            let is_there = |wanted: &Value, there: &Value| {
                let mut all = Vec::new();
                compare("", wanted, Some(there), written, &mut all);
                all.is_empty()
            };
            for wanted in wanted {
                if !there.iter().any(|there| is_there(wanted, there)) {
                    let key = key_of(wanted);
                    let path = key.map_or(path.to_owned(), |(_, key)| format!("{path}[{key}]"));
                    let same = there
                        .iter()
                        .find(|there| key.is_some() && key_of(there) == key);
                    match same {
                        Some(there) => compare(&path, wanted, Some(there), written, all),
                        None => all.push(Difference {
                            path,
                            expected: wanted.clone(),
                            found: None,
                        }),
                    }
                }
            }
        }
        (expected, Some(found)) if expected == found => {}
        _ => all.push(differs()),
    }
}

/// Whether a message has no field set.
fn is_empty(value: &Value) -> bool {
    match value {
        // The field of a wrapper counts, even if it is 0.
        Value::Object(fields) if fields.len() == 1 && fields.contains_key("value") => false,
        Value::Object(fields) => fields.values().all(is_empty),
        other => is_default(other),
    }
}

/// The key of a message in a list, and its name: messages with equal keys describe the same mount,
/// device, variable or limit.
fn key_of(message: &Value) -> Option<(&'static str, &Value)> {
    let keys = ["container_id", "destination", "path", "key", "type", "name"];
    keys.iter().find_map(|key| Some((*key, message.get(*key)?)))
}

fn below(path: &str, key: &str) -> String {
    let is_map = |field: Field| matches!(place(field), Some(Place::Map(at)) if at[1..].replace('/', ".") == path);
    match path {
        "" => key.to_owned(),
        path if FieldMask::ALL.iter().any(is_map) => format!("{path}[{key:?}]"),
        path => format!("{path}.{key}"),
    }
}

#[cfg(test)]
mod tests {
    use nri::{
        adjust::{Adjust, SetResources},
        proto::{ContainerAdjustment, Mount},
    };
    use serde_json::json;

    use super::*;

    fn lines(expected: Value, found: Value) -> Vec<String> {
        let all = includes(&expected, &found);
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_is_not_asked_for_may_be_there() {
        let mut found = ContainerAdjustment::default();
        found.add_env("A", "1").add_env("B", "2").memory_limit(7);
        let mut wanted = ContainerAdjustment::default();
        wanted.add_env("B", "2");
        assert_eq!(differences(&wanted, &found), []);
        assert_eq!(differences(&ContainerAdjustment::default(), &found), []);
    }

    #[test]
    fn a_default_that_is_written_in_json_is_asked_for() {
        let env = |value: &str| json!({"env": [{"key": "A", "value": value}]});
        assert_eq!(
            lines(env(""), env("1")),
            ["env[\"A\"].value: expected \"\", found \"1\""]
        );
        let options = json!({"mounts": [{"destination": "/a", "options": []}]});
        assert_eq!(lines(options.clone(), options).len(), 0);
        assert_eq!(
            lines(json!({"args": []}), json!({"args": ["sh"]})),
            ["args: expected [], found [\"sh\"]"]
        );
    }

    #[test]
    fn a_wrong_value_is_named_by_its_path_and_a_missing_one_as_nothing() {
        let env = |value: &str| json!({"env": [{"key": "A", "value": value}]});
        assert_eq!(
            lines(env("1"), env("2")),
            ["env[\"A\"].value: expected \"1\", found \"2\""]
        );
        assert_eq!(
            lines(env("1"), json!({"env": []})),
            ["env[\"A\"]: expected {\"key\":\"A\",\"value\":\"1\"}, found nothing"]
        );
    }

    #[test]
    fn lists_of_plain_values_must_be_the_same() {
        let mount = |options: &[&str]| Mount {
            destination: "/a".into(),
            options: options.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        assert!(differences(&mount(&["ro"]), &mount(&["ro"])).is_empty());
        assert_eq!(
            differences(&mount(&["ro"]), &mount(&["ro", "rbind"])).len(),
            1
        );
        assert!(differences(&mount(&[]), &mount(&["ro"])).is_empty());
    }

    #[test]
    fn a_wrapper_around_nothing_is_asked_for_all_the_same() {
        let limit = |value: Value| json!({"limit": value});
        assert!(lines(limit(json!({"value": 0})), limit(json!({"value": 0}))).is_empty());
        assert_eq!(
            lines(limit(json!({"value": 0})), limit(json!({"value": 5}))),
            ["limit: expected 0, found 5"]
        );
        assert_eq!(
            lines(limit(json!({"value": 5})), limit(Value::Null)).len(),
            1
        );
    }

    #[test]
    fn an_empty_entry_of_a_map_must_be_there() {
        let map = |value: Value| json!({"annotations": value});
        assert_eq!(
            lines(map(json!({"a": ""})), map(json!({}))),
            ["annotations[\"a\"]: expected \"\", found nothing"]
        );
        assert!(lines(map(json!({"a": ""})), map(json!({"a": ""}))).is_empty());
    }
}

//! Whether one message holds what another asks for.
//!
//! What an expectation leaves at its default is not asked for (an empty value in a map: only the entry is). Every entry of a map and every message of a list must be
//! there, whatever else is; a list of plain values (`args`, the `options` of a mount) must be the same.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// Something expected that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Such as `linux.resources.memory.limit.value`.
    pub path: String,
    pub expected: Value,
    /// `None`: nothing is there.
    pub found: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            expected,
            found,
        } = self;
        write!(f, "{path}: expected {expected}, found ")?;
        match found {
            Some(found) => write!(f, "{found}"),
            None => f.write_str("nothing"),
        }
    }
}

/// What `expected` asks for and `found` does not have.
pub fn differences<T: Serialize>(expected: &T, found: &T) -> Vec<Difference> {
    let json = |message| serde_json::to_value(message).unwrap_or_default();
    includes(&json(expected), &json(found))
}

/// As [`differences`], of messages as JSON: by the names of the fields in `nri.proto`, in snake case.
pub fn includes(expected: &Value, found: &Value) -> Vec<Difference> {
    let mut all = Vec::new();
    compare("", expected, Some(found), &mut all);
    all
}

/// Fails with every difference, a line each.
///
/// # Panics
/// If there is any.
#[track_caller]
pub fn assert_includes<T: Serialize>(expected: &T, found: &T) {
    let all = differences(expected, found);
    let lines: Vec<_> = all.iter().map(ToString::to_string).collect();
    assert!(all.is_empty(), "{}", lines.join("\n"));
}

/// Whether nothing is asked for: the default of its kind.
fn is_default(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        // An empty message that is there says something, such as "no limit"; one with fields at their default asks for
        // nothing but itself.
        Value::Object(_) => false,
    }
}

fn compare(path: &str, expected: &Value, found: Option<&Value>, all: &mut Vec<Difference>) {
    let differs = || Difference {
        path: path.to_owned(),
        expected: expected.clone(),
        found: found.filter(|found| !found.is_null()).cloned(),
    };
    match (expected, found) {
        (_, None | Some(Value::Null)) => {
            if !is_empty(expected) {
                all.push(differs());
            }
        }
        (Value::Object(expected), Some(Value::Object(found))) => {
            // The one field of a wrapper is meant, also where it is 0, false or "".
            let wrapper = expected.len() == 1 && expected.contains_key("value");
            for (key, expected) in expected {
                let path = below(path, key);
                match found.get(key) {
                    // A message's fields are always there: this is an entry of a map.
                    None => all.push(Difference {
                        path,
                        expected: expected.clone(),
                        found: None,
                    }),
                    found if wrapper || !is_default(expected) => {
                        compare(&path, expected, found, all);
                    }
                    Some(_) => {}
                }
            }
        }
        (Value::Array(wanted), Some(Value::Array(there)))
            if wanted.iter().all(Value::is_object) =>
        {
            for wanted in wanted {
                if !there.iter().any(|there| includes(wanted, there).is_empty()) {
                    let same = there.iter().find(|there| same_key(wanted, there));
                    match same {
                        Some(there) => compare(path, wanted, Some(there), all),
                        None => all.push(Difference {
                            path: path.to_owned(),
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

/// What a message holds that has nothing set.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().all(is_empty),
        other => is_default(other),
    }
}

/// Messages of a list that speak of the same thing: the same mount, device, variable or limit.
fn same_key(one: &Value, other: &Value) -> bool {
    let keys = ["container_id", "destination", "path", "key", "type", "name"];
    let key = keys.iter().find(|key| one.get(**key).is_some());
    key.is_some_and(|key| one.get(*key) == other.get(*key))
}

fn below(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
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
        assert_includes(&wanted, &found);
        assert_includes(&ContainerAdjustment::default(), &found);
    }

    #[test]
    fn a_wrong_value_is_named_by_its_path_and_a_missing_one_as_nothing() {
        let env = |value: &str| json!({"env": [{"key": "A", "value": value}]});
        assert_eq!(
            lines(env("1"), env("2")),
            ["env.value: expected \"1\", found \"2\""]
        );
        assert_eq!(
            lines(env("1"), json!({"env": []})),
            ["env: expected {\"key\":\"A\",\"value\":\"1\"}, found nothing"]
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
            ["limit.value: expected 0, found 5"]
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
            ["annotations.a: expected \"\", found nothing"]
        );
        assert!(lines(map(json!({"a": ""})), map(json!({"a": ""}))).is_empty());
    }
}

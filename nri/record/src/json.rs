//! Messages as JSON: without default values, and without values of environment variables. Pure.

use serde_json::Value;

use super::line::REDACTED;

/// The map fields of `nri.proto`: their keys are data, and stay with any value.
const MAPS: [&str; 8] = [
    "annotations",
    "compound",
    "labels",
    "net_devices",
    "owners",
    "simple",
    "sysctl",
    "unified",
];
/// The field of environment variables, in containers, adjustments and hooks alike.
const ENV: &str = "env";

/// Whether the field of this name is a map: its keys are data instead of field names.
pub fn is_map(name: &str) -> bool {
    MAPS.contains(&name)
}

/// Removes default values; a present message stays, at least as `{}`.
pub fn tidy(message: &mut Value) {
    tidy_below(message, false);
}

fn tidy_below(value: &mut Value, of_map: bool) {
    match value {
        Value::Object(fields) => {
            if !of_map {
                fields.retain(|_, value| !is_default(value));
            }
            for (key, value) in fields {
                tidy_below(value, !of_map && is_map(key));
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|v| tidy_below(v, false)),
        _ => {}
    }
}

/// Whether it is the default of its kind, which a message may omit.
pub fn is_default(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        // An empty map: a message has all its fields until they are removed.
        Value::Object(o) => o.is_empty(),
    }
}

/// Replaces every value of an environment variable by [`REDACTED`]. An empty value stays.
pub fn redact(message: &mut Value) {
    match message {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    // In a map the value of this key is a text, never a list.
                    Value::Array(list) if key == ENV => list.iter_mut().for_each(redact_variable),
                    value => redact(value),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(redact),
        _ => {}
    }
}

fn redact_variable(variable: &mut Value) {
    match variable {
        Value::String(text) => match text.split_once('=') {
            Some((_, "")) => {}
            Some((name, _)) => *text = format!("{name}={REDACTED}"),
            // Not a variable, so its contents are unknown.
            None => *text = REDACTED.to_owned(),
        },
        Value::Object(pair) => match pair.get_mut("value") {
            Some(Value::String(value)) if !value.is_empty() => *value = REDACTED.to_owned(),
            _ => {}
        },
        _ => {}
    }
}

/// Map entries with an empty value: Go writes two bytes more for each than prost.
pub(super) fn empty_map_values(message: &Value) -> usize {
    count_below(message, false)
}

fn count_below(value: &Value, of_map: bool) -> usize {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| {
                let empty = of_map && value.as_str() == Some("");
                usize::from(empty) + count_below(value, !of_map && is_map(key))
            })
            .sum(),
        Value::Array(list) => list.iter().map(|v| count_below(v, false)).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_said_stays_also_if_it_is_empty() {
        let mut message = json!({
            "id": "c", "name": "", "pid": 0, "args": [], "user": null,
            "labels": {"kept": "", "env": "prod"}, "annotations": {},
            "linux": {"cgroups_path": "", "oom_score_adj": {"value": 0}},
            "mounts": [{"destination": "/x", "options": []}, {"destination": ""}],
        });
        tidy(&mut message);
        assert_eq!(
            message,
            json!({
                "id": "c", "labels": {"kept": "", "env": "prod"},
                "linux": {"oom_score_adj": {}},
                "mounts": [{"destination": "/x"}, {}],
            })
        );
    }

    #[test]
    fn values_of_variables_go_and_their_names_stay() {
        let mut message = json!({
            "container": {"env": ["A=secret=1", "EMPTY=", "secret"], "labels": {"env": "prod"}},
            "adjust": {
                "env": [{"key": "B", "value": "secret"}, {"key": "-C", "value": ""}],
                "hooks": {"prestart": [{"path": "/h", "env": ["D=secret"]}]},
            },
        });
        redact(&mut message);
        assert_eq!(
            message,
            json!({
                "container": {"env": ["A=<redacted>", "EMPTY=", "<redacted>"], "labels": {"env": "prod"}},
                "adjust": {
                    "env": [{"key": "B", "value": "<redacted>"}, {"key": "-C", "value": ""}],
                    "hooks": {"prestart": [{"path": "/h", "env": ["D=<redacted>"]}]},
                },
            })
        );
    }
}

//! Compares two messages by meaning: values by path, without their order. Pure.

use std::collections::BTreeMap;

use nri::EventMask;
use nri_record::json::is_map;
use serde::Serialize;
use serde_json::Value;

/// One place where two answers differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Difference {
    /// Such as `adjust.env["NAME"]`.
    pub path: String,
    /// The recorded value; `None`: absent.
    pub recorded: Option<String>,
    /// The value answered now.
    pub now: Option<String>,
}

/// Every difference, by path.
pub(crate) fn differences(recorded: &Value, now: &Value) -> Vec<Difference> {
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    flatten("", recorded, "", false, &mut before);
    flatten("", now, "", false, &mut after);
    let mut paths: Vec<&String> = before.keys().chain(after.keys()).collect();
    paths.sort_unstable();
    paths.dedup();
    let all = paths.into_iter().map(|path| Difference {
        path: path.replace(char::is_control, "?"),
        recorded: before.get(path).cloned(),
        now: after.get(path).cloned(),
    });
    all.filter(|d| d.recorded != d.now).collect()
}

/// The key of a list's elements.
fn key_of(list: &str) -> Option<&'static str> {
    Some(match list {
        "env" => "key",
        "mounts" => "destination",
        "devices" => "path",
        "cdi_devices" => "name",
        "rlimits" | "namespaces" => "type",
        "hugepage_limits" => "page_size",
        "update" | "evict" | "failed" => "container_id",
        _ => return None,
    })
}

fn flatten(
    path: &str,
    value: &Value,
    name: &str,
    of_map: bool,
    leaves: &mut BTreeMap<String, String>,
) {
    match value {
        Value::Object(fields) => {
            let keys_are_data = !of_map && is_map(name);
            if let (false, 1, Some(bare)) = (keys_are_data, fields.len(), fields.get("value")) {
                // A wrapper is compared by presence.
                return flatten(path, bare, name, false, leaves);
            }
            if fields.is_empty() && !path.is_empty() {
                leaves.insert(path.to_owned(), "{}".to_owned());
            }
            for (key, value) in fields {
                let below = match (keys_are_data, path) {
                    (true, _) => format!("{path}[{key:?}]"),
                    (false, "") => key.clone(),
                    (false, _) => format!("{path}.{key}"),
                };
                flatten(&below, value, key, keys_are_data, leaves);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            let mut seen = BTreeMap::<String, usize>::new();
            for (at, element) in list.iter().enumerate() {
                let key = key_of(name).and_then(|key| element.get(key)?.as_str());
                let mut below = match key {
                    Some(key) => format!("{path}[{key:?}]"),
                    None => format!("{path}[{at}]"),
                };
                let times = seen.entry(below.clone()).or_default();
                *times += 1;
                if *times > 1 {
                    below += &format!("#{times}");
                }
                let mut element = element.clone();
                if let (Some(_), Some(key), Some(fields)) =
                    (key, key_of(name), element.as_object_mut())
                {
                    fields.remove(key);
                }
                flatten(&below, &element, "", false, leaves);
            }
        }
        leaf => {
            leaves.insert(path.to_owned(), shown(path, leaf));
        }
    }
}

fn shown(path: &str, leaf: &Value) -> String {
    match leaf {
        // The answer to Configure: its subscription.
        Value::Number(events) if path == "events" => events
            .as_i64()
            .and_then(|events| i32::try_from(events).ok())
            .and_then(|events| EventMask::from_wire(events).ok())
            .map_or_else(|| leaf.to_string(), |events| events.to_string()),
        // A terminal would interpret them.
        Value::String(text) if text.contains(char::is_control) => format!("{text:?}"),
        Value::String(text) => text.clone(),
        leaf => leaf.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn order_does_not_count_where_it_means_nothing() {
        let a = json!({"adjust": {
            "env": [{"key": "A", "value": "1"}, {"key": "B", "value": "2"}],
            "mounts": [{"destination": "/x", "options": ["ro"]}, {"destination": "/y"}],
        }});
        let b = json!({"adjust": {
            "mounts": [{"destination": "/y"}, {"destination": "/x", "options": ["ro"]}],
            "env": [{"key": "B", "value": "2"}, {"key": "A", "value": "1"}],
        }});
        assert_eq!(differences(&a, &b), []);
    }

    #[test]
    fn each_difference_is_named_by_its_path_with_both_values() {
        let recorded = json!({"adjust": {
            "annotations": {"a.b/c": "1", "gone": "x", "value": "v"},
            "args": ["sh", "-c"],
            "env": [{"key": "A", "value": "1"}, {"key": "A", "value": "2"}],
            "linux": {"resources": {"memory": {"limit": {"value": 5}}}, "oom_score_adj": {}},
        }, "update": [{"container_id": "c1", "linux": {"resources": {"pids": {"limit": 3}}}}]});
        let now = json!({"adjust": {
            "annotations": {"a.b/c": "2", "value": "v"},
            "args": ["-c", "sh"],
            "env": [{"key": "A", "value": "1"}, {"key": "A", "value": "3"}],
            "linux": {"resources": {"memory": {"limit": {"value": 6}}}},
            "hooks": {"prestart": [{"path": "/h"}]},
        }, "update": [{"container_id": "c2"}]});
        let all = differences(&recorded, &now);
        let lines: Vec<_> = all
            .iter()
            .map(|d| {
                let or = |side: &Option<String>| side.clone().unwrap_or_else(|| "-".into());
                format!("{} {} {}", d.path, or(&d.recorded), or(&d.now))
            })
            .collect();
        assert_eq!(
            lines,
            [
                "adjust.annotations[\"a.b/c\"] 1 2",
                "adjust.annotations[\"gone\"] x -",
                "adjust.args [\"sh\",\"-c\"] [\"-c\",\"sh\"]",
                "adjust.env[\"A\"]#2 2 3",
                "adjust.hooks.prestart[0].path - /h",
                "adjust.linux.oom_score_adj {} -",
                "adjust.linux.resources.memory.limit 5 6",
                "update[\"c1\"].linux.resources.pids.limit 3 -",
                "update[\"c2\"] - {}",
            ]
        );
    }

    #[test]
    fn a_map_whose_only_key_is_value_is_no_wrapper() {
        let of = |key: &str| json!({"adjust": {"annotations": {key: "1"}}});
        let all = differences(&of("value"), &json!({}));
        assert_eq!(all[0].path, "adjust.annotations[\"value\"]");
        assert_eq!(differences(&of("value"), &of("other")).len(), 2);
    }

    #[test]
    fn subscriptions_are_compared_as_events() {
        let all = differences(&json!({"events": 8}), &json!({"events": 40}));
        assert_eq!(all[0].recorded.as_deref(), Some("CreateContainer"));
        assert_eq!(
            all[0].now.as_deref(),
            Some("CreateContainer,StartContainer")
        );
    }
}

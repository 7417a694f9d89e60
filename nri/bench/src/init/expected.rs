//! What a plugin made of a creation when it was recorded, as what a scenario expects of it.

use std::fmt::Write as _;

use nri_record::{REDACTED, json::is_map};
use serde_json::{Map, Value};

use super::toml::{inline, key};

/// Lines of a step, as far as a scenario can ask for it. `named`: the name of a container of this id.
pub(super) fn expected(answer: &Value, named: impl Fn(&str) -> Option<String>) -> String {
    let mut lines = String::new();
    let mut adjust = answer.get("adjust").cloned().unwrap_or(Value::Null);
    without_removals(&mut adjust, "", false);
    for (field, value) in adjust.as_object().into_iter().flatten() {
        let _ = writeln!(lines, "expect.adjust.{} = {}", key(field), inline(value));
    }
    for (list, wanted) in [("update", "updates"), ("evict", "evictions")] {
        let all = answer.get(list).and_then(Value::as_array);
        let all = all.cloned().unwrap_or_default().into_iter();
        let all = all.filter_map(|mut one| {
            let name = named(one.get("container_id")?.as_str()?)?;
            one["container_id"] = name.into();
            one.as_object_mut()?.remove("ignore_failure");
            Some(one)
        });
        let all: Vec<Value> = all.collect();
        if !all.is_empty() {
            let _ = writeln!(lines, "expect.{wanted} = {}", inline(&all.into()));
        }
    }
    lines
}

/// What is removed is not in what comes of it.
fn without_removals(value: &mut Value, name: &str, of_map: bool) {
    let marked = |text: Option<&str>| text.is_some_and(|text| text.starts_with('-'));
    match value {
        Value::Object(fields) => {
            let keys_are_data = !of_map && is_map(name);
            fields.retain(|key, _| !(keys_are_data && marked(Some(key))));
            for (key, value) in fields {
                without_removals(value, key, keys_are_data);
            }
        }
        Value::Array(list) => {
            let keys = ["key", "destination", "path", "type"];
            let removes = |element: &Map<String, Value>| {
                keys.iter()
                    .any(|key| marked(element.get(*key).and_then(Value::as_str)))
            };
            list.retain(|element| !element.as_object().is_some_and(removes));
            // A variable that is redacted is only named.
            for element in list.iter_mut() {
                if let Some(fields) = element.as_object_mut() {
                    fields.retain(|_, value| value.as_str() != Some(REDACTED));
                }
                without_removals(element, "", false);
            }
            // The mark of arguments that replace others.
            if name == "args" && list.first().and_then(Value::as_str) == Some("") {
                list.remove(0);
            }
        }
        _ => {}
    }
}

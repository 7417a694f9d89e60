//! Turns a plugin's recorded answer to a creation into expectations of a scenario.

use std::fmt::Write as _;

use nri_record::{REDACTED, json::is_map};
use serde_json::{Map, Value};

use crate::{
    expect::asks,
    line::{inline, key},
};

/// Lines of a step, as far as a scenario can express them. `named`: the name of a container of this
/// id; `own`: the id of the updated one.
pub(super) fn expected(
    answer: &Value,
    own: Option<&str>,
    named: impl Fn(&str) -> Option<String>,
) -> String {
    let mut lines = String::new();
    let mut adjust = answer.get("adjust").cloned().unwrap_or(Value::Null);
    without_removals(&mut adjust, "", false);
    let fields = adjust.as_object().into_iter().flatten();
    for (field, value) in fields.filter(|(_, value)| asks(value)) {
        let _ = writeln!(
            lines,
            "expect.adjust.{} = {}",
            key(field),
            inline(field, value)
        );
    }
    let list = |name: &str| {
        let all = answer.get(name).and_then(Value::as_array);
        all.cloned().unwrap_or_default()
    };
    let of = |one: &Value| Some(one.get("container_id")?.as_str()?.to_owned());
    let (of_own, updates) = list("update")
        .into_iter()
        .partition::<Vec<_>, _>(|one| own.is_some() && of(one).as_deref() == own);
    let resources = of_own
        .iter()
        .filter_map(|one| one.pointer("/linux/resources"));
    for (field, value) in resources.filter_map(Value::as_object).flatten() {
        let _ = writeln!(
            lines,
            "expect.resources.{} = {}",
            key(field),
            inline(field, value)
        );
    }
    for (all, wanted) in [(updates, "updates"), (list("evict"), "evictions")] {
        let all = all.into_iter().filter_map(|mut one| {
            one["container_id"] = named(&of(&one)?)?.into();
            one.as_object_mut()?.remove("ignore_failure");
            Some(one)
        });
        let all: Vec<Value> = all.collect();
        if !all.is_empty() {
            let _ = writeln!(lines, "expect.{wanted} = {}", inline("", &all.into()));
        }
    }
    let is_nothing = |value: &Value| value.as_object().is_none_or(Map::is_empty);
    if is_nothing(answer) {
        lines.push_str("expect.unchanged = true\n");
    }
    lines
}

/// Removed entries are not in the result.
fn without_removals(value: &mut Value, name: &str, of_map: bool) {
    let marked = |text: Option<&str>| text.is_some_and(|text| text.starts_with('-'));
    match value {
        Value::Object(fields) => {
            let keys_are_data = !of_map && is_map(name);
            fields.retain(|key, _| !(keys_are_data && marked(Some(key))));
            for (key, value) in fields.iter_mut() {
                without_removals(value, key, keys_are_data);
            }
            fields.retain(|_, value| asks(value));
        }
        Value::Array(list) => {
            let keys = ["key", "destination", "path", "type"];
            let removes = |element: &Map<String, Value>| {
                keys.iter()
                    .any(|key| marked(element.get(*key).and_then(Value::as_str)))
            };
            list.retain(|element| !element.as_object().is_some_and(removes));
            // Of a redacted variable only the name is expected.
            for element in list.iter_mut() {
                if let Some(fields) = element.as_object_mut() {
                    fields.retain(|_, value| value.as_str() != Some(REDACTED));
                }
                without_removals(element, "", false);
            }
            // The marker of arguments that replace others.
            if name == "args" && list.first().and_then(Value::as_str) == Some("") {
                list.remove(0);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_removal_leaves_no_expectation_that_asks_for_nothing() {
        let of = |adjust: Value| expected(&json!({"adjust": adjust}), None, |_| None);
        let removal = json!({"key": "-A", "value": ""});
        assert_eq!(of(json!({"env": [removal.clone()]})), "");
        assert_eq!(of(json!({"linux": {"devices": [{"path": "-/dev/x"}]}})), "");
        let set = json!({"key": "B", "value": "1"});
        assert_eq!(
            of(json!({"env": [removal, set], "mounts": [{"destination": "-/m"}]})),
            "expect.adjust.env = [{ key = \"B\", value = \"1\" }]\n"
        );
    }
}

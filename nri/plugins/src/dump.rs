//! Messages as text: YAML without empty fields, as the Go samples print it.

use serde::Serialize;
use serde_json::Value;

use crate::yaml;

/// The message as a value, without fields at their default.
pub fn value(message: &impl Serialize) -> Value {
    match serde_json::to_value(message) {
        Ok(value) => prune(value).unwrap_or(Value::Null),
        Err(e) => Value::String(format!("cannot be shown: {e}")),
    }
}

/// The message as lines of YAML.
pub fn yaml(message: &impl Serialize) -> String {
    let text = yaml::print(&value(message));
    text.unwrap_or_else(|e| format!("cannot be shown: {e}\n"))
}

fn prune(value: Value) -> Option<Value> {
    match value {
        Value::Null | Value::Bool(false) => None,
        Value::Number(n) if n.as_f64() == Some(0.0) => None,
        Value::String(s) if s.is_empty() => None,
        Value::Array(list) => {
            // List entries keep their places: an empty argument counts.
            let keep = |item: Value| match item {
                Value::Object(_) => prune(item).unwrap_or(Value::Object(Default::default())),
                item => item,
            };
            let list: Vec<Value> = list.into_iter().map(keep).collect();
            (!list.is_empty()).then_some(Value::Array(list))
        }
        Value::Object(map) => {
            let kept = map.into_iter().filter_map(|(k, v)| Some((k, prune(v)?)));
            let kept: serde_json::Map<_, _> = kept.collect();
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        value => Some(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nri::proto::{Container, LinuxContainer};

    #[test]
    fn a_message_prints_only_what_it_says() {
        let container = Container {
            id: "c".into(),
            args: vec!["sh".into(), String::new()],
            linux: Some(LinuxContainer::default()),
            ..Default::default()
        };
        assert_eq!(yaml(&container), "args:\n- sh\n- \"\"\nid: c\n");
    }
}

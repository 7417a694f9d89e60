//! Values and keys in TOML syntax, on one line.

use nri_record::json::is_map;
use serde_json::Value;

/// A TOML string; JSON's escapes are TOML's, except for one character.
pub(crate) fn quoted(text: &str) -> String {
    let json = Value::from(text).to_string();
    json.replace('\u{7f}', "\\u007f")
}

/// A key, quoted if necessary.
pub(crate) fn key(text: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !text.is_empty() && text.chars().all(bare) {
        text.to_owned()
    } else {
        quoted(text)
    }
}

/// The value of a field of this name; an empty message is an empty table, a wrapper its value.
pub(crate) fn inline(name: &str, value: &Value) -> String {
    below(name, value, false)
}

fn below(name: &str, value: &Value, of_map: bool) -> String {
    match value {
        // A field that is not set is absent.
        Value::Null => "{}".to_owned(),
        // TOML has no larger integer; a scenario may write it as a text.
        Value::Number(number) if number.as_i64().is_none() && number.is_u64() => {
            quoted(&number.to_string())
        }
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(list) => {
            let list: Vec<_> = list.iter().map(|v| below("", v, false)).collect();
            format!("[{}]", list.join(", "))
        }
        Value::Object(fields) if fields.is_empty() => "{}".to_owned(),
        Value::Object(fields) => {
            let keys_are_data = !of_map && is_map(name);
            // A list element has no name and is not a wrapper.
            let is_wrapper = !keys_are_data && !name.is_empty() && fields.len() == 1;
            if let (true, Some(bare)) = (is_wrapper, fields.get("value")) {
                return below("", bare, false);
            }
            let fields = fields.iter();
            let fields: Vec<_> = fields
                .map(|(k, v)| format!("{} = {}", key(k), below(k, v, keys_are_data)))
                .collect();
            format!("{{ {} }}", fields.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wrapper_is_written_as_its_value_and_a_map_as_a_map() {
        let cpu = json!({"cpu": {"quota": {"value": 5}, "period": {}}});
        assert_eq!(
            inline("resources", &cpu),
            "{ cpu = { period = {}, quota = 5 } }"
        );
        let data = json!({"value": "v"});
        assert_eq!(inline("annotations", &data), "{ value = \"v\" }");
        let entry = json!([{"key": "A", "value": "1"}]);
        assert_eq!(inline("env", &entry), "[{ key = \"A\", value = \"1\" }]");
    }
}

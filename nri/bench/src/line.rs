//! Values and keys in TOML syntax, on one line.

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

/// Any value; an empty message is an empty table.
pub(crate) fn inline(value: &Value) -> String {
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
            let list: Vec<_> = list.iter().map(inline).collect();
            format!("[{}]", list.join(", "))
        }
        Value::Object(fields) if fields.is_empty() => "{}".to_owned(),
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields: Vec<_> = fields
                .map(|(k, v)| format!("{} = {}", key(k), inline(v)))
                .collect();
            format!("{{ {} }}", fields.join(", "))
        }
    }
}

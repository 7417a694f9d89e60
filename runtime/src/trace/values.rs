//! Pure: values of adjustments and updates, as the event log and `cairn explain` show them. Values
//! of environment variables are secrets and never included (CONTRACT.md, G-28).

use nri::{
    merge,
    place::{self, Place, path, place},
};
use proto_nri::{ContainerAdjustment, Field, LinuxResources};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::one_line::cut;

/// Values of one event: plugins choose how many there are.
const MOST: usize = 32;
/// Characters of a text in an event.
const LONGEST: usize = 128;

/// The values of an update.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Values {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<Changed>,
    /// The number of further values that are not recorded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: usize,
}

/// One value that an update requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Its path, such as `linux.resources.cpu.cpus`.
    pub field: String,
    /// Absent if there was none, or none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<Value>,
    pub new: Value,
}

impl Values {
    /// The values of `wanted` at the paths that `is_theirs` selects, over the previous ones.
    pub fn of_update(
        before: Option<&LinuxResources>,
        wanted: &LinuxResources,
        is_theirs: impl Fn(Field, Option<&str>) -> bool,
    ) -> Self {
        let within = |resources| json!({"linux": {"resources": resources}});
        let (old, new) = (within(before), within(Some(wanted)));
        let simple = merge::simple_fields(wanted).into_iter();
        let pages = wanted.hugepage_limits.iter();
        let pages = pages.map(|page| (Field::HugepageLimits, Some(page.page_size.as_str())));
        let unified = wanted.unified.keys();
        let unified = unified.map(|key| (Field::CgroupsUnified, Some(key.as_str())));
        let fields = simple
            .map(|field| (field, None))
            .chain(pages)
            .chain(unified);
        let mut fields = fields.filter(|(field, key)| is_theirs(*field, *key));
        let values = fields.by_ref().take(MOST).filter_map(|(field, key)| {
            let of = |resources| value(resources, field, key.unwrap_or_default()).map(short);
            Some(Changed {
                field: path(field, key.map(|key| cut(key, LONGEST)).as_deref()),
                old: of(&old).filter(|old| !old.is_null() && old != ""),
                new: of(&new)?,
            })
        });
        Self {
            values: values.collect(),
            more: fields.count(),
        }
    }

    /// Those of an adjustment at these paths.
    pub fn of_adjustment(paths: &[String], adjustment: &ContainerAdjustment) -> Self {
        let adjustment = serde_json::to_value(adjustment).unwrap_or_default();
        let fields = paths.iter().filter_map(|path| {
            let (field, key) = field_and_key(path);
            Some((path, place::named(field)?, key))
        });
        let mut fields = fields.filter(|(_, field, _)| *field != Field::Env);
        let values = fields.by_ref().take(MOST).filter_map(|(path, field, key)| {
            Some(Changed {
                field: cut(path, 2 * LONGEST),
                old: None,
                new: short(value(
                    &adjustment,
                    field,
                    key.as_deref().unwrap_or_default(),
                )?),
            })
        });
        Self {
            values: values.collect(),
            more: fields.count(),
        }
    }
}

/// The field and the key of a path: `env` and `DEMO` of `env["DEMO"]`.
pub fn field_and_key(path: &str) -> (&str, Option<String>) {
    let keyed = path.strip_suffix(']').and_then(|path| path.split_once('['));
    let keyed = keyed.and_then(|(field, key)| Some((field, serde_json::from_str(key).ok()?)));
    keyed.map_or((path, None), |(field, key)| (field, Some(key)))
}

/// The value of a field of an adjustment; wrapped numbers and texts without their wrapper. `None`
/// for variables.
pub fn value(adjustment: &Value, field: Field, key: &str) -> Option<Value> {
    if field == Field::Env {
        return None;
    }
    let found = match place(field)? {
        Place::Simple(path) => adjustment.pointer(path)?.clone(),
        Place::Map(path) => adjustment.pointer(path)?.get(key)?.clone(),
        Place::List(path, name) => {
            let list = adjustment.pointer(path)?.as_array()?;
            let here = |entry: &&Value| entry.get(name).and_then(Value::as_str) == Some(key);
            let mut found = list.iter().find(here)?.clone();
            found.as_object_mut()?.remove(name);
            found
        }
    };
    let mut found = plain(&found);
    hide_variables(&mut found);
    Some(found)
}

/// A value on one line, as people read it. A cut table or list is a text already.
pub fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if text.starts_with(['{', '[']) => text.clone(),
        value => plain(value).to_string(),
    }
}

/// A message without its unset fields and without wrappers of numbers and texts.
fn plain(value: &Value) -> Value {
    let says = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    };
    match value {
        Value::Object(fields) if fields.len() == 1 && fields.contains_key("value") => {
            plain(&fields["value"])
        }
        Value::Object(fields) => fields
            .iter()
            .map(|(name, field)| (name.clone(), plain(field)))
            .filter(|(_, field)| says(field))
            .collect(),
        Value::Array(items) => items.iter().map(plain).collect(),
        other => other.clone(),
    }
}

/// Removes the values of environment variables from a spec or a hook: `NAME=value` becomes
/// `NAME=…`.
pub fn hide_variables(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(hide_variables),
        Value::Object(fields) => {
            for (name, field) in fields {
                if name == "env" {
                    hide(field);
                } else {
                    hide_variables(field);
                }
            }
        }
        _ => {}
    }
}

fn hide(variables: &mut Value) {
    for variable in variables.as_array_mut().into_iter().flatten() {
        let name = variable.as_str().unwrap_or_default().split('=').next();
        *variable = Value::String(format!("{}=…", name.unwrap_or_default()));
    }
}

/// A value as an event has it. One that is too long is cut, as text.
fn short(value: Value) -> Value {
    match &value {
        Value::String(text) => Value::String(cut(text, LONGEST)),
        Value::Array(_) | Value::Object(_) => {
            let text = value.to_string();
            if text.chars().count() > LONGEST {
                cut(&text, LONGEST).into()
            } else {
                value
            }
        }
        _ => value,
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde asks for this shape"
)]
fn is_zero(value: &usize) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(json: Value) -> LinuxResources {
        serde_json::from_value(json).expect("resources")
    }

    #[test]
    fn an_update_has_old_and_new_of_the_values_of_its_plugin() {
        let before = resources(json!({"cpu": {"cpus": "0-1"}, "memory": {"limit": {"value": 7}}}));
        let wanted = resources(json!({
            "cpu": {"cpus": "1", "shares": {"value": 5}}, "memory": {"limit": {"value": 8}},
            "unified": {"memory.high": "9"}, "hugepage_limits": [{"page_size": "2MB", "limit": 3}]
        }));
        let all = Values::of_update(Some(&before), &wanted, |_, _| true);
        let shown: Vec<_> = all
            .values
            .iter()
            .map(|v| (v.field.as_str(), &v.old, &v.new))
            .collect();
        let page = json!({"limit": 3});
        assert_eq!(
            shown,
            [
                ("linux.resources.memory.limit", &Some(json!(7)), &json!(8)),
                ("linux.resources.cpu.shares", &None, &json!(5)),
                ("linux.resources.cpu.cpus", &Some(json!("0-1")), &json!("1")),
                ("linux.resources.hugepage_limits[\"2MB\"]", &None, &page),
                (
                    "linux.resources.unified[\"memory.high\"]",
                    &None,
                    &json!("9")
                ),
            ]
        );
        let theirs = Values::of_update(None, &wanted, |field, _| field == Field::CpuSetCpUs);
        assert_eq!(theirs.values.len(), 1);
        assert_eq!(theirs.values[0].old, None);
    }

    #[test]
    fn an_update_of_any_size_is_a_short_event() {
        let long = "x".repeat(1 << 16);
        let unified = (0..1000).map(|n| (format!("{long}{n}"), long.clone()));
        let wanted = LinuxResources {
            unified: unified.take(40).collect(),
            ..LinuxResources::default()
        };
        let values = Values::of_update(None, &wanted, |_, _| true);
        assert_eq!((values.values.len(), values.more), (MOST, 40 - MOST));
        assert!(serde_json::to_string(&values).expect("JSON").len() < 20_000);
    }

    #[test]
    fn variables_take_no_place_of_the_values_of_an_adjustment() {
        let key = "a\u{9b}b";
        let variables = (0..MOST).map(|n| path(Field::Env, Some(&format!("V{n}"))));
        let paths: Vec<_> = variables
            .chain([path(Field::Annotations, Some(key))])
            .collect();
        let adjustment = ContainerAdjustment {
            annotations: [(key.to_owned(), "1".to_owned())].into(),
            ..ContainerAdjustment::default()
        };
        let values = Values::of_adjustment(&paths, &adjustment);
        assert_eq!((values.values.len(), values.more), (1, 0));
        assert_eq!(values.values[0].new, json!("1"));
    }

    #[test]
    fn values_of_variables_are_hidden_wherever_they_stand() {
        let mut spec = json!({
            "process": {"env": ["A=hunter2", "B"]},
            "hooks": {"poststop": [{"path": "/h", "env": ["T=hunter2=x"]}]},
        });
        let hooks = value(&spec, Field::OciHooks, "").expect("hooks");
        assert!(!hooks.to_string().contains("hunter2"), "{hooks}");
        hide_variables(&mut spec);
        assert_eq!(spec["process"]["env"], json!(["A=…", "B=…"]));
        assert!(!spec.to_string().contains("hunter2"), "{spec}");
    }
}

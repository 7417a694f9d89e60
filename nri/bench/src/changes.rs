//! Changes of plugins to a container, by field, with their owners. Pure.

use nri::{
    mask::FieldMask,
    owners::{ContainerOwners, Owner},
    place::{Place, path, place},
    proto::Field,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::line::{self, inline};

/// One field or key that has an owner.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Change {
    /// As in errors, such as `adjust.env["DEMO"]`.
    pub path: String,
    /// A line for `expect`, such as `adjust.env = [{ key = "DEMO", value = "1" }]`. `None`: it was
    /// removed.
    pub expect: Option<String>,
    /// `None`: it was absent.
    pub before: Option<Value>,
    pub after: Option<Value>,
    /// The plugins that set it, or removed it.
    pub by: Vec<String>,
}

/// Every change, in order of the fields. `now` is the plugins' result for `before`, both as JSON of
/// an adjustment.
pub(crate) fn changes(owners: &ContainerOwners, before: &Value, now: &Value) -> Vec<Change> {
    let mut all = Vec::new();
    for field in FieldMask::ALL.iter() {
        let simple = owners.owner(field).map(|owner| (None, owner));
        let keyed = owners.keys(field).map(|(key, owner)| (Some(key), owner));
        for (key, owner) in simple.into_iter().chain(keyed) {
            let after = match owner {
                Owner::Cleared(_) => None,
                _ => Some(value(field, key, now).unwrap_or_else(|| "".into())),
            };
            all.push(Change {
                path: path(field, key),
                expect: after.as_ref().and_then(|after| expect(field, key, after)),
                before: value(field, key, before),
                after,
                by: owner.plugins().iter().map(ToString::to_string).collect(),
            });
        }
    }
    all
}

impl Change {
    /// Prefixes the path, as scenarios have `adjust` and `resources` before it.
    pub(crate) fn below(mut self, name: &str, without: &str) -> Self {
        for text in std::iter::once(&mut self.path).chain(&mut self.expect) {
            *text = format!("{name}.{}", text.strip_prefix(without).unwrap_or(text));
        }
        self
    }
}

/// The scenario line that expects this value.
fn expect(field: Field, key: Option<&str>, value: &Value) -> Option<String> {
    let at = path(field, None);
    Some(match (place(field)?, key) {
        (Place::List(_, name), Some(key)) => {
            let mut entry = Map::from_iter([(name.to_owned(), key.into())]);
            match value {
                Value::Object(fields) => entry.extend(fields.clone()),
                value if field == Field::Env => {
                    entry.insert("value".to_owned(), value.clone());
                }
                _ => {}
            }
            format!("{at} = {}", inline("", &json!([entry])))
        }
        (_, Some(key)) => format!("{at}.{} = {}", line::key(key), inline("", value)),
        _ => format!("{at} = {}", inline("", value)),
    })
}

/// The value of a field, or of one of its keys, in a container or an adjustment, without unset
/// fields.
fn value(field: Field, key: Option<&str>, side: &Value) -> Option<Value> {
    let place = place(field)?;
    let found = side.pointer(place.pointer())?;
    match (place, key) {
        (_, Some(key)) if field == Field::Env => variable(key, found),
        (Place::List(_, name), Some(key)) => {
            let is = |entry: &&Value| entry.get(name).and_then(Value::as_str) == Some(key);
            let mut entry = found.as_array()?.iter().find(is)?.clone();
            entry.as_object_mut()?.remove(name);
            bare(&entry).or_else(|| Some(json!({})))
        }
        (_, Some(key)) => Some(bare(found.get(key)?).unwrap_or_else(|| "".into())),
        (_, None) => bare(found),
    }
}

/// A variable: `NAME=value` in a container, a key and a value in an adjustment.
fn variable(name: &str, all: &Value) -> Option<Value> {
    all.as_array()?.iter().find_map(|entry| {
        match entry.as_str().and_then(|text| text.split_once('=')) {
            Some((key, value)) => (key == name).then(|| value.into()),
            None => (entry.get("key")?.as_str()? == name).then(|| entry.get("value").cloned())?,
        }
    })
}

/// A value in the form of scenarios: wrappers by their contents, without unset fields. `None`: all
/// unset.
pub(crate) fn bare(value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        Value::Array(list) if list.is_empty() => None,
        Value::Array(list) => Some(list.iter().map(|v| bare(v).unwrap_or_default()).collect()),
        Value::Object(fields) if fields.len() == 1 && fields.contains_key("value") => {
            Some(fields["value"].clone())
        }
        Value::Object(fields) => {
            let set = fields
                .iter()
                .filter_map(|(k, v)| Some((k.clone(), bare(v)?)));
            let set: Map<_, _> = set.collect();
            (!set.is_empty()).then_some(Value::Object(set))
        }
        other => Some(other.clone()),
    }
}

#[cfg(test)]
mod tests {
    use nri::{
        adjust::{Adjust, SetResources},
        merge::CreateMerge,
        proto::{Container, ContainerAdjustment, CreateContainerRequest, CreateContainerResponse},
    };
    use nri_testing::container;

    use super::*;

    #[test]
    fn what_was_there_is_shown_beside_what_is_there_now_and_whose_it_is() {
        let before = Container::from(container("c").env("A", "1").annotation("gone", "x"));
        let mut merge = CreateMerge::new(CreateContainerRequest {
            container: Some(before.clone()),
            ..Default::default()
        });
        let mut adjust = ContainerAdjustment::default();
        adjust.remove_env("A").add_env("A", "2").memory_limit(7);
        adjust.remove_annotation("gone").add_annotation("a/b", "");
        adjust.add_rlimit("RLIMIT_NOFILE", u64::MAX, 8);
        let answer = CreateContainerResponse {
            adjust: Some(adjust),
            ..Default::default()
        };
        merge
            .apply(&"10-a".parse().expect("an id"), answer)
            .expect("no conflict");
        let merged = merge.finish();
        let owners = merged.owners.container(&before.id).expect("touched");
        let container = serde_json::to_value(&before).expect("JSON");
        let adjust = serde_json::to_value(&merged.adjust).expect("JSON");
        let all = changes(owners, &container, &adjust);
        let lines: Vec<_> = all
            .into_iter()
            .map(|c| {
                let c = c.below("adjust", "");
                let before = c.before.unwrap_or_default();
                let expect = c.expect.unwrap_or_default();
                format!("{} | {before} | {expect} | {}", c.path, c.by.join(","))
            })
            .collect();
        assert_eq!(
            lines,
            [
                "adjust.annotations[\"a/b\"] | null | adjust.annotations.\"a/b\" = \"\" | 10-a",
                "adjust.annotations[\"gone\"] | \"x\" |  | 10-a",
                "adjust.env[\"A\"] | \"1\" | adjust.env = [{ key = \"A\", value = \"2\" }] | 10-a",
                "adjust.linux.resources.memory.limit | null | adjust.linux.resources.memory.limit = 7 | 10-a",
                "adjust.rlimits[\"RLIMIT_NOFILE\"] | null | adjust.rlimits = [{ \
                 hard = \"18446744073709551615\", soft = 8, type = \"RLIMIT_NOFILE\" }] | 10-a",
            ]
        );
    }
}

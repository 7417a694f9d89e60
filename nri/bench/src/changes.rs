//! What plugins changed in a container, field by field, with who did. Pure.

use nri::{
    mask::FieldMask,
    owners::{ContainerOwners, Owner},
    place::{Place, place},
    proto::Field,
};
use serde::Serialize;
use serde_json::{Map, Value};

/// One field or key that has an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Change {
    /// Such as `Env DEMO`.
    pub what: String,
    /// `None`: it was not there.
    pub before: Option<String>,
    /// `None`: it is not there any more.
    pub after: Option<String>,
    /// Who set it, or removed it.
    pub by: Vec<String>,
}

/// Every change, in order of the fields. `adjust` is what the plugins made of `container`, both as JSON.
pub(crate) fn changes(owners: &ContainerOwners, container: &Value, adjust: &Value) -> Vec<Change> {
    let mut all = Vec::new();
    for field in FieldMask::ALL.iter() {
        let name = field.as_str_name();
        if let Some(owner) = owners.owner(field) {
            let at = |side: &Value| simple(field, side);
            all.push(change(name.to_owned(), owner, at(container), at(adjust)));
        }
        for (key, owner) in owners.keys(field) {
            let before = keyed(field, key, container);
            let after = keyed(field, key, adjust);
            all.push(change(format!("{name} {key}"), owner, before, after));
        }
    }
    all
}

fn change(what: String, owner: &Owner, before: Option<String>, after: Option<String>) -> Change {
    Change {
        what,
        before,
        after: match owner {
            Owner::Cleared(_) => None,
            _ => after.or_else(|| Some(String::new())),
        },
        by: owner.plugins().iter().map(ToString::to_string).collect(),
    }
}

/// The value of a field with one, in a container or an adjustment.
fn simple(field: Field, side: &Value) -> Option<String> {
    let pointer = match field {
        // With its name.
        Field::PidsLimit => "/linux/resources/pids",
        _ => place(field)?.pointer(),
    };
    side.pointer(pointer).and_then(shown)
}

/// The value of one key of a field with keys.
fn keyed(field: Field, key: &str, side: &Value) -> Option<String> {
    match place(field)? {
        _ if field == Field::Env => variable(key, side),
        Place::Simple(_) => None,
        Place::Map(pointer) => side.pointer(pointer)?.get(key).and_then(shown),
        Place::List(pointer, name) => {
            let entries = side.pointer(pointer)?.as_array()?.iter();
            let mut entries = entries.filter(|e| e.get(name).and_then(Value::as_str) == Some(key));
            let mut entry = entries.next()?.clone();
            entry.as_object_mut()?.remove(name);
            shown(&entry).or_else(|| Some(String::new()))
        }
    }
}

/// A variable: `NAME=value` in a container, a key and a value in an adjustment.
fn variable(name: &str, side: &Value) -> Option<String> {
    side.pointer("/env")?.as_array()?.iter().find_map(|entry| {
        match entry.as_str().and_then(|text| text.split_once('=')) {
            Some((key, value)) => (key == name).then(|| value.to_owned()),
            None => (entry.get("key")?.as_str()? == name)
                .then(|| entry.get("value")?.as_str().map(str::to_owned))?,
        }
    })
}

/// A value for people: wrappers as what they wrap, without what is not set. `None`: nothing is set.
fn shown(value: &Value) -> Option<String> {
    match bare(value)? {
        Value::String(text) => Some(text),
        value => Some(value.to_string()),
    }
}

fn bare(value: &Value) -> Option<Value> {
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
        adjust.remove_annotation("gone");
        adjust.add_rlimit("RLIMIT_NOFILE", 9, 8);
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
            .iter()
            .map(|c| format!("{} {:?} {:?} {}", c.what, c.before, c.after, c.by.join(",")))
            .collect();
        assert_eq!(
            lines,
            [
                "Annotations gone Some(\"x\") None 10-a",
                "Env A Some(\"1\") Some(\"2\") 10-a",
                "MemLimit None Some(\"7\") 10-a",
                "Rlimits RLIMIT_NOFILE None Some(\"{\\\"hard\\\":9,\\\"soft\\\":8}\") 10-a",
            ]
        );
    }
}

//! Pure: a plugin's changes, field by field.

use std::collections::BTreeSet;

use nri::{owners::Owner, place::path};
use proto_nri::{ContainerAdjustment, Field, FieldOwners};
use serde_json::Value;

use super::explanation::{Change, Effect};
use crate::trace::{Values, field_and_key, value};

/// A plugin's entries in the table of owners, with values from the merged adjustment.
pub(super) fn changes(
    owners: &FieldOwners,
    adjustment: &ContainerAdjustment,
    plugin: &str,
) -> Vec<Change> {
    let adjustment = serde_json::to_value(adjustment).unwrap_or_default();
    let mut changes = Vec::new();
    for (number, owner) in &owners.simple {
        if let (Some(effect), Ok(field)) = (effect(owner, plugin), Field::try_from(*number)) {
            changes.push(change(&adjustment, field, None, effect));
        }
    }
    for (number, keys) in &owners.compound {
        let Ok(field) = Field::try_from(*number) else {
            continue;
        };
        for (key, owner) in &keys.owners {
            if let Some(effect) = effect(owner, plugin) {
                changes.push(change(&adjustment, field, Some(key), effect));
            }
        }
    }
    changes
}

/// Plugins in the table of owners, by index and name.
pub(super) fn owners(table: &FieldOwners) -> Vec<String> {
    let keyed = table
        .compound
        .values()
        .flat_map(|keys| keys.owners.values());
    let all = table.simple.values().chain(keyed);
    let owners: Vec<Owner> = all.filter_map(|owner| owner.parse().ok()).collect();
    let plugins: BTreeSet<_> = owners.iter().flat_map(Owner::plugins).collect();
    plugins.into_iter().map(ToString::to_string).collect()
}

fn effect(owner: &str, plugin: &str) -> Option<Effect> {
    let owner: Owner = owner.parse().ok()?;
    let effect = match owner {
        Owner::Set(_) => Effect::Set,
        Owner::Cleared(_) => Effect::Removed,
        Owner::Shared(_) => Effect::Added,
    };
    let mut plugins = owner.plugins().iter();
    plugins.any(|id| id.to_string() == plugin).then_some(effect)
}

fn change(adjustment: &Value, field: Field, key: Option<&String>, effect: Effect) -> Change {
    let value = match effect {
        Effect::Removed | Effect::Overridden => None,
        Effect::Set | Effect::Added => value(adjustment, field, key.map_or("", String::as_str)),
    };
    Change {
        effect,
        field: path(field, None),
        key: key.cloned(),
        value,
    }
}

/// The fields that the event log lists as set, with their values.
pub(super) fn named(changed: &[String], values: &Values) -> Vec<Change> {
    let change = |path: &String| {
        let (field, key) = field_and_key(path);
        let known = values.values.iter().find(|value| value.field == *path);
        Change {
            effect: Effect::Set,
            field: field.to_owned(),
            key,
            value: known.map(|known| known.new.clone()),
        }
    };
    changed.iter().map(change).collect()
}

/// Sorts sets without an order: capabilities.
pub(super) fn order(spec: &mut Value) {
    let sets = spec.pointer_mut("/process/capabilities");
    for set in sets.and_then(Value::as_object_mut).into_iter().flatten() {
        if let Some(names) = set.1.as_array_mut() {
            names.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
        }
    }
}

/// Sorts the mounts of `base` like those of `spec`, so that a line comparison shows new mounts and
/// not the sorting by path. Mounts that are only in `base` come last.
pub(super) fn order_like(base: &mut Value, spec: &Value) {
    let destination = |mount: &Value| mount.get("destination").cloned();
    let order: Vec<_> = spec["mounts"]
        .as_array()
        .into_iter()
        .flatten()
        .map(destination)
        .collect();
    if let Some(mounts) = base.get_mut("mounts").and_then(Value::as_array_mut) {
        mounts.sort_by_key(|mount| {
            let wanted = destination(mount);
            order
                .iter()
                .position(|there| *there == wanted)
                .unwrap_or(usize::MAX)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An adjustment with every field, and the table of its owners.
    fn everything() -> (FieldOwners, ContainerAdjustment) {
        let adjustment = serde_json::json!({
            "annotations": {"k": "v"},
            "mounts": [{"destination": "/data", "source": "/srv"}],
            "env": [{"key": "SECRET", "value": "hunter2"}],
            "hooks": {"prestart": [{"path": "/h", "env": ["TOKEN=hunter2"]}]},
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 5}],
            "cdi_devices": [{"name": "a/b=c"}],
            "args": ["true"],
            "linux": {
                "devices": [{"path": "/dev/x"}],
                "resources": {
                    "memory": {
                        "limit": {"value": 1}, "reservation": {"value": 2}, "swap": {"value": 3},
                        "kernel": {"value": 4}, "kernel_tcp": {"value": 5}, "swappiness": {"value": 6},
                        "disable_oom_killer": {"value": true}, "use_hierarchy": {"value": true}
                    },
                    "cpu": {
                        "shares": {"value": 1}, "quota": {"value": 2}, "period": {"value": 3},
                        "realtime_runtime": {"value": 4}, "realtime_period": {"value": 5},
                        "cpus": "0", "mems": "0"
                    },
                    "pids": {"limit": 7},
                    "hugepage_limits": [{"page_size": "2MB", "limit": 8}],
                    "blockio_class": {"value": "b"}, "rdt_class": {"value": "r"},
                    "unified": {"memory.high": "9"}
                },
                "cgroups_path": "/x", "oom_score_adj": {"value": 10},
                "io_priority": {"class": 1, "priority": 2}, "seccomp_policy": {"default_action": "A"},
                "namespaces": [{"type": "ipc", "path": "/p"}], "sysctl": {"s": "t"},
                "net_devices": {"eth0": {"name": "eth1"}}, "scheduler": {"policy": 1},
                "rdt": {"clos_id": {"value": "c"}, "schemata": {"value": ["s"]}, "enable_monitoring": {"value": true}},
                "memory_policy": {"mode": 2}
            }
        });
        let keys = [
            (Field::Annotations, "k"),
            (Field::Mounts, "/data"),
            (Field::Devices, "/dev/x"),
            (Field::CdiDevices, "a/b=c"),
            (Field::Env, "SECRET"),
            (Field::HugepageLimits, "2MB"),
            (Field::CgroupsUnified, "memory.high"),
            (Field::Rlimits, "RLIMIT_NOFILE"),
            (Field::Namespace, "ipc"),
            (Field::Sysctl, "s"),
            (Field::LinuxNetDevices, "eth0"),
        ];
        let mut owners = FieldOwners::default();
        for (field, key) in keys {
            let entry = owners.compound.entry(field as i32).or_default();
            entry.owners.insert(key.to_owned(), "10-a".to_owned());
        }
        for number in 1..=Field::MemoryPolicy as i32 {
            if !owners.compound.contains_key(&number) {
                owners.simple.insert(number, "10-a".to_owned());
            }
        }
        let adjustment = serde_json::from_value(adjustment).expect("an adjustment");
        (owners, adjustment)
    }

    #[test]
    fn each_field_has_its_value_and_no_variable_has() {
        let (owners, adjustment) = everything();
        let changes = changes(&owners, &adjustment, "10-a");
        assert_eq!(changes.len(), Field::MemoryPolicy as usize);
        for change in &changes {
            let hidden = change.field == "env";
            assert_eq!(change.value.is_none(), hidden, "{change:?}");
        }
        let of = |field: Field| {
            let found = changes.iter().find(|c| c.field == path(field, None));
            found.and_then(|c| c.value.clone()).expect("a value")
        };
        assert_eq!(of(Field::MemLimit), 1);
        assert_eq!(of(Field::CpuSetCpUs), "0");
        assert_eq!(of(Field::Sysctl), "t");
        assert_eq!(of(Field::Mounts)["source"], "/srv");
    }

    #[test]
    fn what_was_removed_or_added_to_is_told_apart_by_its_owner() {
        let (mut owners, adjustment) = everything();
        owners
            .simple
            .insert(Field::OciHooks as i32, "10-a,20-b".to_owned());
        let mounts = owners.compound.entry(Field::Mounts as i32).or_default();
        mounts.owners.insert("/data".to_owned(), "-20-b".to_owned());
        assert_eq!(super::owners(&owners), ["10-a", "20-b"]);
        let changes = changes(&owners, &adjustment, "20-b");
        let effects: Vec<_> = changes
            .iter()
            .map(|c| (c.field.as_str(), c.effect))
            .collect();
        assert_eq!(
            effects,
            [("hooks", Effect::Added), ("mounts", Effect::Removed)]
        );
        assert_eq!(changes[1].value, None);
    }

    #[test]
    fn specs_are_compared_without_the_order_of_what_has_none() {
        let spec = |caps: [&str; 2], mounts: &[&str]| {
            let mounts: Vec<_> = mounts
                .iter()
                .map(|m| serde_json::json!({"destination": m}))
                .collect();
            serde_json::json!({"process": {"capabilities": {"bounding": caps}}, "mounts": mounts})
        };
        let mut base = spec(["B", "A"], &["/proc", "/gone", "/dev", "/dev/shm"]);
        let mut made = spec(["A", "B"], &["/dev", "/new", "/proc", "/dev/shm"]);
        order(&mut base);
        order(&mut made);
        assert_eq!(base["process"], made["process"]);
        order_like(&mut base, &made);
        let order: Vec<_> = base["mounts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| &m["destination"])
            .collect();
        assert_eq!(order, ["/dev", "/proc", "/dev/shm", "/gone"]);
    }
}

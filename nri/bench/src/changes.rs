//! What plugins changed in a container, field by field, with who did. Pure.

use nri::{
    mask::FieldMask,
    owners::{ContainerOwners, Owner},
    proto::Field,
};
use serde::Serialize;
use serde_json::{Map, Value};

/// One field or key that has an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
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
pub fn changes(owners: &ContainerOwners, container: &Value, adjust: &Value) -> Vec<Change> {
    let mut all = Vec::new();
    for field in FieldMask::ALL.iter() {
        let name = field.as_str_name();
        if let Some(owner) = owners.owner(field) {
            let pointer = simple(field);
            let at = |side: &Value| side.pointer(pointer).and_then(shown);
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

/// Where a field with one value lies, in a container and in an adjustment alike.
fn simple(field: Field) -> &'static str {
    match field {
        Field::Args => "/args",
        Field::OciHooks => "/hooks",
        Field::MemLimit => "/linux/resources/memory/limit",
        Field::MemReservation => "/linux/resources/memory/reservation",
        Field::MemSwapLimit => "/linux/resources/memory/swap",
        Field::MemKernelLimit => "/linux/resources/memory/kernel",
        Field::MemTcpLimit => "/linux/resources/memory/kernel_tcp",
        Field::MemSwappiness => "/linux/resources/memory/swappiness",
        Field::MemDisableOomKiller => "/linux/resources/memory/disable_oom_killer",
        Field::MemUseHierarchy => "/linux/resources/memory/use_hierarchy",
        Field::CpuShares => "/linux/resources/cpu/shares",
        Field::CpuQuota => "/linux/resources/cpu/quota",
        Field::CpuPeriod => "/linux/resources/cpu/period",
        Field::CpuRealtimeRuntime => "/linux/resources/cpu/realtime_runtime",
        Field::CpuRealtimePeriod => "/linux/resources/cpu/realtime_period",
        Field::CpuSetCpUs => "/linux/resources/cpu/cpus",
        Field::CpuSetMems => "/linux/resources/cpu/mems",
        Field::PidsLimit => "/linux/resources/pids",
        Field::BlockioClass => "/linux/resources/blockio_class",
        Field::RdtClass => "/linux/resources/rdt_class",
        Field::CgroupsPath => "/linux/cgroups_path",
        Field::OomScoreAdj => "/linux/oom_score_adj",
        Field::IoPriority => "/linux/io_priority",
        Field::SeccompPolicy => "/linux/seccomp_policy",
        Field::LinuxSched => "/linux/scheduler",
        Field::RdtClosId => "/linux/rdt/clos_id",
        Field::RdtSchemata => "/linux/rdt/schemata",
        Field::RdtEnableMonitoring => "/linux/rdt/enable_monitoring",
        Field::MemoryPolicy => "/linux/memory_policy",
        // These have keys, and None is no field.
        Field::None
        | Field::Annotations
        | Field::Mounts
        | Field::Devices
        | Field::CdiDevices
        | Field::Env
        | Field::HugepageLimits
        | Field::CgroupsUnified
        | Field::Rlimits
        | Field::Namespace
        | Field::Sysctl
        | Field::LinuxNetDevices => "/none",
    }
}

/// The value of one key of a field with keys.
fn keyed(field: Field, key: &str, side: &Value) -> Option<String> {
    let map = |pointer: &str| side.pointer(pointer)?.get(key).and_then(shown);
    let list = |pointer: &str, name: &str| {
        let entries = side.pointer(pointer)?.as_array()?.iter();
        let mut entries = entries.filter(|e| e.get(name).and_then(Value::as_str) == Some(key));
        let mut entry = entries.next()?.clone();
        entry.as_object_mut()?.remove(name);
        shown(&entry).or_else(|| Some(String::new()))
    };
    match field {
        Field::Annotations => map("/annotations"),
        Field::Sysctl => map("/linux/sysctl"),
        Field::LinuxNetDevices => map("/linux/net_devices"),
        Field::CgroupsUnified => map("/linux/resources/unified"),
        Field::Env => variable(key, side),
        Field::Mounts => list("/mounts", "destination"),
        Field::Devices => list("/linux/devices", "path"),
        Field::CdiDevices => list("/cdi_devices", "name"),
        Field::Rlimits => list("/rlimits", "type"),
        Field::HugepageLimits => list("/linux/resources/hugepage_limits", "page_size"),
        Field::Namespace => list("/linux/namespaces", "type"),
        _ => None,
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
        testing::container,
    };

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

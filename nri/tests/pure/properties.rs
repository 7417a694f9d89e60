//! Properties of the merge over random answers: no owner is lost, a conflict names the actual
//! owner, the result does not depend on the order of a map or of unrelated keys, and later plugins
//! see the original with the merged reply applied.

use std::collections::{BTreeMap, BTreeSet};

use nri::{
    adjust::{Adjust, SetResources},
    merge::{MergeError, StopMerge},
    owners::Owner,
};
use proptest::{prelude::*, sample::select};
use proto_nri::{ContainerAdjustment, CreateContainerResponse, Field};

use crate::support::*;

#[derive(Debug, Clone)]
enum Act {
    Annotation(&'static str, Deed),
    Env(&'static str, Deed),
    Mount(&'static str, Deed),
    Device(&'static str, Deed),
    Sysctl(&'static str, Deed),
    Args(bool),
    Memory,
    Oom,
    Rlimit(&'static str),
    Cdi(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Deed {
    Add,
    Remove,
    Set,
}

fn acts() -> impl Strategy<Value = Act> {
    let key = select(vec!["old", "a", "b"]);
    let name = select(vec!["OLD", "A", "B"]);
    let path = select(vec!["/old", "/a", "/b/", "//b"]);
    let device = select(vec!["/dev/old", "/dev/a", "/dev//a"]);
    let limit = select(vec!["nofile", "RLIMIT_NOFILE", "RLIMIT_CORE"]);
    let deed = || select(vec![Deed::Add, Deed::Remove, Deed::Set]);
    prop_oneof![
        (key.clone(), deed()).prop_map(|(k, d)| Act::Annotation(k, d)),
        (name, deed()).prop_map(|(k, d)| Act::Env(k, d)),
        (path, deed()).prop_map(|(k, d)| Act::Mount(k, d)),
        (device, deed()).prop_map(|(k, d)| Act::Device(k, d)),
        (key.clone(), deed()).prop_map(|(k, d)| Act::Sysctl(k, d)),
        any::<bool>().prop_map(Act::Args),
        Just(Act::Memory),
        Just(Act::Oom),
        limit.prop_map(Act::Rlimit),
        key.prop_map(Act::Cdi),
    ]
}

/// Values contain the plugin's name, so that a test can identify their origin.
fn write(acts: &[Act], who: &str) -> CreateContainerResponse {
    let mut a = ContainerAdjustment::default();
    for act in acts {
        match *act {
            Act::Annotation(k, Deed::Add) => a.add_annotation(k, who),
            Act::Annotation(k, Deed::Remove) => a.remove_annotation(k),
            Act::Annotation(k, Deed::Set) => a.set_annotation(k, who),
            Act::Env(k, Deed::Add) => a.add_env(k, who),
            Act::Env(k, Deed::Remove) => a.remove_env(k),
            Act::Env(k, Deed::Set) => a.set_env(k, who),
            Act::Mount(k, Deed::Add) => a.add_mount(mount(k, who)),
            Act::Mount(k, Deed::Remove) => a.remove_mount(k),
            Act::Mount(k, Deed::Set) => a.set_mount(mount(k, who)),
            Act::Device(k, Deed::Add) => a.add_device(device(k, 9)),
            Act::Device(k, Deed::Remove) => a.remove_device(k),
            Act::Device(k, Deed::Set) => a.set_device(device(k, 9)),
            Act::Sysctl(k, Deed::Add) => a.add_sysctl(k, who),
            Act::Sysctl(k, Deed::Remove) => a.remove_sysctl(k),
            Act::Sysctl(k, Deed::Set) => a.set_sysctl(k, who),
            Act::Args(false) => a.add_args([who]),
            Act::Args(true) => a.set_args([who]),
            Act::Memory => a.memory_limit(1),
            Act::Oom => a.oom_score_adj(1),
            Act::Rlimit(k) => a.add_rlimit(k, 1, 1),
            Act::Cdi(k) => a.add_cdi_device(k),
        };
    }
    CreateContainerResponse {
        adjust: Some(a),
        ..Default::default()
    }
}

const IDS: [&str; 4] = ["10-a", "20-b", "30-c", "40-d"];

fn all_answers(plugins: &[Vec<Act>]) -> Vec<CreateContainerResponse> {
    plugins
        .iter()
        .zip(IDS)
        .map(|(acts, id)| write(acts, id))
        .collect()
}

fn plugins() -> impl Strategy<Value = Vec<Vec<Act>>> {
    proptest::collection::vec(proptest::collection::vec(acts(), 0..4), 0..4)
}

/// Applies merged maps and lists like a runtime: removals first for maps, in order for lists.
fn applied_env(reply: &ContainerAdjustment) -> BTreeMap<String, String> {
    let original = container().env;
    let split = original.iter().filter_map(|e| e.split_once('='));
    let mut env: BTreeMap<String, String> =
        split.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    for var in &reply.env {
        match var.key.strip_prefix('-') {
            Some(name) => drop(env.remove(name)),
            None => drop(env.insert(var.key.clone(), var.value.clone())),
        }
    }
    env
}

fn applied_annotations(reply: &ContainerAdjustment) -> BTreeMap<String, String> {
    let mut annotations = container().annotations;
    for key in reply.annotations.keys().filter_map(|k| k.strip_prefix('-')) {
        annotations.remove(key);
    }
    let set = reply
        .annotations
        .iter()
        .filter(|(k, _)| !k.starts_with('-'));
    annotations.extend(set.map(|(k, v)| (k.clone(), v.clone())));
    annotations
}

fn applied_mounts(reply: &ContainerAdjustment) -> BTreeMap<String, String> {
    let original = container().mounts;
    let mut mounts: BTreeMap<String, String> = original
        .into_iter()
        .map(|m| (m.destination, m.source))
        .collect();
    for m in &reply.mounts {
        match m.destination.strip_prefix('-') {
            Some(path) => drop(mounts.remove(path)),
            None => drop(mounts.insert(m.destination.clone(), m.source.clone())),
        }
    }
    mounts
}

proptest! {
    #[test]
    fn what_later_plugins_see_is_what_the_reply_makes_of_the_original(plugins in plugins()) {
        let Ok(merged) = merge(all_answers(&plugins)) else { return Ok(()) };
        let env = merged.seen.env.iter().filter_map(|e| e.split_once('='));
        let env: BTreeMap<_, _> = env.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        prop_assert_eq!(env, applied_env(merged.reply()));
        prop_assert_eq!(&merged.seen.annotations, &applied_annotations(merged.reply()));
        let mounts = merged.seen.mounts.iter();
        let mounts: BTreeMap<_, _> =
            mounts.map(|m| (m.destination.clone(), m.source.clone())).collect();
        prop_assert_eq!(mounts, applied_mounts(merged.reply()));
    }

    #[test]
    fn no_owner_is_lost(plugins in plugins()) {
        let Ok(merged) = merge(all_answers(&plugins)) else { return Ok(()) };
        for var in merged.reply().env.iter().filter(|v| !v.key.starts_with('-')) {
            prop_assert_eq!(merged.owner_of(Field::Env, &var.key), Some(var.value.clone()));
        }
        for (key, value) in &merged.reply().annotations {
            match key.strip_prefix('-') {
                None => prop_assert_eq!(merged.owner_of(Field::Annotations, key), Some(value.clone())),
                Some(key) => prop_assert!(merged.owner_of(Field::Annotations, key).is_some()),
            }
        }
        for m in merged.reply().mounts.iter().filter(|m| !m.destination.starts_with('-')) {
            let owner = merged.owner_of(Field::Mounts, &m.destination);
            prop_assert_eq!(owner, Some(m.source.clone()));
        }
        if let Some(who) = merged.reply().args.first() {
            prop_assert_eq!(merged.owner(Field::Args), Some(who.clone()));
        }
        let keys: BTreeSet<_> = merged.reply().mounts.iter().map(|m| &m.destination).collect();
        prop_assert_eq!(keys.len(), merged.reply().mounts.len(), "each key once");
    }

    #[test]
    fn a_conflict_names_a_plugin_that_touched_the_very_key(plugins in plugins()) {
        let Err(MergeError::Conflict(conflict)) = merge(all_answers(&plugins)) else {
            return Ok(());
        };
        let at = |id: &str| IDS.iter().position(|known| *known == id).expect("one of ours");
        let (earlier, later) = (at(&conflict.earlier.to_string()), at(&conflict.later.to_string()));
        prop_assert!(earlier <= later);
        // Without the later plugin, the earlier ones agree.
        let before = merge(all_answers(&plugins[..later])).expect("the first error wins");
        if earlier < later {
            let owner = match &conflict.key {
                Some(key) => before.owner_of(conflict.field, key),
                None => before.owner(conflict.field),
            };
            let sign = if conflict.removed { "-" } else { "" };
            prop_assert_eq!(owner, Some(format!("{sign}{}", conflict.earlier)));
        }
    }

    #[test]
    fn unrelated_entries_may_come_in_any_order(acts in proptest::collection::vec(acts(), 0..5)) {
        let forward = merge(vec![write(&acts, "10-a")]);
        let mut backward = acts;
        backward.reverse();
        let backward = merge(vec![write(&backward, "10-a")]);
        prop_assert_eq!(forward.is_ok(), backward.is_ok());
        if let (Ok(forward), Ok(backward)) = (forward, backward) {
            prop_assert_eq!(&forward.answer.owners, &backward.answer.owners);
            prop_assert_eq!(&forward.seen.annotations, &backward.seen.annotations);
            prop_assert_eq!(&forward.reply().annotations, &backward.reply().annotations);
        }
    }

    #[test]
    fn a_stop_keeps_the_first_value_of_each_field(
        shares in proptest::collection::vec((0..3usize, 0..2u64, 0..50u64), 0..12),
    ) {
        let mut merge = StopMerge::new();
        let mut first: BTreeMap<String, (usize, u64)> = BTreeMap::new();
        for (who, container, value) in &shares {
            let mut update = nri::adjust::update(container.to_string(), false);
            update.cpu_shares(*value);
            let conflicts = merge.apply(&plugin(IDS[*who]), vec![update]);
            let known = first.contains_key(&container.to_string());
            prop_assert_eq!(conflicts.len(), usize::from(known));
            if let (Some(conflict), Some((by, _))) = (conflicts.first(), first.get(&container.to_string())) {
                prop_assert_eq!(&conflict.earlier, &plugin(IDS[*by]));
            }
            first.entry(container.to_string()).or_insert((*who, *value));
        }
        let merged = merge.finish();
        prop_assert_eq!(merged.update.len(), first.len());
        for (id, (who, value)) in first {
            let owners = merged.owners.container(&id).expect("it was updated");
            prop_assert_eq!(owners.owner(Field::CpuShares), Some(&Owner::Set(plugin(IDS[who]))));
            let update = merged.update.iter().find(|u| u.container_id == id);
            let resources = update.and_then(|u| u.linux.clone()).and_then(|l| l.resources);
            let cpu = resources.and_then(|r| r.cpu).and_then(|c| c.shares);
            prop_assert_eq!(cpu.map(|s| s.value), Some(value));
        }
    }
}

//! Invariants of every merged result, for any answers of plugins: every value has an owner, every
//! owner has a value, each key occurs once, and the next plugin sees what the runtime will get.

use std::collections::{BTreeMap, BTreeSet};

use nri::{
    PluginId,
    mask::FieldMask,
    merge::{MergedCreate, MergedUpdate},
    owners::{ContainerOwners, Owner, Owners, removal},
    proto::*,
    validate::{self, DefaultValidator, Part},
};

/// The answering plugins, and the fields that each may set.
pub(super) type Plugins<'a> = [(&'a PluginId, FieldMask)];

/// Checks a merged CreateContainer, and the container that the next plugin would see.
pub(super) fn created(merged: &MergedCreate, seen: &Container, plugins: &Plugins<'_>) {
    owners(&merged.owners, plugins);
    let none = ContainerOwners::new(merged.container.id.as_str());
    let owned = merged.owners.container(&merged.container.id);
    Adjusted {
        owned: owned.unwrap_or(&none),
        reply: &merged.adjust,
        seen,
    }
    .check();
    let created = |id: &str| id == merged.container.id;
    assert!(!merged.update.iter().any(|u| created(&u.container_id)));
    assert!(!merged.evict.iter().any(|e| created(&e.container_id)));
    updates(&merged.update, &merged.owners);
    evictions(&merged.evict);
    checked(merged, plugins);
}

/// Checks a merged UpdateContainer, and the resources that the next plugin would see.
pub(super) fn updated(
    merged: &MergedUpdate,
    target: &str,
    seen: Option<&LinuxResources>,
    plugins: &Plugins<'_>,
) {
    owners(&merged.owners, plugins);
    assert!(!merged.others.iter().any(|u| u.container_id == target));
    updates(&merged.others, &merged.owners);
    evictions(&merged.evict);
    let owned = merged.owners.container(target);
    match &merged.target {
        Some(resources) => {
            assert_eq!(Some(resources), seen);
            assert!(resources.devices.is_empty(), "NRI-547");
            let none = ContainerOwners::new(target);
            owned_are_set(owned.unwrap_or(&none), resources);
        }
        None => assert!(owned.is_none(), "an owner without an update"),
    }
}

/// Checks merged updates of other containers.
pub(super) fn updates(updates: &[ContainerUpdate], owners: &Owners) {
    once(updates.iter().map(|u| u.container_id.clone()));
    for update in updates {
        let linux = update.linux.as_ref();
        let resources = linux.and_then(|l| l.resources.as_ref());
        let resources = resources.expect("NRI-544");
        assert!(resources.devices.is_empty(), "NRI-547");
        let none = ContainerOwners::new(update.container_id.as_str());
        let owned = owners.container(&update.container_id).unwrap_or(&none);
        set_are_owned(owned, resources);
        owned_are_set(owned, resources);
    }
}

/// A value that the first plugin set is kept, whatever later plugins set.
pub(super) fn kept(first: &[ContainerUpdate], all: &[ContainerUpdate]) {
    for update in first {
        let same = |other: &&ContainerUpdate| other.container_id == update.container_id;
        let other = all.iter().find(same).expect("it was updated");
        let resources = |update: &ContainerUpdate| {
            let linux = update.linux.clone().unwrap_or_default();
            linux.resources.unwrap_or_default()
        };
        let mut merged = resources(other);
        let mut again = merged.clone();
        nri::merge::overlay(&mut again, resources(update));
        for side in [&mut merged, &mut again] {
            side.hugepage_limits
                .sort_by(|a, b| a.page_size.cmp(&b.page_size));
        }
        assert_eq!(again, merged);
    }
}

fn evictions(evictions: &[ContainerEviction]) {
    once(evictions.iter().map(|e| e.container_id.clone()));
}

fn once(keys: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for key in keys {
        assert!(!all.contains(&key), "{key:?} twice");
        all.insert(key);
    }
    all
}

/// Every owner is a plugin that answered and may own the field. Validators get the same table.
pub(super) fn owners(owners: &Owners, plugins: &Plugins<'_>) {
    let wire = OwningPlugins::from(owners);
    for fields in wire.owners.values() {
        let simple = fields.simple.iter().map(|(field, owner)| (*field, owner));
        let compound = fields.compound.iter();
        let compound =
            compound.flat_map(|(field, keys)| keys.owners.values().map(|owner| (*field, owner)));
        for (field, owner) in simple.chain(compound) {
            let field = Field::try_from(field).expect("a field of ours");
            let owner: Owner = owner.parse().expect("what we print we read");
            for plugin in owner.plugins() {
                let may =
                    |(id, fields): &(&PluginId, FieldMask)| *id == plugin && fields.has(field);
                assert!(plugins.iter().any(may), "{plugin} owns {field:?}");
            }
        }
    }
    let read = Owners::try_from(&wire).expect("what we print we read");
    assert_eq!(OwningPlugins::from(&read), wire);
}

fn is_set(owner: Option<&Owner>) -> bool {
    matches!(owner, Some(Owner::Set(_)))
}

/// Returns the fields that a resources message sets: simple ones, and those with keys.
fn set_fields(resources: &LinuxResources) -> (Vec<Field>, BTreeSet<(Field, String)>) {
    let pages = resources.hugepage_limits.iter();
    let pages = once(pages.map(|page| page.page_size.clone())).into_iter();
    let pages = pages.map(|size| (Field::HugepageLimits, size));
    let unified = resources.unified.keys();
    let unified = unified.map(|key| (Field::CgroupsUnified, key.clone()));
    (
        nri::merge::simple_fields(resources),
        pages.chain(unified).collect(),
    )
}

fn set_are_owned(owned: &ContainerOwners, resources: &LinuxResources) {
    let (simple, keys) = set_fields(resources);
    for field in simple {
        assert!(is_set(owned.owner(field)), "{field:?} has lost its owner");
    }
    for (field, key) in keys {
        let owner = owned.owner_of(field, &key);
        assert!(is_set(owner), "{field:?} {key:?} has lost its owner");
    }
}

fn owned_are_set(owned: &ContainerOwners, resources: &LinuxResources) {
    let (simple, keys) = set_fields(resources);
    for field in FieldMask::RESOURCES.iter() {
        assert!(owned.owner(field).is_none() || simple.contains(&field));
        for (key, _) in owned.keys(field) {
            assert!(keys.contains(&(field, key.to_owned())), "{field:?} {key:?}");
        }
    }
}

/// One container's owners, its merged adjustment, and the container that the next plugin sees.
struct Adjusted<'a> {
    owned: &'a ContainerOwners,
    reply: &'a ContainerAdjustment,
    seen: &'a Container,
}

impl Adjusted<'_> {
    fn check(&self) {
        let (reply, seen) = (self.reply, self.seen);
        let linux = reply.linux.as_ref().expect("always present");
        let seen_linux = seen.linux.as_ref().expect("always present");
        self.map(Field::Annotations, &reply.annotations, &seen.annotations);
        self.map(Field::Sysctl, &linux.sysctl, &seen_linux.sysctl);
        let seen_devices = &seen_linux.net_devices;
        self.map(Field::LinuxNetDevices, &linux.net_devices, seen_devices);
        self.list(Field::Mounts, &reply.mounts, &seen.mounts, |m| {
            m.destination.clone()
        });
        let env: Vec<String> = reply.env.iter().map(variable).collect();
        self.list(Field::Env, &env, &seen.env, |var| name(var));
        self.list(
            Field::Devices,
            &linux.devices,
            &seen_linux.devices,
            |device| device.path.clone(),
        );
        self.namespaces(&linux.namespaces, &seen_linux.namespaces);
        self.names();
        self.simple(linux);
        let resources = linux.resources.as_ref().expect("always present");
        set_are_owned(self.owned, resources);
        owned_are_set(self.owned, resources);
    }

    fn map<V: PartialEq + std::fmt::Debug>(
        &self,
        field: Field,
        reply: &BTreeMap<String, V>,
        seen: &BTreeMap<String, V>,
    ) {
        for (key, value) in reply {
            match removal(key) {
                None => {
                    assert!(is_set(self.owned.owner_of(field, key)), "{field:?} {key:?}");
                    assert_eq!(seen.get(key), Some(value));
                }
                Some(key) => {
                    let owner = self.owned.owner_of(field, key);
                    assert!(
                        owner.is_some(),
                        "the removal of {field:?} {key:?} has no owner"
                    );
                    assert!(reply.contains_key(key) || !seen.contains_key(key));
                }
            }
        }
        for (key, owner) in self.owned.keys(field) {
            let reported = match owner {
                Owner::Cleared(_) => reply.contains_key(&format!("-{key}")),
                Owner::Set(_) | Owner::Shared(_) => reply.contains_key(key),
            };
            assert!(
                reported,
                "{field:?} {key:?} is {owner}'s and the reply says nothing"
            );
        }
    }

    /// Checks entries that are owned by key: mounts, variables, devices.
    fn list<T: PartialEq + std::fmt::Debug>(
        &self,
        field: Field,
        reply: &[T],
        seen: &[T],
        key: impl Fn(&T) -> String,
    ) {
        let bare = |entry: &T| {
            let key = key(entry);
            removal(&key).map_or(key.clone(), str::to_owned)
        };
        let answers = once(reply.iter().map(bare));
        let clean = |entry: &T| match field {
            Field::Env => key(entry),
            _ => nri::merge::clean_path(&key(entry)),
        };
        let shown = |wanted: &str| -> Vec<&T> {
            seen.iter().filter(|entry| clean(entry) == wanted).collect()
        };
        for entry in reply {
            let key = key(entry);
            let owner = self.owned.owner_of(field, removal(&key).unwrap_or(&key));
            match removal(&key) {
                None => {
                    assert!(is_set(owner), "{field:?} {key:?} has lost its owner");
                    assert_eq!(shown(&key), [entry]);
                }
                Some(key) => {
                    assert!(
                        matches!(owner, Some(Owner::Cleared(_))),
                        "the removal of {field:?} {key:?} is {owner:?}'s"
                    );
                    assert!(shown(key).is_empty());
                }
            }
        }
        for (key, owner) in self.owned.keys(field) {
            assert!(
                answers.contains(key),
                "{field:?} {key:?} is {owner}'s alone"
            );
        }
    }

    fn namespaces(&self, reply: &[LinuxNamespace], seen: &[LinuxNamespace]) {
        let bare = |n: &LinuxNamespace| removal(&n.r#type).unwrap_or(&n.r#type).to_owned();
        let answers = once(reply.iter().map(bare));
        for namespace in reply {
            let kind = bare(namespace);
            assert!(is_set(self.owned.owner_of(Field::Namespace, &kind)));
            let shown: Vec<_> = seen.iter().filter(|n| n.r#type == kind).collect();
            match removal(&namespace.r#type) {
                None => assert_eq!(shown, [namespace]),
                Some(_) => assert!(shown.is_empty()),
            }
        }
        assert!(
            self.owned
                .keys(Field::Namespace)
                .all(|(k, _)| answers.contains(k))
        );
    }

    /// Checks rlimits and CDI devices, which have names and are never removed.
    fn names(&self) {
        let plain = |name: &str| {
            let upper = name.to_ascii_uppercase();
            upper.strip_prefix("RLIMIT_").unwrap_or(&upper).to_owned()
        };
        let answers = once(self.reply.rlimits.iter().map(|r| plain(&r.r#type)));
        let owned = self.owned.keys(Field::Rlimits).map(|(name, _)| plain(name));
        assert_eq!(once(owned), answers);
        let answers = once(self.reply.cdi_devices.iter().map(|d| d.name.clone()));
        let owned = self.owned.keys(Field::CdiDevices);
        assert_eq!(once(owned.map(|(name, _)| name.to_owned())), answers);
        assert_eq!(self.seen.cdi_devices, self.reply.cdi_devices);
    }

    fn simple(&self, linux: &LinuxContainerAdjustment) {
        let seen = self.seen.linux.as_ref().expect("always present");
        let set = |field: Field, answers: bool| {
            assert_eq!(is_set(self.owned.owner(field)), answers, "{field:?}");
        };
        set(Field::CgroupsPath, !linux.cgroups_path.is_empty());
        set(Field::OomScoreAdj, linux.oom_score_adj.is_some());
        set(Field::IoPriority, linux.io_priority.is_some());
        set(Field::SeccompPolicy, linux.seccomp_policy.is_some());
        set(Field::LinuxSched, linux.scheduler.is_some());
        set(Field::MemoryPolicy, linux.memory_policy.is_some());
        if !self.reply.args.is_empty() {
            set(Field::Args, true);
            assert_eq!(self.seen.args, self.reply.args);
        }
        let rdt = linux.rdt.clone().unwrap_or_default();
        set(Field::RdtClosId, rdt.clos_id.is_some());
        set(Field::RdtSchemata, rdt.schemata.is_some());
        set(Field::RdtEnableMonitoring, rdt.enable_monitoring.is_some());
        if rdt.remove {
            assert_eq!(seen.rdt, None);
            let owner = self.owned.owner(Field::RdtClosId);
            assert!(matches!(owner, Some(Owner::Cleared(_))));
        }
        let hooks = self.reply.hooks.clone().unwrap_or_default();
        let shared = self.owned.owner(Field::OciHooks);
        assert_eq!(shared.is_some(), hooks != Hooks::default());
    }
}

/// The strictest default validator rejects exactly the values that it checks; the idle one rejects
/// none.
fn checked(merged: &MergedCreate, plugins: &Plugins<'_>) {
    let parts = plugins.iter().map(|(plugin, _)| Part {
        plugin: (*plugin).clone(),
        subscribed: true,
        answered: true,
    });
    let request = validate::request(merged, &parts.collect::<Vec<_>>());
    assert_eq!(request.plugins.len(), plugins.len());
    assert_eq!(DefaultValidator::default().check(&request), Ok(()));
    let strict = DefaultValidator {
        reject_oci_hook_adjustment: true,
        reject_unconfined_seccomp_adjustment: true,
        reject_namespace_adjustment: true,
        reject_sysctl_adjustment: true,
        reject_device_adjustment: true,
        allowed_owners: [("Mounts,Env".to_owned(), Vec::new())].into(),
        ..DefaultValidator::default()
    };
    let linux = merged.adjust.linux.clone().unwrap_or_default();
    let bad = merged.adjust.hooks != Some(Hooks::default())
        || linux.seccomp_policy.is_some()
        || !linux.namespaces.is_empty()
        || !linux.sysctl.is_empty()
        || !linux.devices.is_empty()
        || !merged.adjust.cdi_devices.is_empty()
        || !merged.adjust.mounts.is_empty()
        || !merged.adjust.env.is_empty();
    assert_eq!(strict.check(&request).is_err(), bad);
}

fn variable(var: &KeyValue) -> String {
    format!("{}={}", var.key, var.value)
}

fn name(var: &str) -> String {
    let (name, _) = var.split_once('=').unwrap_or((var, ""));
    name.to_owned()
}

//! Merging `LinuxResources`, of a container being created and of an existing one.
//!
//! Simple fields are listed in `fields.rs`; compound ones are merged by their keys here.

use std::collections::BTreeSet;

use proto_nri::{Field, HugepageLimit, LinuxResources};

use crate::{
    fields::{self, Visitor},
    owners::{Conflict, ContainerOwners},
    plugin_id::PluginId,
};

/// Adds the messages that are always present on the wire (NRI-407).
pub(super) fn normalise(resources: &mut LinuxResources) {
    resources.memory.get_or_insert_default();
    resources.cpu.get_or_insert_default();
}

/// Claims for `plugin` every field and key that `wanted` sets, or none of them.
pub(super) fn claim(
    owners: &mut ContainerOwners,
    plugin: &PluginId,
    wanted: &LinuxResources,
) -> Result<(), Box<Conflict>> {
    let fields = simple_fields(wanted);
    let mut keys = BTreeSet::new();
    for field in &fields {
        owners.check(plugin, *field)?;
    }
    for key in keys_of(wanted) {
        owners.check_key(plugin, key.0, key.1)?;
        if !keys.insert(key) {
            return Err(owners.set_twice(plugin, key.0, key.1));
        }
    }
    for field in fields {
        owners.claim(plugin, field)?;
    }
    for (field, key) in keys {
        owners.claim_key(plugin, field, key)?;
    }
    Ok(())
}

/// The keys of compound fields that `resources` sets.
fn keys_of(resources: &LinuxResources) -> impl Iterator<Item = (Field, &str)> {
    let pages = resources.hugepage_limits.iter();
    let pages = pages.map(|page| (Field::HugepageLimits, page.page_size.as_str()));
    let unified = resources.unified.keys();
    pages.chain(unified.map(|key| (Field::CgroupsUnified, key.as_str())))
}

/// The simple fields that `resources` sets, in order of their numbers.
pub fn simple_fields(resources: &LinuxResources) -> Vec<Field> {
    let mut set = SetFields(Vec::new());
    fields::visit(
        &mut resources.clone(),
        &mut LinuxResources::default(),
        &mut set,
    );
    set.0
}

struct SetFields(Vec<Field>);

impl Visitor for SetFields {
    fn field<T: Default + PartialEq>(&mut self, field: Field, value: &mut T, _: &mut T) {
        if *value != T::default() {
            self.0.push(field);
        }
    }
}

/// Overwrites in `base` all that `top` sets: present values, hugepage limits by page size (NRI-548,
/// mended), unified by key; device rules are appended.
pub fn overlay(base: &mut LinuxResources, mut top: LinuxResources) {
    fields::visit(&mut top, base, &mut Overlay);
    overlay_hugepages(&mut base.hugepage_limits, top.hugepage_limits);
    base.unified.extend(top.unified);
    base.devices.extend(top.devices);
}

struct Overlay;

impl Visitor for Overlay {
    fn field<T: Default + PartialEq>(&mut self, _: Field, value: &mut T, below: &mut T) {
        if *value != T::default() {
            *below = std::mem::take(value);
        }
    }
}

fn overlay_hugepages(base: &mut Vec<HugepageLimit>, top: Vec<HugepageLimit>) {
    let sizes: BTreeSet<&str> = top.iter().map(|page| page.page_size.as_str()).collect();
    base.retain(|page| !sizes.contains(page.page_size.as_str()));
    base.extend(top);
}

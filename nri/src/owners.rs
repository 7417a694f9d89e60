//! Ownership of fields in one operation (NRI-500…505).
//!
//! [`ContainerOwners::claim`] rejects the second plugin that sets a field; `merge/` calls it per field.
//!
//! ```text
//!            claim by P                 clear by any R
//!   free ───────────────► P ─────────────────────────────► -R ──claim by R──► R
//!                         └─claim by anyone: conflict        └─claim by S≠R: conflict with R
//! ```
//!
//! Pure: no I/O, no clock. The table belongs to the merge that fills it; validators get a copy.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use proto_nri::{CompoundFieldOwners, Field, FieldOwners, OwningPlugins};

use crate::{
    place::path,
    plugin_id::{BadPluginId, PluginId},
};

/// Splits a removal marker off a key: `-key` means "remove `key`" (NRI-505). There is no escape.
pub fn removal(key: &str) -> Option<&str> {
    key.strip_prefix('-')
}

/// Two plugins set the same field (NRI-503). `later` is the one whose answer failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("plugin {later} sets {}, {}", self.what(), self.effect())]
pub struct Conflict {
    pub later: PluginId,
    pub earlier: PluginId,
    /// The container of the field.
    pub container: String,
    pub field: Field,
    /// `None` for a simple field.
    pub key: Option<String>,
    /// `earlier` had removed the key rather than set it.
    pub removed: bool,
}

impl Conflict {
    fn effect(&self) -> String {
        match (self.removed, self.later == self.earlier) {
            (true, _) => format!("already removed by plugin {}", self.earlier),
            (false, true) => "already set by itself".to_owned(),
            (false, false) => format!("already set by plugin {}", self.earlier),
        }
    }

    fn what(&self) -> String {
        let path = path(self.field, self.key.as_deref());
        format!("{path} of container {}", self.container)
    }
}

/// Owner of one field or key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// Set by this plugin.
    Set(PluginId),
    /// Removed by this plugin; on the wire `-NN-name`. Only it may claim the entry (NRI-501).
    Cleared(PluginId),
    /// Added to by each of these, in call order: OCI hooks only (NRI-504).
    Shared(Vec<PluginId>),
}

impl fmt::Display for Owner {
    /// As on the wire: `10-foo`, `-10-foo` or `10-foo,20-bar`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(id) => write!(f, "{id}"),
            Self::Cleared(id) => write!(f, "-{id}"),
            Self::Shared(ids) => {
                let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
                f.write_str(&ids.join(","))
            }
        }
    }
}

impl FromStr for Owner {
    type Err = BadPluginId;

    fn from_str(s: &str) -> Result<Self, BadPluginId> {
        if let Some(id) = s.strip_prefix('-') {
            return Ok(Self::Cleared(id.parse()?));
        }
        if s.contains(',') {
            return Ok(Self::Shared(
                s.split(',').map(str::parse).collect::<Result<_, _>>()?,
            ));
        }
        Ok(Self::Set(s.parse()?))
    }
}

impl Owner {
    /// The plugins that set, removed or extended the entry; all count for an audit.
    pub fn plugins(&self) -> &[PluginId] {
        match self {
            Self::Set(id) | Self::Cleared(id) => std::slice::from_ref(id),
            Self::Shared(ids) => ids,
        }
    }

    /// The plugins that set the entry or added to it.
    pub fn setters(&self) -> &[PluginId] {
        match self {
            Self::Cleared(_) => &[],
            Self::Set(_) | Self::Shared(_) => self.plugins(),
        }
    }
}

/// Owners of the fields of one container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerOwners {
    pub(crate) id: String,
    simple: BTreeMap<Field, Owner>,
    compound: BTreeMap<Field, BTreeMap<String, Owner>>,
}

impl ContainerOwners {
    /// An empty table for the container with this id.
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            ..Self::default()
        }
    }

    /// Checks whether `plugin` could claim a simple field; the error names its owner.
    pub fn check(&self, plugin: &PluginId, field: Field) -> Result<(), Box<Conflict>> {
        self.check_owner(plugin, field, None, self.owner(field))
    }

    /// Checks whether `plugin` could claim one key of a compound field; the error names its owner.
    pub fn check_key(
        &self,
        plugin: &PluginId,
        field: Field,
        key: &str,
    ) -> Result<(), Box<Conflict>> {
        self.check_owner(plugin, field, Some(key), self.owner_of(field, key))
    }

    /// Claims a simple field for `plugin`; the error names its owner.
    pub fn claim(&mut self, plugin: &PluginId, field: Field) -> Result<(), Box<Conflict>> {
        self.check(plugin, field)?;
        self.simple.insert(field, Owner::Set(plugin.clone()));
        Ok(())
    }

    /// Claims one key of a compound field for `plugin`; the error names its owner.
    pub fn claim_key(
        &mut self,
        plugin: &PluginId,
        field: Field,
        key: &str,
    ) -> Result<(), Box<Conflict>> {
        self.check_key(plugin, field, key)?;
        let keys = self.compound.entry(field).or_default();
        keys.insert(key.to_owned(), Owner::Set(plugin.clone()));
        Ok(())
    }

    /// Frees a simple field for `plugin`, for any owner (NRI-502).
    pub fn clear(&mut self, plugin: &PluginId, field: Field) {
        self.simple.insert(field, Owner::Cleared(plugin.clone()));
    }

    /// Frees one key for `plugin`, for any owner (NRI-502).
    pub fn clear_key(&mut self, plugin: &PluginId, field: Field, key: &str) {
        let keys = self.compound.entry(field).or_default();
        keys.insert(key.to_owned(), Owner::Cleared(plugin.clone()));
    }

    /// Forgets the owner of one key.
    pub(crate) fn release_key(&mut self, field: Field, key: &str) {
        if let Some(keys) = self.compound.get_mut(&field) {
            keys.remove(key);
        }
    }

    /// Adds `plugin` to those that share a simple field (NRI-504). Never a conflict.
    pub fn share(&mut self, plugin: &PluginId, field: Field) {
        let owner = self
            .simple
            .entry(field)
            .or_insert_with(|| Owner::Shared(Vec::new()));
        let mut ids = owner.plugins().to_vec();
        ids.push(plugin.clone());
        *owner = Owner::Shared(ids);
    }

    /// The owner of a simple field.
    pub fn owner(&self, field: Field) -> Option<&Owner> {
        self.simple.get(&field)
    }

    /// The owner of one key of a compound field.
    pub fn owner_of(&self, field: Field, key: &str) -> Option<&Owner> {
        self.compound.get(&field)?.get(key)
    }

    /// The keys of a compound field and their owners, in order of the keys.
    pub fn keys(&self, field: Field) -> impl Iterator<Item = (&str, &Owner)> {
        let keys = self.compound.get(&field).into_iter().flatten();
        keys.map(|(key, owner)| (key.as_str(), owner))
    }

    /// The plugins that set a field or added to it: under this key, or under any. In their order,
    /// each once.
    pub fn setters(&self, field: Field, key: Option<&str>) -> Vec<String> {
        let keys = self.keys(field);
        let keyed = keys.filter(|(own, _)| key.is_none_or(|key| key == *own));
        let keyed = keyed.map(|(_, owner)| owner);
        names(self.owner(field).into_iter().chain(keyed))
    }

    /// The plugins that set any field or added to it. In their order, each once.
    pub fn all_setters(&self) -> Vec<String> {
        let keyed = self.compound.values().flat_map(BTreeMap::values);
        names(self.simple.values().chain(keyed))
    }

    /// Returns the paths that `plugin` set and no other plugin has taken since, such as
    /// `env["DEMO"]`.
    pub fn set_by(&self, plugin: &PluginId) -> Vec<String> {
        let mine = |owner: &Owner| owner.setters().contains(plugin);
        let simple = self.simple.iter().filter(|(_, owner)| mine(owner));
        let mut names: Vec<_> = simple.map(|(field, _)| path(*field, None)).collect();
        for (field, keys) in &self.compound {
            let keys = keys.iter().filter(|(_, owner)| mine(owner));
            names.extend(keys.map(|(key, _)| path(*field, Some(key))));
        }
        names
    }

    /// True while no plugin has changed the container.
    pub fn is_empty(&self) -> bool {
        self.simple.is_empty() && self.compound.is_empty()
    }

    /// The conflict of a plugin that sets one key twice in one answer (NRI-501).
    pub(crate) fn set_twice(&self, plugin: &PluginId, field: Field, key: &str) -> Box<Conflict> {
        Box::new(self.conflict(plugin, plugin, field, Some(key)))
    }

    fn check_owner(
        &self,
        plugin: &PluginId,
        field: Field,
        key: Option<&str>,
        owner: Option<&Owner>,
    ) -> Result<(), Box<Conflict>> {
        let (earlier, removed) = match owner {
            Some(Owner::Cleared(by)) if by != plugin => (by, true),
            Some(Owner::Set(by)) => (by, false),
            // Hooks are shared, never claimed.
            Some(Owner::Cleared(_) | Owner::Shared(_)) | None => return Ok(()),
        };
        Err(Box::new(Conflict {
            removed,
            ..self.conflict(plugin, earlier, field, key)
        }))
    }

    fn conflict(
        &self,
        later: &PluginId,
        earlier: &PluginId,
        field: Field,
        key: Option<&str>,
    ) -> Conflict {
        Conflict {
            later: later.clone(),
            earlier: earlier.clone(),
            container: self.id.clone(),
            field,
            key: key.map(str::to_owned),
            removed: false,
        }
    }
}

fn names<'a>(owners: impl Iterator<Item = &'a Owner>) -> Vec<String> {
    let plugins: BTreeSet<_> = owners.flat_map(Owner::setters).collect();
    plugins.into_iter().map(ToString::to_string).collect()
}

/// The ownership table of one operation: container id → who owns its fields (NRI-500).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owners(BTreeMap<String, ContainerOwners>);

impl Owners {
    /// The table of one container, if a plugin changed it.
    pub fn container(&self, id: &str) -> Option<&ContainerOwners> {
        self.0.get(id)
    }

    /// All tables, in order of the container ids.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ContainerOwners)> {
        self.0.iter().map(|(id, owners)| (id.as_str(), owners))
    }

    /// Puts one container's table in, unless it is empty.
    pub(crate) fn put(&mut self, owners: ContainerOwners) {
        if !owners.is_empty() {
            self.0.insert(owners.id.clone(), owners);
        }
    }
}

impl From<&Owners> for OwningPlugins {
    fn from(owners: &Owners) -> Self {
        let owners = owners.iter().map(|(id, o)| (id.to_owned(), o.into()));
        Self {
            owners: owners.collect(),
        }
    }
}

impl From<&ContainerOwners> for FieldOwners {
    fn from(table: &ContainerOwners) -> Self {
        let simple = table.simple.iter();
        let compound = table.compound.iter().map(|(field, keys)| {
            let owners = keys.iter().map(|(k, o)| (k.clone(), o.to_string()));
            let owners = owners.collect();
            (*field as i32, CompoundFieldOwners { owners })
        });
        Self {
            simple: simple.map(|(f, o)| (*f as i32, o.to_string())).collect(),
            compound: compound.collect(),
        }
    }
}

impl TryFrom<&OwningPlugins> for Owners {
    type Error = BadPluginId;

    /// Reads the table in a validator's request. Fields of a newer NRI are left out.
    fn try_from(wire: &OwningPlugins) -> Result<Self, BadPluginId> {
        let mut owners = Self::default();
        for (id, fields) in &wire.owners {
            let mut table = ContainerOwners::new(id.as_str());
            for (field, owner) in &fields.simple {
                if let Ok(field) = Field::try_from(*field) {
                    table.simple.insert(field, owner.parse()?);
                }
            }
            for (field, keys) in &fields.compound {
                let Ok(field) = Field::try_from(*field) else {
                    continue;
                };
                for (key, owner) in &keys.owners {
                    let entry = table.compound.entry(field).or_default();
                    entry.insert(key.clone(), owner.parse()?);
                }
            }
            owners.put(table);
        }
        Ok(owners)
    }
}

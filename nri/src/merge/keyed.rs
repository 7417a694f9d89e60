//! The part that keyed fields share (NRI-505, NRI-510…518). Entries of two kinds of fields can be
//! removed by key: of lists (mounts, env, devices) and of maps (annotations, sysctl, net devices).
//! Other fields are replaced completely.
//!
//! Work is linear in the answer and in the existing values, whatever a plugin sends.

use std::collections::{BTreeMap, BTreeSet};

use proto_nri::{Field, KeyValue, LinuxDevice, Mount};

use super::error::MergeError;
use crate::{
    owners::{ContainerOwners, removal},
    plugin_id::PluginId,
};

/// An entry of a list that is owned and removed by a key.
pub(super) trait Keyed: Sized {
    const FIELD: Field;
    /// The key, with the marker if it is one for removal.
    fn key(&self) -> &str;
    fn set_key(&mut self, key: String);
    /// The key by which it is owned and compared: a path, unless overridden (NRI-518).
    fn canonical(key: &str) -> String {
        clean_path(key)
    }
    /// The fault of the key without its marker.
    fn fault(key: &str) -> Option<&'static str>;
}

impl Keyed for Mount {
    const FIELD: Field = Field::Mounts;
    fn key(&self) -> &str {
        &self.destination
    }
    fn set_key(&mut self, key: String) {
        self.destination = key;
    }
    fn fault(key: &str) -> Option<&'static str> {
        key.is_empty().then_some("a mount must have a destination")
    }
}

impl Keyed for LinuxDevice {
    const FIELD: Field = Field::Devices;
    fn key(&self) -> &str {
        &self.path
    }
    fn set_key(&mut self, key: String) {
        self.path = key;
    }
    fn fault(key: &str) -> Option<&'static str> {
        key.is_empty().then_some("a device must have a path")
    }
}

impl Keyed for KeyValue {
    const FIELD: Field = Field::Env;
    fn key(&self) -> &str {
        &self.key
    }
    fn set_key(&mut self, key: String) {
        self.key = key;
    }
    fn canonical(key: &str) -> String {
        key.to_owned()
    }
    /// `A=B` would be owned as `A=B` but set `A`.
    fn fault(key: &str) -> Option<&'static str> {
        key.contains('=')
            .then_some("the name of a variable must not contain '='")
    }
}

/// One field of the request that later plugins see, and of the reply that the runtime gets.
pub(super) struct Both<'a, T> {
    pub(super) request: &'a mut T,
    pub(super) reply: &'a mut T,
}

pub(super) fn both<'a, T>(request: &'a mut T, reply: &'a mut T) -> Both<'a, T> {
    Both { request, reply }
}

/// Keys of lists that plugins removed and no plugin had set: owned, and free for any later plugin
/// (NRI-513).
pub(super) type Freed = BTreeSet<(Field, String)>;

/// The claims of one plugin on one container.
pub(super) struct Claims<'a> {
    pub(super) owners: &'a mut ContainerOwners,
    pub(super) freed: &'a mut Freed,
    pub(super) plugin: &'a PluginId,
}

/// The result of one plugin's entries.
pub(super) struct Taken<T> {
    /// Keys that the plugin removed or set: other entries with these keys must be removed.
    pub(super) keys: BTreeSet<String>,
    /// The entries for the reply, in order of appearance (NRI-514): entries set, and markers of
    /// keys only removed (NRI-512).
    pub(super) reply: Vec<T>,
}

impl<T: Keyed> Taken<T> {
    /// The entries set, without markers: what later plugins get to see.
    pub(super) fn set(&self) -> impl Iterator<Item = &T> {
        self.reply.iter().filter(|e| removal(e.key()).is_none())
    }
}

impl Claims<'_> {
    pub(super) fn claim(&mut self, field: Field) -> Result<(), MergeError> {
        Ok(self.owners.claim(self.plugin, field)?)
    }

    pub(super) fn claim_key(&mut self, field: Field, key: &str) -> Result<(), MergeError> {
        Ok(self.owners.claim_key(self.plugin, field, key)?)
    }

    /// Claims the keys that the entries set, and clears those that they remove.
    ///
    /// Every removal is owned (`-P`), so that validators see it. The removal of an original entry
    /// reserves nothing: a later plugin may add the key again (NRI-513).
    pub(super) fn take<T: Keyed>(&mut self, entries: Vec<T>) -> Result<Taken<T>, MergeError> {
        let mut removed = BTreeSet::new();
        let mut set = BTreeSet::new();
        for entry in &entries {
            let bare = removal(entry.key()).unwrap_or(entry.key());
            if let Some(why) = T::fault(bare) {
                return Err(bad_key::<T>(self.plugin, entry.key(), why));
            }
            let side = match removal(entry.key()) {
                Some(_) => &mut removed,
                None => &mut set,
            };
            let key = T::canonical(bare);
            if removal(entry.key()).is_none() && removal(&key).is_some() {
                // Such as `./-/etc`: under its clean path it would remove `/etc`.
                let why = "its cleaned form would be a removal";
                return Err(bad_key::<T>(self.plugin, entry.key(), why));
            }
            side.insert(key);
        }
        for key in &removed {
            self.remove_key(T::FIELD, key);
        }
        let mut marked = BTreeSet::new();
        let mut reply = Vec::with_capacity(entries.len());
        for mut entry in entries {
            match removal(entry.key()).map(T::canonical) {
                None => {
                    let key = T::canonical(entry.key());
                    if self.freed.remove(&(T::FIELD, key.clone())) {
                        self.owners.release_key(T::FIELD, &key);
                    }
                    self.claim_key(T::FIELD, &key)?;
                    entry.set_key(key);
                    reply.push(entry);
                }
                Some(key) if set.contains(&key) || !marked.insert(key.clone()) => {}
                Some(key) => {
                    entry.set_key(format!("-{key}"));
                    reply.push(entry);
                }
            }
        }
        removed.append(&mut set);
        Ok(Taken {
            keys: removed,
            reply,
        })
    }

    /// Clears a key of a list, and frees it unless an earlier plugin had set it.
    fn remove_key(&mut self, field: Field, key: &str) {
        if self.owners.owner_of(field, key).is_none() {
            self.freed.insert((field, key.to_owned()));
        }
        self.owners.clear_key(self.plugin, field, key);
    }

    /// Claims a list, and puts it in the place of what has the same keys on both sides.
    pub(super) fn list<T: Keyed + Clone>(
        &mut self,
        entries: Vec<T>,
        both: Both<'_, Vec<T>>,
    ) -> Result<(), MergeError> {
        let Both { request, reply } = both;
        let taken = self.take(entries)?;
        drop_keys(request, &taken.keys);
        request.extend(taken.set().cloned());
        drop_keys(reply, &taken.keys);
        reply.extend(taken.reply);
        Ok(())
    }

    /// Claims, clears and applies a map whose keys may be marked. A removal is always owned, and
    /// reaches the reply as `-key`, beside `key` if the plugin sets it too (NRI-510, NRI-511).
    pub(super) fn map<V: Clone + Default>(
        &mut self,
        field: Field,
        entries: BTreeMap<String, V>,
        both: Both<'_, BTreeMap<String, V>>,
    ) -> Result<(), MergeError> {
        let Both { request, reply } = both;
        for key in entries.keys().filter_map(|key| removal(key)) {
            self.owners.clear_key(self.plugin, field, key);
            request.remove(key);
            // Under `-x` the reply has only an earlier plugin's removal of `x`, which is kept.
            if removal(key).is_none() {
                reply.remove(key);
            }
            reply.insert(format!("-{key}"), V::default());
        }
        for (key, value) in entries {
            if removal(&key).is_some() {
                continue;
            }
            self.claim_key(field, &key)?;
            request.insert(key.clone(), value.clone());
            reply.insert(key, value);
        }
        Ok(())
    }

    /// A simple field, which is replaced as a whole where it is present.
    pub(super) fn whole<T: Clone>(
        &mut self,
        field: Field,
        value: Option<T>,
        both: Both<'_, Option<T>>,
    ) -> Result<(), MergeError> {
        let Both { request, reply } = both;
        if value.is_some() {
            self.claim(field)?;
            request.clone_from(&value);
            *reply = value;
        }
        Ok(())
    }
}

/// Drops from a list what has one of the keys, marker or not.
pub(super) fn drop_keys<T: Keyed>(list: &mut Vec<T>, keys: &BTreeSet<String>) {
    list.retain(|entry| {
        let bare = removal(entry.key()).unwrap_or(entry.key());
        !keys.contains(&T::canonical(bare))
    });
}

fn bad_key<T: Keyed>(plugin: &PluginId, key: &str, why: &'static str) -> MergeError {
    MergeError::BadKey {
        plugin: plugin.clone(),
        field: T::FIELD,
        key: key.to_owned(),
        why,
    }
}

/// The shortest path that means the same, without looking at a file system: one slash between
/// names, no `.`, each `..` resolved as far as it can be.
pub fn clean_path(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." if names.last().is_some_and(|last| *last != "..") => {
                names.pop();
            }
            ".." if rooted => {}
            name => names.push(name),
        }
    }
    match (rooted, names.join("/")) {
        (true, path) => format!("/{path}"),
        (false, path) if path.is_empty() => ".".to_owned(),
        (false, path) => path,
    }
}

//! The plugins behind a field of an adjustment that cannot be applied, for error messages.

use std::collections::BTreeSet;

use nri::{owners::Owner, place};
use proto_nri::{ContainerAdjustment, FieldOwners, OwningPlugins};

use super::error::{Error, Result};
use crate::oci::{HostView, SpecError};

/// Adds the field's setters to an error about an adjustment of the container `id`.
pub fn named(error: SpecError, owners: &OwningPlugins, id: &str) -> SpecError {
    let owners = owners.owners.get(id);
    let found = error.field().map(|field| {
        let setters = owners.map(|owners| setters(owners, field));
        (field.to_owned(), setters.unwrap_or_default())
    });
    match found {
        Some((field, setters)) if !setters.is_empty() => {
            error.of_field(&format!("{field} (set by {})", setters.join(", ")))
        }
        _ => error,
    }
}

/// The plugins that set any field of the container `id`.
pub fn all(owners: &OwningPlugins, id: &str) -> Vec<String> {
    let owners = owners.owners.get(id).into_iter();
    let owners = owners.flat_map(|of| {
        let keyed = of.compound.values().flat_map(|keys| keys.owners.values());
        of.simple.values().chain(keyed)
    });
    named_in(owners)
}

/// The plugins that set the field at this path, `adjust.mounts["/x"]` or
/// `adjust.linux.oom_score_adj`: by its key, or all of them without a key.
pub fn setters(owners: &FieldOwners, path: &str) -> Vec<String> {
    let Some(path) = path.strip_prefix("adjust.") else {
        return Vec::new();
    };
    let (path, key) = match path.split_once('[') {
        Some((path, key)) => (path, key.strip_suffix(']')),
        None => (path, None),
    };
    // Errors write CDI in capitals.
    let pointer = format!("/{}", path.replace('.', "/").to_ascii_lowercase());
    let Some(field) = place::at(&pointer) else {
        return Vec::new();
    };
    let number = field as i32;
    let keyed = owners.compound.get(&number);
    let keyed = keyed.into_iter().flat_map(|keys| &keys.owners);
    let keyed = keyed.filter(|(own, _)| key.is_none_or(|key| key == format!("{own:?}")));
    let all = owners.simple.get(&number).into_iter();
    let all = all.chain(keyed.map(|(_, owner)| owner));
    named_in(all)
}

/// Each plugin once. A plugin that removed a field did not set it.
fn named_in<'a>(owners: impl Iterator<Item = &'a String>) -> Vec<String> {
    let owners = owners.filter_map(|owner| owner.parse().ok());
    let owners: Vec<Owner> = owners
        .filter(|owner| !matches!(owner, Owner::Cleared(_)))
        .collect();
    let plugins: BTreeSet<_> = owners.iter().flat_map(Owner::plugins).collect();
    plugins.into_iter().map(ToString::to_string).collect()
}

/// Mounts that plugins requested, for the start of their container.
#[derive(Clone)]
pub struct AdjustedMounts {
    /// Destination, source of a bind, and its plugin.
    mounts: Vec<(String, Option<String>, String)>,
}

impl AdjustedMounts {
    pub fn of(adjustment: &ContainerAdjustment, owners: &OwningPlugins, id: &str) -> Self {
        let none = FieldOwners::default();
        let owners = owners.owners.get(id).unwrap_or(&none);
        let set = adjustment.mounts.iter().filter_map(|mount| {
            let path = format!("adjust.mounts[{:?}]", mount.destination);
            let plugin = setters(owners, &path).into_iter().next()?;
            let mut options = mount.options.iter();
            let bind = mount.r#type == "bind" || options.any(|o| o == "bind" || o == "rbind");
            let source = bind.then(|| mount.source.clone());
            Some((mount.destination.clone(), source, plugin))
        });
        Self {
            mounts: set.collect(),
        }
    }

    /// Checks the mounts again: sources may be removed after the creation of the container.
    ///
    /// # Errors
    /// Names the mount and its plugin.
    pub fn check(&self, view: &dyn HostView) -> Result<()> {
        let mut binds = self.mounts.iter();
        let gone = binds.find_map(|(to, from, by)| {
            let from = from.as_ref()?;
            let there = view.bind_source(from).is_some();
            (!there).then_some((to, from, by))
        });
        match gone {
            None => Ok(()),
            Some((to, from, by)) => Err(Error::failed(format!(
                "mount {to} (set by {by}): source {from:?} is not there any more"
            ))),
        }
    }

    /// Adds the plugin of a failed mount to the create helper's error, which has the destination.
    pub fn name_in(&self, text: &str) -> String {
        for (to, _, by) in &self.mounts {
            let mount = format!("mount {to}: ");
            if let Some((before, after)) = text.split_once(&mount) {
                return format!("{before}mount {to} (set by {by}): {after}");
            }
            // libcontainer's text for mounts that are not binds.
            if text.contains(&format!("destination: {to:?},")) {
                return format!("mount {to} (set by {by}): {text}");
            }
        }
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proto_nri::{CompoundFieldOwners, Field, Mount};

    use super::*;

    fn owners() -> FieldOwners {
        let mut owners = FieldOwners::default();
        let simple = [
            (Field::OomScoreAdj, "10-a"),
            (Field::OciHooks, "10-a,20-b"),
            (Field::MemKernelLimit, "20-b"),
            (Field::MemTcpLimit, "30-c"),
        ];
        for (field, owner) in simple {
            owners.simple.insert(field as i32, owner.to_owned());
        }
        let keys = [("/x", "30-gplug"), ("/y", "10-a"), ("/z", "-20-b")];
        let keys = keys.map(|(key, owner)| (key.to_owned(), owner.to_owned()));
        let keys = CompoundFieldOwners {
            owners: keys.into(),
        };
        owners.compound.insert(Field::Mounts as i32, keys);
        owners
    }

    fn table() -> OwningPlugins {
        OwningPlugins {
            owners: [("c1".to_owned(), owners())].into(),
        }
    }

    #[test]
    fn a_refused_field_is_told_with_the_plugins_that_set_it() {
        let told = |path: &str| setters(&owners(), path).join(" ");
        assert_eq!(told("adjust.mounts[\"/x\"]"), "30-gplug");
        assert_eq!(
            told("adjust.mounts"),
            "10-a 30-gplug",
            "a removal sets nothing"
        );
        assert_eq!(told("adjust.mounts[\"/nobody\"]"), "");
        assert_eq!(told("adjust.linux.oom_score_adj"), "10-a");
        assert_eq!(told("adjust.hooks"), "10-a 20-b");
        assert_eq!(told("adjust.linux.resources.memory.kernel"), "20-b");
        assert_eq!(told("adjust.linux.resources.memory.kernel_tcp"), "30-c");
        assert_eq!(told("linux.oom_score_adj"), "", "not an adjustment's");
        assert_eq!(all(&table(), "c1").join(" "), "10-a 20-b 30-c 30-gplug");
        assert_eq!(all(&table(), "c2").join(" "), "");
        let error = SpecError::invalid("adjust.mounts[\"/x\"]", "no");
        let text = named(error.clone(), &table(), "c1").to_string();
        assert_eq!(text, "adjust.mounts[\"/x\"] (set by 30-gplug): no");
        assert_eq!(named(error.clone(), &table(), "c2"), error);
    }

    #[test]
    fn a_mount_that_fails_at_the_start_is_told_with_its_plugin() {
        let mounts = ["/x", "/y"].map(|to| Mount {
            destination: to.to_owned(),
            r#type: "bind".to_owned(),
            source: "/".to_owned(),
            ..Mount::default()
        });
        let adjustment = ContainerAdjustment {
            mounts: mounts.into(),
            ..ContainerAdjustment::default()
        };
        let mounts = AdjustedMounts::of(&adjustment, &table(), "c1");
        assert_eq!(
            mounts.name_in("create: mount /y: bind /src: gone"),
            "create: mount /y (set by 10-a): bind /src: gone"
        );
        assert_eq!(mounts.name_in("mount /yy: gone"), "mount /yy: gone");
        let theirs = "failed to mount Mount { destination: \"/x\", typ: None }";
        let told = mounts.name_in(theirs);
        assert_eq!(told, format!("mount /x (set by 30-gplug): {theirs}"));
    }
}

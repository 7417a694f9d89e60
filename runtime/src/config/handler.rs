//! `[handlers.<name>]`: runtime handlers, which a RuntimeClass names (CRI-209). All are served by the one runtime that
//! cairn is; a handler has defaults of its own, and what it leaves out is as `[container]` says.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    container::{Container, Masks, SeccompDefault},
    error::Error,
};

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Handler {
    pub unset_seccomp_profile: Option<SeccompDefault>,
    pub ulimits: Option<Vec<String>>,
    pub privileged_without_host_devices: Option<bool>,
    pub masks: Option<Masks>,
    pub annotation_prefixes: Option<Vec<String>>,
}

impl Handler {
    /// `[container]` as it is for this handler.
    #[must_use]
    pub fn over(&self, container: &Container) -> Container {
        fn own<T: Clone>(set: &Option<T>, value: &mut T) {
            if let Some(set) = set {
                value.clone_from(set);
            }
        }
        let mut container = container.clone();
        own(
            &self.unset_seccomp_profile,
            &mut container.unset_seccomp_profile,
        );
        own(&self.ulimits, &mut container.ulimits);
        own(
            &self.privileged_without_host_devices,
            &mut container.privileged_without_host_devices,
        );
        own(&self.masks, &mut container.masks);
        own(
            &self.annotation_prefixes,
            &mut container.annotation_prefixes,
        );
        container
    }
}

pub(super) fn check(
    handlers: &BTreeMap<String, Handler>,
    container: &Container,
) -> Result<(), Error> {
    let refuse = |message: String| Err(Error::value("handlers", message));
    for (name, handler) in handlers {
        if !is_label(name) {
            return refuse(format!(
                "\"{name}\": a handler's name has up to 63 small letters, digits and inner hyphens, as in a RuntimeClass"
            ));
        }
        if let Err(Error::Value { key, message }) = handler.over(container).check() {
            let key = key.trim_start_matches("container.");
            return refuse(format!("{name}: {key}: {message}"));
        }
    }
    Ok(())
}

/// A DNS label, which is what the API server lets a RuntimeClass name.
fn is_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

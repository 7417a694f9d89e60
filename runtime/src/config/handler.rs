//! `[handlers.<name>]`: runtime handlers of RuntimeClasses (CRI-209). One runtime serves all of
//! them; a handler has its own defaults, and takes the rest from `[container]`.

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
    /// The settings of `[container]` with this handler's own.
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

/// A DNS label, as the API server requires of a RuntimeClass.
fn is_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

//! Annotations by which pods configure plugins, for one container or for all.

use nri::proto::PodSandbox;
use serde::de::DeserializeOwned;

use crate::yaml;

/// An annotation: its full key, and its value.
pub type Found<'a> = (String, &'a str);

/// The annotation that applies to a container: per scope, from the nearest to the widest, the first
/// of `keys` that exists: `KEY/container.<name>`, `KEY/pod`, `KEY`.
pub fn for_container<'a>(pod: &'a PodSandbox, keys: &[&str], container: &str) -> Option<Found<'a>> {
    let scope = format!("/container.{container}");
    first(pod, keys, &[&scope, "/pod", ""])
}

/// The annotation that applies to the pod itself: `KEY/pod`, `KEY`.
pub fn for_pod<'a>(pod: &'a PodSandbox, keys: &[&str]) -> Option<Found<'a>> {
    first(pod, keys, &["/pod", ""])
}

/// The annotation of this container only, without those of its pod.
pub fn of_container<'a>(pod: &'a PodSandbox, keys: &[&str], container: &str) -> Option<Found<'a>> {
    first(pod, keys, &[&format!("/container.{container}")])
}

fn first<'a>(pod: &'a PodSandbox, keys: &[&str], scopes: &[&str]) -> Option<Found<'a>> {
    scopes.iter().find_map(|scope| {
        keys.iter().find_map(|key| {
            let key = format!("{key}{scope}");
            let value = pod.annotations.get(&key)?;
            Some((key, value.as_str()))
        })
    })
}

/// Reads a value, YAML or JSON. The error names the annotation.
pub fn read<T: DeserializeOwned>((key, value): Found<'_>) -> Result<T, String> {
    yaml::parse(value).map_err(|e| format!("annotation {key}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotations: &[&str]) -> PodSandbox {
        let all = annotations.iter();
        PodSandbox {
            annotations: all.map(|key| (key.to_string(), key.to_string())).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn the_nearest_scope_wins_and_in_it_the_first_key() {
        let keys = ["new", "old"];
        let all = [
            "new/container.c",
            "old/container.c",
            "new/pod",
            "old/pod",
            "new",
            "old",
        ];
        for n in 0..all.len() {
            let pod = pod(&all[n..]);
            let found = for_container(&pod, &keys, "c").map(|(key, _)| key);
            assert_eq!(found.as_deref(), Some(all[n]));
        }
        assert_eq!(for_container(&pod(&["new/container.d"]), &keys, "c"), None);
        assert_eq!(for_pod(&pod(&["new/container.c"]), &keys), None);
        assert_eq!(of_container(&pod(&["new/pod"]), &keys, "c"), None);
    }

    #[test]
    fn a_value_that_does_not_parse_names_its_annotation() {
        let error = read::<Vec<String>>(("key".into(), "{a: b}")).expect_err("a map");
        assert!(error.starts_with("annotation key:"), "{error}");
        let list = read::<Vec<String>>(("key".into(), "[a, \"b\"]"));
        assert_eq!(list, Ok(vec!["a".to_owned(), "b".to_owned()]));
    }
}

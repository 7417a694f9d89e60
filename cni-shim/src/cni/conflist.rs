//! A network configuration list, parsed from a file (CRI-500, CRI-501). Pure.
//!
//! Unknown keys are passed to the plugins unchanged.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// The versions of the specification that are spoken, oldest first.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// A configuration file larger than this is refused.
pub(crate) const CONFIG_MAX: usize = 1 << 20;
const PLUGINS_MAX: usize = 64;
pub(crate) const NAME_MAX: usize = 128;

/// Keys of the list, set for each call.
const LIST_KEYS: [&str; 3] = ["cniVersion", "name", "capabilities"];

/// The position in [`VERSIONS`], by which versions compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(usize);

impl Version {
    pub(crate) const V0_4_0: Version = Version(2);
    pub(crate) const V1_0_0: Version = Version(3);
    pub(crate) const V1_1_0: Version = Version(4);

    pub(crate) fn known(text: &str) -> Option<Self> {
        VERSIONS
            .iter()
            .position(|version| *version == text)
            .map(Version)
    }

    pub(crate) fn as_str(self) -> &'static str {
        VERSIONS[self.0]
    }
}

/// A validated list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConfList {
    pub(crate) version: Version,
    pub(crate) name: String,
    pub(crate) disable_gc: bool,
    /// Ignores files beside the list, which otherwise add plugins.
    pub(crate) inlined_only: bool,
    pub(crate) plugins: Vec<Plugin>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plugin {
    pub(crate) kind: String,
    /// The capabilities declared as true.
    pub(crate) capabilities: BTreeSet<String>,
    /// Its configuration without the list's keys.
    pub(crate) config: Map<String, Value>,
}

impl ConfList {
    /// Parses a list, or a single plugin's configuration, which becomes a list of one.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() > CONFIG_MAX {
            return Err(format!("{} bytes are too long", text.len()));
        }
        let value: Value = serde_json::from_slice(text).map_err(|e| format!("not JSON: {e}"))?;
        Self::from_value(&value)
    }

    /// Parses a value, such as one of [`ConfList::to_value`].
    pub(crate) fn from_value(value: &Value) -> Result<Self, String> {
        let map = value.as_object().ok_or("not a JSON object")?;
        let name = string(map, "name")?.ok_or("has no name")?;
        check_name(name)?;
        let list = match (map.get("plugins"), map.contains_key("type")) {
            (Some(Value::Array(plugins)), _) => plugins.clone(),
            (None | Some(Value::Null), false) => Vec::new(),
            (None, true) => vec![value.clone()],
            _ => return Err("\"plugins\" must be a list".into()),
        };
        let plugins = list
            .iter()
            .map(Plugin::from_value)
            .collect::<Result<Vec<_>, _>>()?;
        if plugins.len() > PLUGINS_MAX {
            return Err(format!("more than {PLUGINS_MAX} plugins"));
        }
        Ok(Self {
            version: version(map)?,
            name: name.to_owned(),
            disable_gc: boolean(map, "disableGC")?,
            inlined_only: boolean(map, "loadOnlyInlinedPlugins")?,
            plugins,
        })
    }

    /// Adds a plugin from a file beside the list; see [`ConfList::inlined_only`].
    pub(crate) fn append(&mut self, text: &[u8]) -> Result<(), String> {
        if text.len() > CONFIG_MAX || self.plugins.len() >= PLUGINS_MAX {
            return Err("configuration too large".into());
        }
        let value = serde_json::from_slice(text).map_err(|e| format!("not JSON: {e}"))?;
        self.plugins.push(Plugin::from_value(&value)?);
        Ok(())
    }

    /// The list in use, self-contained, for the sandbox's record and the result cache.
    pub(crate) fn to_value(&self) -> Value {
        let plugins: Vec<Value> = self.plugins.iter().map(Plugin::to_value).collect();
        serde_json::json!({
            "cniVersion": self.version.as_str(),
            "name": self.name,
            "disableGC": self.disable_gc,
            "loadOnlyInlinedPlugins": true,
            "plugins": plugins,
        })
    }

    /// Whether its plugins support GC.
    pub(crate) fn collects(&self) -> bool {
        self.version >= Version::V1_1_0 && !self.disable_gc
    }

    /// Whether a plugin has this capability.
    pub(crate) fn takes(&self, capability: &str) -> bool {
        self.plugins
            .iter()
            .any(|plugin| plugin.capabilities.contains(capability))
    }
}

impl Plugin {
    fn from_value(value: &Value) -> Result<Self, String> {
        let map = value
            .as_object()
            .ok_or("a plugin's configuration must be a JSON object")?;
        let kind = string(map, "type")?.ok_or("a plugin has no type")?;
        if kind.is_empty()
            || kind.contains(['/', '\0'])
            || kind == "."
            || kind == ".."
            || kind.len() > 255
        {
            return Err(format!(
                "plugin type {:?} is not a file name",
                shorten(kind)
            ));
        }
        let declared = map.get("capabilities").cloned().unwrap_or_default();
        let declared: Option<BTreeMap<String, bool>> = serde_json::from_value(declared)
            .map_err(|e| format!("capabilities of plugin {kind}: {e}"))?;
        let mut config = map.clone();
        LIST_KEYS.iter().for_each(|key| drop(config.remove(*key)));
        let capabilities = declared
            .unwrap_or_default()
            .into_iter()
            .filter_map(|(name, on)| on.then_some(name))
            .collect();
        Ok(Self {
            kind: kind.to_owned(),
            capabilities,
            config,
        })
    }

    fn to_value(&self) -> Value {
        let mut config = self.config.clone();
        if !self.capabilities.is_empty() {
            let declared: Map<String, Value> = self
                .capabilities
                .iter()
                .map(|name| (name.clone(), Value::Bool(true)))
                .collect();
            config.insert("capabilities".into(), Value::Object(declared));
        }
        Value::Object(config)
    }
}

/// The highest version of `cniVersion` and `cniVersions` that we support.
fn version(map: &Map<String, Value>) -> Result<Version, String> {
    const NOT_STRINGS: &str = "\"cniVersions\" must be a list of strings";
    let single = string(map, "cniVersion")?;
    let mut offered: Vec<&str> = single.into_iter().collect();
    match map.get("cniVersions") {
        None | Some(Value::Null) => {}
        Some(Value::Array(more)) => {
            for version in more {
                offered.push(version.as_str().ok_or(NOT_STRINGS)?);
            }
        }
        Some(_) => return Err(NOT_STRINGS.into()),
    }
    offered
        .iter()
        .filter_map(|text| Version::known(text))
        .max()
        .ok_or_else(|| match offered.first() {
            Some(first) => format!(
                "unsupported cniVersion {:?} (supported: 0.3.0-1.1.0)",
                shorten(first)
            ),
            None => "has no cniVersion".to_owned(),
        })
}

/// A network's name becomes a part of paths.
fn check_name(name: &str) -> Result<(), String> {
    if is_name(name) {
        return Ok(());
    }
    Err(format!(
        "invalid name {:?}: only letters, digits, '_', '.' and '-' are allowed",
        shorten(name)
    ))
}

/// Whether a text is valid as a network's name or a container's id.
pub(crate) fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    starts_well && text.len() <= NAME_MAX && text.bytes().all(plain)
}

fn string<'a>(map: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, String> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{key:?} must be a string")),
    }
}

/// A flag, which some configurations write as a string.
fn boolean(map: &Map<String, Value>, key: &str) -> Result<bool, String> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(_) => Err(format!("{key:?} must be true or false")),
    }
}

/// The start of a hostile text, for an error line.
pub(crate) fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<ConfList, String> {
        ConfList::parse(text.as_bytes())
    }

    #[test]
    fn a_single_plugin_becomes_a_list_of_one() {
        let list = parse(r#"{"cniVersion":"0.4.0","name":"one","type":"bridge","mtu":9000}"#)
            .expect("is valid");
        assert_eq!((list.name.as_str(), list.version), ("one", Version::V0_4_0));
        assert_eq!(list.plugins[0].kind, "bridge");
        assert_eq!(list.plugins[0].config["mtu"], 9000);
        assert!(!list.plugins[0].config.contains_key("name"));
    }

    #[test]
    fn the_highest_version_known_to_both_is_spoken() {
        let versions = |own: &str| {
            parse(&format!(
                r#"{{{own},"name":"n","plugins":[{{"type":"p"}}]}}"#
            ))
            .map(|list| list.version.as_str())
        };
        assert_eq!(
            versions(r#""cniVersion":"0.3.1","cniVersions":["0.4.0","1.0.0","9.0.0"]"#),
            Ok("1.0.0")
        );
        assert_eq!(versions(r#""cniVersions":["1.1.0"]"#), Ok("1.1.0"));
        assert!(
            versions(r#""cniVersion":"0.2.0""#)
                .expect_err("too old")
                .contains("0.2.0")
        );
        assert!(versions(r#""x":1"#).is_err());
    }

    #[test]
    fn names_and_types_that_could_leave_a_directory_are_refused() {
        for name in ["../x", "", "-x", "a/b", "a b", "\u{0}"] {
            let value = serde_json::json!({"cniVersion": "1.0.0", "name": name, "plugins": [{"type": "p"}]});
            assert!(ConfList::from_value(&value).is_err(), "{name:?}");
        }
        for kind in ["../x", "", ".", "..", "a/b", "/bin/sh"] {
            let value = serde_json::json!({"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": kind}]});
            assert!(ConfList::from_value(&value).is_err(), "{kind:?}");
        }
    }

    #[test]
    fn only_capabilities_that_are_true_count() {
        let text = r#"{"cniVersion":"1.0.0","name":"n","plugins":[
            {"type":"p","capabilities":{"portMappings":true,"bandwidth":false}}]}"#;
        let list = parse(text).expect("is valid");
        assert!(list.takes("portMappings") && !list.takes("bandwidth"));
    }

    #[test]
    fn deep_nesting_is_an_error_without_overflow() {
        let deep = format!(
            r#"{{"name":"n","x":{}{}}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert!(parse(&deep).is_err());
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-z0-9./_-]{0,12}".prop_map(Value::from),
            Just(Value::from("1.0.0")),
        ];
        let key = prop_oneof![
            Just("name".to_owned()),
            Just("type".to_owned()),
            Just("plugins".to_owned()),
            Just("cniVersion".to_owned()),
            Just("cniVersions".to_owned()),
            Just("capabilities".to_owned()),
            Just("disableGC".to_owned()),
            "[a-z]{1,6}",
        ];
        leaf.prop_recursive(4, 64, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(key.clone(), inner, 0..8)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_input_panics_the_parser(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = ConfList::parse(&bytes);
        }

        #[test]
        fn an_accepted_list_is_safe_to_use_and_to_store(value in json()) {
            if let Ok(list) = ConfList::from_value(&value) {
                prop_assert!(!list.name.contains('/') && !list.name.is_empty());
                prop_assert!(list.plugins.iter().all(|plugin| !plugin.kind.contains('/')));
                let mut again = ConfList::from_value(&list.to_value()).expect("what is stored is readable");
                again.inlined_only = list.inlined_only;
                prop_assert_eq!(again, list);
            }
        }
    }
}

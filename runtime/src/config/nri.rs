//! The tables `[nri]` and `[nri.plugin."10-name"]`, and their translation for the library.

use std::{collections::BTreeMap, fmt::Display, path::PathBuf, str::FromStr, time::Duration};

use nri::{PluginConfig, PluginId, PluginSettings, Settings, Timeouts, validate::DefaultValidator};
use serde::Deserialize;

use super::error::Error;
use super::units::duration;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Nri {
    pub enable: bool,
    pub socket: PathBuf,
    pub plugin_dir: PathBuf,
    pub plugin_config_dir: PathBuf,
    /// Only launched plugins; the socket stays closed.
    pub disable_connections: bool,
    #[serde(deserialize_with = "duration")]
    pub registration_timeout: Duration,
    #[serde(deserialize_with = "duration")]
    pub request_timeout: Duration,
    /// Uids whose plugins may connect.
    pub allowed_uids: Vec<u32>,
    /// Group of the socket, by gid, and its permission bits in octal.
    pub socket_group: u32,
    pub socket_mode: String,
    /// For plugins without a table, or whose tables omit it.
    pub default_events: String,
    pub default_fields: String,
    /// A pod with this annotation set to "true" does not need required plugins; empty: none.
    pub tolerate_missing_annotation: String,
    /// A newer plugin of the same index and name replaces the older.
    pub replace_same_name: bool,
    /// Receives the NRI traffic as JSON lines; empty: none.
    pub record: PathBuf,
    /// The in-process validator of adjustments, as in containerd.
    pub default_validator: DefaultValidator,
    /// Settings of single plugins, by `"10-name"`.
    pub plugin: BTreeMap<String, PluginConfig>,
}

impl Default for Nri {
    fn default() -> Self {
        Self {
            enable: true,
            socket: "/var/run/nri/nri.sock".into(),
            plugin_dir: "/opt/nri/plugins".into(),
            plugin_config_dir: "/etc/nri/conf.d".into(),
            disable_connections: false,
            registration_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(2),
            allowed_uids: vec![0],
            socket_group: 0,
            socket_mode: "0600".to_owned(),
            default_events: "all".to_owned(),
            default_fields: "all".to_owned(),
            tolerate_missing_annotation: String::new(),
            replace_same_name: true,
            record: PathBuf::new(),
            default_validator: DefaultValidator::default(),
            plugin: BTreeMap::new(),
        }
    }
}

impl Nri {
    /// Settings for the nri library.
    ///
    /// # Errors
    /// The first plugin with an invalid name, event or field.
    pub fn settings(&self) -> Result<Settings, Error> {
        let default = PluginConfig {
            events: Some(parsed("nri.default_events", &self.default_events)?),
            fields: Some(parsed("nri.default_fields", &self.default_fields)?),
            ..PluginConfig::default()
        };
        let mut plugins = BTreeMap::new();
        for (name, plugin) in &self.plugin {
            let id: PluginId = name.parse().map_err(|_| {
                let message = format!("\"{name}\": must be of the form \"10-name\"");
                Error::value("nri.plugin", message)
            })?;
            if let Some(program) = plugin.program.as_ref().filter(|p| !p.is_absolute()) {
                let message = format!("\"{name}\": program {program:?} is not an absolute path");
                return Err(Error::value("nri.plugin", message));
            }
            let mut plugin = plugin.clone();
            plugin.events = plugin.events.or(default.events);
            plugin.fields = plugin.fields.or(default.fields);
            let plugin: PluginSettings = plugin.into();
            if let Err(why) = plugin.policy.check_events(plugin.policy.events) {
                let message = format!("\"{name}\": events: {why}");
                return Err(Error::value("nri.plugin", message));
            }
            plugins.insert(id, plugin);
        }
        self.default_validator
            .verify()
            .map_err(|message| Error::value("nri.default_validator", message))?;
        let annotation = &self.tolerate_missing_annotation;
        Ok(Settings {
            socket: (!self.disable_connections).then(|| self.socket.clone()),
            allowed_uids: self.allowed_uids.clone(),
            socket_group: Some(self.socket_group),
            socket_mode: mode(&self.socket_mode)?,
            plugin_dir: Some(self.plugin_dir.clone()),
            plugin_config_dir: Some(self.plugin_config_dir.clone()),
            timeouts: Timeouts {
                registration: self.registration_timeout,
                request: self.request_timeout,
                ..Timeouts::default()
            },
            plugins,
            other_plugins: default.into(),
            replace_same_name: self.replace_same_name,
            tolerate_missing_annotation: (!annotation.is_empty()).then(|| annotation.clone()),
            started: Some(crate::inherited::reset),
            ..Settings::default()
        })
    }
}

fn parsed<T: FromStr<Err: Display>>(key: &'static str, text: &str) -> Result<T, Error> {
    let parsed = text.parse();
    parsed.map_err(|error: T::Err| Error::value(key, format!("{text:?}: {error}")))
}

/// Permission bits in octal; the owner's are required, to connect at all.
fn mode(text: &str) -> Result<u32, Error> {
    let mode = u32::from_str_radix(text, 8).ok();
    let mode = mode.filter(|mode| mode & !0o777 == 0 && mode & 0o600 == 0o600);
    mode.ok_or_else(|| {
        let message = format!("{text:?}: must be a mode from \"0600\" to \"0777\"");
        Error::value("nri.socket_mode", message)
    })
}

#[cfg(test)]
mod tests {
    use nri::{Restart, policy::OnTimeout};

    use super::*;

    fn settings(text: &str) -> Result<Settings, String> {
        let nri: Nri = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        nri.settings().map_err(|error| error.to_string())
    }

    #[test]
    fn a_plugin_is_treated_as_its_table_says() {
        let settings = settings(
            "[plugin.\"10-x\"]\nrequired = true\non_timeout = \"skip\"\nbreaker = 5\n\
             fail_request = false\n\
             events = \"RunPodSandbox, container\"\nfields = \"Env\"\nrestart = \"on-failure\"\n",
        )
        .expect("is valid");
        let plugin = settings.plugin(&"10-x".parse().expect("an id"));
        assert!(plugin.policy.required && !plugin.policy.must_run);
        assert_eq!(plugin.policy.on_timeout, Some(OnTimeout::Skip));
        assert_eq!(plugin.policy.breaker, Some(5));
        assert_eq!(plugin.policy.fail_request, Some(false));
        assert_eq!(plugin.policy.fields, "Env".parse().expect("a field"));
        assert_eq!(plugin.restart, Restart::OnFailure);
    }

    #[test]
    fn a_plugin_without_a_table_is_treated_as_go_does() {
        let settings = settings("").expect("is valid");
        let plugin = settings.plugin(&"10-x".parse().expect("an id"));
        assert_eq!(plugin, PluginSettings::default());
    }

    #[test]
    fn what_tables_do_not_say_is_the_default_of_all_and_what_they_say_is_not() {
        let settings = settings(
            "default_events = \"pod\"\ndefault_fields = \"Annotations\"\n\
             [plugin.\"10-x\"]\nfields = \"Env\"\nuid = 7\nprogram = \"/opt/x\"\n",
        )
        .expect("is valid");
        let of = |id: &str| settings.plugin(&id.parse().expect("an id"));
        let (x, other) = (of("10-x"), of("11-x"));
        assert_eq!(x.policy.fields, "Env".parse().expect("a field"));
        assert_eq!(other.policy.fields, "Annotations".parse().expect("a field"));
        for plugin in [&x, &other] {
            assert_eq!(plugin.policy.events, "pod".parse().expect("events"));
        }
        assert_eq!(x.peer.uid, Some(7));
        assert_eq!(x.peer.program, Some("/opt/x".into()));
        assert_eq!(other.peer, nri::PeerRule::default());
    }

    #[test]
    fn what_is_no_event_field_or_name_is_refused() {
        let refused = |text: &str| settings(text).expect_err("refused");
        assert!(refused("[plugin.\"10-x\"]\nevents = \"Nap\"").contains("Nap"));
        assert!(refused("[plugin.\"10-x\"]\nfields = \"Nap\"").contains("Nap"));
        assert!(refused("default_fields = \"Nap\"").contains("nri.default_fields"));
        assert!(refused("default_events = \"\"").contains("nri.default_events"));
        assert!(
            refused("[plugin.\"10-x\"]\nprogram = \"x\"").contains("\"x\" is not an absolute path")
        );
        for mode in ["", "rw", "0060", "1777", "600000"] {
            let text = format!("socket_mode = {mode:?}");
            assert!(refused(&text).contains("nri.socket_mode"), "{mode}");
        }
        assert!(refused("[plugin.x]\n").contains("must be of the form"));
        for text in [
            "[plugin.\"10-x\"]\nrequired = true\nevents = \"StopContainer\"",
            "default_events = \"StopContainer\"\n[plugin.\"10-x\"]\nrequired = true",
        ] {
            let reported = "nri.plugin: \"10-x\": events: a required plugin must get one of RunPodSandbox, \
                        CreateContainer, ValidateContainerAdjustment";
            assert_eq!(refused(text), reported);
        }
        assert!(refused("[plugin.\"10-x\"]\non_timeout = \"nap\"").contains("skip"));
    }
}

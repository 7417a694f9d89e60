//! The tables `[nri]` and `[nri.plugin."10-name"]`, and what the library makes of them.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use nri::{PluginConfig, PluginId, Settings, Timeouts, validate::DefaultValidator};
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
    /// Only launched plugins; the socket is not opened.
    pub disable_connections: bool,
    #[serde(deserialize_with = "duration")]
    pub registration_timeout: Duration,
    #[serde(deserialize_with = "duration")]
    pub request_timeout: Duration,
    /// For one setup event at all plugins together; zero: as long as each has.
    #[serde(deserialize_with = "duration")]
    pub operation_timeout: Duration,
    #[serde(deserialize_with = "duration")]
    pub sync_timeout: Duration,
    /// For all parts of Synchronize together; zero: three times `sync_timeout`.
    #[serde(deserialize_with = "duration")]
    pub sync_total_timeout: Duration,
    /// A file of the plugin directory that cannot be used ends the start.
    pub strict_plugin_dir: bool,
    /// Plugins that may connect, by name or by index and name; empty: all.
    pub allowed_plugins: Vec<String>,
    /// Users whose plugins may connect, by number.
    pub allowed_uids: Vec<u32>,
    /// A pod with this annotation set to "true" does not need required plugins; empty: none.
    pub tolerate_missing_annotation: String,
    /// A newer plugin of the same index and name replaces the older.
    pub replace_same_name: bool,
    /// Gets what plugins and we say, as JSON lines; empty: none.
    pub record: PathBuf,
    /// Values of environment variables are recorded as well.
    pub record_env: bool,
    /// The in-process validator of adjustments, as containerd has it.
    pub default_validator: DefaultValidator,
    /// Settings of single plugins by `"10-name"`.
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
            operation_timeout: Duration::ZERO,
            sync_timeout: Duration::from_secs(10),
            sync_total_timeout: Duration::ZERO,
            strict_plugin_dir: false,
            allowed_plugins: Vec::new(),
            allowed_uids: vec![0],
            tolerate_missing_annotation: String::new(),
            replace_same_name: true,
            record: PathBuf::new(),
            record_env: false,
            default_validator: DefaultValidator::default(),
            plugin: BTreeMap::new(),
        }
    }
}

impl Nri {
    /// Settings for the nri library.
    ///
    /// # Errors
    /// The first plugin whose name, events or fields are none.
    pub fn settings(&self) -> Result<Settings, Error> {
        let mut plugins = BTreeMap::new();
        for (name, plugin) in &self.plugin {
            let id: PluginId = name.parse().map_err(|_| {
                let message = format!("\"{name}\": must be of the form \"10-name\"");
                Error::value("nri.plugin", message)
            })?;
            plugins.insert(id, plugin.clone().into());
        }
        self.default_validator
            .verify()
            .map_err(|message| Error::value("nri.default_validator", message))?;
        let some = |limit: Duration| (!limit.is_zero()).then_some(limit);
        let annotation = &self.tolerate_missing_annotation;
        Ok(Settings {
            socket: (!self.disable_connections).then(|| self.socket.clone()),
            allowed_uids: self.allowed_uids.clone(),
            plugin_dir: Some(self.plugin_dir.clone()),
            plugin_config_dir: Some(self.plugin_config_dir.clone()),
            strict_plugin_dir: self.strict_plugin_dir,
            allowed_plugins: self.allowed_plugins.clone(),
            timeouts: Timeouts {
                registration: self.registration_timeout,
                request: self.request_timeout,
                operation: some(self.operation_timeout),
                sync: self.sync_timeout,
                sync_total: some(self.sync_total_timeout),
            },
            plugins,
            replace_same_name: self.replace_same_name,
            tolerate_missing_annotation: (!annotation.is_empty()).then(|| annotation.clone()),
            started: Some(crate::inherited::give_back),
            ..Settings::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use nri::{PluginSettings, Restart, policy::OnTimeout};

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
    fn what_is_no_event_field_or_name_is_refused() {
        let refused = |text: &str| settings(text).expect_err("refused");
        assert!(refused("[plugin.\"10-x\"]\nevents = \"Nap\"").contains("Nap"));
        assert!(refused("[plugin.\"10-x\"]\nfields = \"Nap\"").contains("Nap"));
        assert!(refused("[plugin.x]\n").contains("must be of the form"));
        assert!(refused("[plugin.\"10-x\"]\non_timeout = \"nap\"").contains("skip"));
    }
}

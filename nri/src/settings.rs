//! Settings of NRI: paths, limits, and the policy for each plugin. Defaults are Go's behaviour
//! unless documented otherwise.

use std::{collections::BTreeMap, path::PathBuf, str::FromStr, time::Duration};

use proto_nri::Event;
use serde::{Deserialize, Deserializer, de::Error as _};
use tokio::time::Instant;

use crate::{
    annotation::{effective_annotation, go_bool},
    mask::{EventMask, FieldMask},
    peer_identity::PeerRule,
    plugin_id::PluginId,
    policy::{Class, OnTimeout, PluginPolicy},
    wire::event::HookRequest,
};

/// Default socket of runtimes.
pub const DEFAULT_SOCKET: &str = "/var/run/nri/nri.sock";
/// Default directory of launched plugins.
pub const DEFAULT_PLUGIN_DIR: &str = "/opt/nri/plugins";
/// Default directory of their configurations.
pub const DEFAULT_PLUGIN_CONFIG_DIR: &str = "/etc/nri/conf.d";

/// Whether a launched plugin that died is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Restart {
    /// Never, as in Go.
    #[default]
    No,
    /// When its connection is lost or it timed out: exponential back-off, 1 s to a minute.
    OnFailure,
}

/// Policy for one plugin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PluginSettings {
    pub policy: PluginPolicy,
    pub restart: Restart,
    /// Required peer of a connection under its id. Not checked for a launched plugin.
    pub peer: PeerRule,
}

/// [`PluginSettings`] as a table of a configuration file; unknown keys are rejected. Absent keys
/// mean Go's behaviour.
///
/// ```toml
/// [nri.plugin."10-example"]
/// required = true            # pods and containers are not created without it
/// must_run = true            # it gets missed Stop and Remove events later
/// request_timeout = "5s"     # ms, s, m or h
/// sync_timeout = "30s"
/// on_timeout = "skip"        # or "close", "keep"; without: as the plugin says, else close
/// breaker = 3                # with skip or keep: this many misses in a row close it; 0 never
/// fail_request = true        # no answer fails the operation; without: as the plugin says, else not
/// events = "pod,CreateContainer"
/// fields = "Annotations,Env,resources"
/// restart = "on-failure"     # or "no"; launched plugins only
/// uid = 1000                 # only a process of this user may connect under this id
/// program = "/opt/example"   # only a process that runs this file; needs Linux 6.5
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PluginConfig {
    pub required: bool,
    pub must_run: bool,
    #[serde(deserialize_with = "duration")]
    pub request_timeout: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    pub sync_timeout: Option<Duration>,
    #[serde(deserialize_with = "on_timeout")]
    pub on_timeout: Option<OnTimeout>,
    pub breaker: Option<u32>,
    pub fail_request: Option<bool>,
    #[serde(deserialize_with = "parsed")]
    pub events: Option<EventMask>,
    #[serde(deserialize_with = "parsed")]
    pub fields: Option<FieldMask>,
    #[serde(deserialize_with = "restart")]
    pub restart: Restart,
    pub uid: Option<u32>,
    pub program: Option<PathBuf>,
}

impl From<PluginConfig> for PluginSettings {
    fn from(config: PluginConfig) -> Self {
        let default = PluginPolicy::default();
        let policy = PluginPolicy {
            required: config.required,
            must_run: config.must_run,
            on_timeout: config.on_timeout,
            breaker: config.breaker,
            fail_request: config.fail_request,
            request_timeout: config.request_timeout,
            sync_timeout: config.sync_timeout,
            events: config.events.unwrap_or(default.events),
            fields: config.fields.unwrap_or(default.fields),
        };
        Self {
            policy,
            restart: config.restart,
            peer: PeerRule {
                uid: config.uid,
                program: config.program,
            },
        }
    }
}

/// One of a few words; an error lists them.
fn word<'de, D: Deserializer<'de>, T: Copy>(
    deserializer: D,
    words: &[(&str, T)],
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    let known = words.iter().find(|(word, _)| *word == text);
    known.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        D::Error::custom(format!("{text:?}: must be {}", words.join(" or ")))
    })
}

fn on_timeout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<OnTimeout>, D::Error> {
    let all = [OnTimeout::Close, OnTimeout::Skip, OnTimeout::Keep];
    word(deserializer, &all.map(|one| (one.as_str(), one))).map(Some)
}

fn restart<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Restart, D::Error> {
    word(
        deserializer,
        &[("no", Restart::No), ("on-failure", Restart::OnFailure)],
    )
}

fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: std::fmt::Display>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(D::Error::custom)
}

/// An integer above zero and a unit.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bad = || D::Error::custom(format!("{text:?}: must be a number and ms, s, m or h"));
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
    let number: u64 = text[..at].parse().map_err(|_| bad())?;
    let unit = match &text[at..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(bad()),
    };
    let millis = number
        .checked_mul(unit)
        .filter(|n| *n > 0)
        .ok_or_else(bad)?;
    Ok(Some(Duration::from_millis(millis)))
}

/// Time limits of plugins, unless their own policy sets others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// From connect to RegisterPlugin.
    pub registration: Duration,
    /// For one event at one plugin, and for Configure.
    pub request: Duration,
    /// For one setup event at all plugins together, validators included. `None`: the sum of their
    /// limits. By default as long as a kubelet waits. At the limit the operation fails; the plugin
    /// being called is not blamed.
    pub operation: Option<Duration>,
    /// For one part of Synchronize.
    pub sync: Duration,
    /// For all parts together. `None`: three times the limit of one.
    pub sync_total: Option<Duration>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            registration: Duration::from_secs(5),
            request: Duration::from_secs(2),
            operation: Some(Duration::from_secs(120)),
            sync: Duration::from_secs(5),
            sync_total: None,
        }
    }
}

impl Timeouts {
    /// For one event at a plugin with this policy.
    pub(crate) fn request_of(&self, policy: &PluginPolicy) -> Duration {
        policy.request_timeout.unwrap_or(self.request)
    }

    /// For one part of Synchronize, and for all of them, at a plugin with this policy.
    pub(crate) fn sync_of(&self, policy: &PluginPolicy) -> (Duration, Duration) {
        let part = policy.sync_timeout.unwrap_or(self.sync);
        (part, self.sync_total.unwrap_or(part * 3))
    }

    /// For all parts of Synchronize, at the plugin that may take longest.
    pub(crate) fn longest_join(&self, settings: &Settings) -> Duration {
        let all = settings.plugins.values().chain([&settings.other_plugins]);
        let totals = all.map(|settings| self.sync_of(&settings.policy).1);
        totals.max().unwrap_or_default()
    }

    /// When the operation must have its answers, of all plugins together. Teardown and
    /// notifications have no limit.
    pub(crate) fn deadline_of(&self, event: Event) -> Option<Instant> {
        let limit = self.operation?;
        (Class::of(event) == Class::Setup).then(|| Instant::now() + limit)
    }
}

/// All settings of a runtime for NRI.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `None`: no external connections (NRI-210).
    pub socket: Option<PathBuf>,
    /// Permission bits of the socket (NRI-101).
    pub socket_mode: u32,
    /// Its group; `None`: ours.
    pub socket_group: Option<u32>,
    /// User ids that may connect; by default root and our own.
    pub allowed_uids: Vec<u32>,
    /// `None`, or a directory that does not exist: no launched plugins.
    pub plugin_dir: Option<PathBuf>,
    pub plugin_config_dir: Option<PathBuf>,
    /// The program that runs plugins which are WebAssembly modules (`nri-wasm`), with the module as
    /// its argument. `None`: such files are left out and logged by name.
    pub wasm_host: Option<PathBuf>,
    /// Plugin files and their directory must belong to root or to us, and be writable only by the
    /// owner.
    pub trusted_files_only: bool,
    pub timeouts: Timeouts,
    /// By id, `10-name`.
    pub plugins: BTreeMap<PluginId, PluginSettings>,
    /// Of all other plugins. In-process plugins that are not listed have no limits.
    pub other_plugins: PluginSettings,
    /// Of two instances with one id the newer is called, and the older is in its shadow until
    /// either ends. False: plugins of one id are all called, as by Go. A plugin that connects never
    /// replaces, or runs beside, a launched one.
    pub replace_same_name: bool,
    /// A pod with this annotation set to `true` is exempt from required plugins.
    pub tolerate_missing_annotation: Option<String>,
    /// Experimental: answers to RunPodSandbox may give the pod addresses (`adjust.network.ips`,
    /// pull request 295 of containerd/nri). False: they are ignored with a warning, as by runtimes
    /// without the field.
    pub pod_ips: bool,
    /// Called with the pid of each launched plugin, to change inherited attributes.
    pub started: Option<fn(u32)>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            socket: Some(DEFAULT_SOCKET.into()),
            socket_mode: 0o600,
            socket_group: None,
            allowed_uids: vec![0, rustix::process::geteuid().as_raw()],
            plugin_dir: Some(DEFAULT_PLUGIN_DIR.into()),
            plugin_config_dir: Some(DEFAULT_PLUGIN_CONFIG_DIR.into()),
            wasm_host: None,
            trusted_files_only: true,
            timeouts: Timeouts::default(),
            plugins: BTreeMap::new(),
            other_plugins: PluginSettings::default(),
            replace_same_name: true,
            tolerate_missing_annotation: None,
            pod_ips: false,
            started: None,
        }
    }
}

impl Settings {
    /// Policy for this plugin.
    pub fn plugin(&self, id: &PluginId) -> PluginSettings {
        let own = self.plugins.get(id);
        own.unwrap_or(&self.other_plugins).clone()
    }

    /// Whether the pod's annotation lets the request pass without required plugins.
    pub(crate) fn is_exempt<R: HookRequest>(&self, request: &R) -> bool {
        let key = self.tolerate_missing_annotation.as_ref();
        let (Some(key), Some(pod)) = (key, request.pod()) else {
            return false;
        };
        let container = request.container().map_or("", |c| c.name.as_str());
        effective_annotation(pod, key, container).and_then(go_bool) == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<PluginSettings, String> {
        let config: PluginConfig = serde_json::from_str(json).map_err(|e| e.to_string())?;
        Ok(config.into())
    }

    #[test]
    fn an_empty_table_is_gos_behaviour() {
        assert_eq!(read("{}").unwrap(), PluginSettings::default());
    }

    #[test]
    fn every_key_arrives() {
        let settings = read(
            r#"{"required": true, "must_run": true, "request_timeout": "5s", "sync_timeout": "1m",
                "on_timeout": "skip", "breaker": 7, "fail_request": true, "events": "pod, CreateContainer",
                "fields": "Env,resources", "restart": "on-failure",
                "uid": 7, "program": "/opt/x"}"#,
        );
        let expected = PluginSettings {
            policy: PluginPolicy {
                required: true,
                must_run: true,
                on_timeout: Some(OnTimeout::Skip),
                breaker: Some(7),
                fail_request: Some(true),
                request_timeout: Some(Duration::from_secs(5)),
                sync_timeout: Some(Duration::from_secs(60)),
                events: "pod,CreateContainer".parse().unwrap(),
                fields: "Env,resources".parse().unwrap(),
            },
            restart: Restart::OnFailure,
            peer: PeerRule {
                uid: Some(7),
                program: Some("/opt/x".into()),
            },
        };
        assert_eq!(settings.unwrap(), expected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (json, names) in [
            (r#"{"requird": true}"#, "requird"),
            (
                r#"{"on_timeout": "wait"}"#,
                "\"close\" or \"skip\" or \"keep\"",
            ),
            (r#"{"restart": "always"}"#, "\"on-failure\""),
            (r#"{"events": "Boom"}"#, "Boom"),
            (r#"{"fields": "Boom"}"#, "Boom"),
            (r#"{"request_timeout": "5"}"#, "\"5\""),
            (r#"{"request_timeout": "0s"}"#, "\"0s\""),
            (r#"{"sync_timeout": "99999999999999999999h"}"#, "h\""),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(names), "{names:?} is not in {error:?}");
        }
    }
}

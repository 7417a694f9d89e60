//! The network by CNI plugins: lists of programs that each add to what the one before made.
//!
//! ```text
//!   ADD    plugin 1 ─result─► plugin 2 ─result─► …  last result: cached, returned     (failure: DEL of the list)
//!   DEL    … ◄─ plugin 2 ◄─ plugin 1 in reverse, each with the cached result; then the cache entry is removed
//!   STATUS, GC: in order (`readiness`, `gc`)
//! ```
//! A sandbox is deleted with the configuration it was added with, which its record holds. [`crate::Network`] owns the
//! records and sees to it that one sandbox has one operation at a time.

mod cache;
mod capability;
#[cfg(any(test, feature = "fuzzing"))]
pub mod checks;
mod confdir;
mod conflist;
mod error;
mod gc;
mod invoke;
mod patience;
mod readiness;
mod result;
mod status;
mod strays;
mod target;

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::time::Instant;

use crate::record::OnCni;
use crate::types::{Answers, Attach, Attachment, Config, INTERFACE};
use cache::{Cache, Entry};
use confdir::ConfDir;
pub(crate) use confdir::Found;
use conflist::Plugin;
pub(crate) use conflist::{ConfList, NAME_MAX, is_name};
pub use error::CniError;
use invoke::{Call, Verb};
pub(crate) use patience::Patience;
use readiness::Readiness;
use target::Target;

/// Longest a DEL or a GC may take (CRI-518).
pub(crate) const DEL_TIMEOUT: Duration = Duration::from_secs(60);

/// Failures that a DEL ignores, in rising order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tolerate {
    Nothing,
    /// Programs that are in none of the directories.
    MissingPrograms,
    /// Whatever a program says or does.
    Everything,
}

/// CNI as configured.
#[derive(Debug)]
pub(crate) struct Cni {
    bin_dirs: Vec<PathBuf>,
    started: Option<fn(u32)>,
    pub(crate) answers: Answers,
    pub(crate) conf: ConfDir,
    cache: Cache,
    add_timeout: Duration,
    /// Sandboxes whose ADD is of this life: what such a one leaves running has been ended with it.
    begun: Mutex<HashSet<String>>,
    readiness: Readiness,
}

impl Cni {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            bin_dirs: config.bin_dirs.clone(),
            started: config.started,
            answers: config.answers.clone(),
            conf: ConfDir::new(config.conf_dir.clone()),
            cache: open_cache(config),
            add_timeout: config.add_timeout,
            begun: Mutex::default(),
            readiness: Readiness::new(config.status_grace),
        }
    }

    /// When an ADD that starts now is given up.
    pub(crate) fn add_deadline(&self) -> Instant {
        Instant::now() + self.add_timeout
    }

    /// What a sandbox's record must hold before [`Cni::add`] starts.
    pub(crate) fn prepare(&self, list: &ConfList, attach: &Attach) -> Result<OnCni, CniError> {
        let wrong = |reason| CniError::Network {
            network: list.name.clone(),
            reason,
        };
        Ok(OnCni {
            network: list.name.clone(),
            interface: INTERFACE.to_owned(),
            config: list.to_value(),
            args: capability::args(attach),
            capability_args: capability::capability_args(attach).map_err(wrong)?,
        })
    }

    /// Adds a sandbox to its network. On failure the caller runs [`Cni::del`].
    pub(crate) async fn add(
        &self,
        sandbox_id: &str,
        netns: &Path,
        endpoint: &OnCni,
        deadline: Instant,
    ) -> Result<Attachment, CniError> {
        let target = Target::new(sandbox_id, netns, endpoint)?;
        self.begun.lock().insert(sandbox_id.to_owned());
        let mut previous: Option<Value> = None;
        for plugin in &target.list.plugins {
            let output = self
                .call(Verb::Add, &target, plugin, previous.as_ref(), deadline)
                .await?;
            let result = result::parse_result(&output, target.list.version);
            previous = Some(result.map_err(|reason| CniError::Result {
                kind: plugin.kind.clone(),
                reason,
            })?);
        }
        let result = previous.ok_or_else(|| target.wrong("no plugins".into()))?;
        let attachment = target
            .attachment(&result)
            .map_err(|reason| target.wrong(reason))?;
        self.cache
            .write(&target.entry(result))
            .map_err(|cause| target.cache_error(cause))?;
        Ok(attachment)
    }

    /// Removes a sandbox from its network; its namespace may be gone. A plugin's failure stops the chain, and the
    /// caller repeats it later (CRI-514), but for what is to be tolerated.
    pub(crate) async fn del(
        &self,
        sandbox_id: &str,
        netns: &Path,
        endpoint: &OnCni,
        tolerate: Tolerate,
        deadline: Instant,
    ) -> Result<(), CniError> {
        let target = Target::new(sandbox_id, netns, endpoint)?;
        let added = self.cached(sandbox_id, endpoint);
        let begun_here = self.begun.lock().remove(sandbox_id);
        if !begun_here && added.is_none() {
            strays::end(sandbox_id).await;
        }
        let cached = added.and_then(|entry| target.previous(entry));
        for plugin in target.list.plugins.iter().rev() {
            let called = self.call(Verb::Del, &target, plugin, cached.as_ref(), deadline);
            let Err(error) = called.await else {
                continue;
            };
            let least = match error {
                CniError::PluginMissing { .. } => Tolerate::MissingPrograms,
                _ => Tolerate::Everything,
            };
            if tolerate < least {
                return Err(error);
            }
            tracing::warn!(sandbox = sandbox_id, %error, "CNI DEL skipped; {} may keep resources of the sandbox", plugin.kind);
        }
        let removed = self
            .cache
            .remove(&endpoint.network, sandbox_id, &endpoint.interface);
        removed.map_err(|cause| target.cache_error(cause))
    }

    /// What the result cache has of a sandbox; none while it is being added.
    pub(crate) fn addresses_of(&self, sandbox_id: &str, endpoint: &OnCni) -> Vec<IpAddr> {
        let entry = self.cached(sandbox_id, endpoint);
        let found =
            entry.and_then(|entry| result::addresses(&entry.result, &endpoint.interface).ok());
        found.unwrap_or_default()
    }

    fn cached(&self, sandbox_id: &str, endpoint: &OnCni) -> Option<Entry> {
        self.cache
            .read(&endpoint.network, sandbox_id, &endpoint.interface)
    }

    /// One plugin for one sandbox.
    async fn call(
        &self,
        verb: Verb,
        target: &Target<'_>,
        plugin: &Plugin,
        previous: Option<&Value>,
        deadline: Instant,
    ) -> Result<Vec<u8>, CniError> {
        let mut extra = Map::new();
        if let Some(previous) = previous {
            extra.insert("prevResult".into(), previous.clone());
        }
        let offered = target.endpoint.capability_args.iter();
        let taken = offered.filter(|(name, _)| plugin.capabilities.contains(*name));
        let runtime: Map<String, Value> = taken
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if !runtime.is_empty() {
            extra.insert("runtimeConfig".into(), Value::Object(runtime));
        }
        let environment = target.environment();
        self.run(verb, &target.list, plugin, extra, &environment, deadline)
            .await
    }

    /// One plugin; without an environment, for no sandbox in particular.
    async fn run(
        &self,
        verb: Verb,
        list: &ConfList,
        plugin: &Plugin,
        extra: Map<String, Value>,
        environment: &[(&'static str, String)],
        deadline: Instant,
    ) -> Result<Vec<u8>, CniError> {
        let call = Call {
            verb,
            kind: &plugin.kind,
            bin_dirs: &self.bin_dirs,
            started: self.started,
            answers: &self.answers,
            environment,
            input: input(list, plugin, extra),
            deadline,
        };
        call.run().await
    }
}

/// A plugin's stdin: its configuration with the list's keys, and what this call adds.
fn input(list: &ConfList, plugin: &Plugin, extra: Map<String, Value>) -> Vec<u8> {
    let mut config = plugin.config.clone();
    config.insert("cniVersion".into(), list.version.as_str().into());
    config.insert("name".into(), list.name.clone().into());
    config.extend(extra);
    Value::Object(config).to_string().into_bytes()
}

fn open_cache(config: &Config) -> Cache {
    let cache = Cache::new(&config.cache_dir);
    if let Some(earlier) = &config.earlier_cache_dir
        && let Err(error) = cache.take_over(earlier)
    {
        tracing::warn!(dir = %earlier.display(), %error, "CNI results of an earlier version are not taken over");
    }
    cache
}

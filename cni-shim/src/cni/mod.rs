//! The network by CNI plugins: lists of programs, each of which extends the previous result.
//!
//! ```text
//!   ADD    plugin 1 ─result─► plugin 2 ─result─► …  last result: cached, returned     (failure: DEL of the list)
//!   DEL    … ◄─ plugin 2 ◄─ plugin 1 in reverse, each with the cached result; then the cache entry is removed
//!   STATUS, GC: in order (`readiness`, `gc`)
//! ```
//! A sandbox is deleted with the configuration of its ADD, from its record. [`crate::Network`] owns
//! the records and serializes the operations of a sandbox.

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

/// Timeout of a DEL or a GC (CRI-518).
pub(crate) const DEL_TIMEOUT: Duration = Duration::from_secs(60);

/// Failures that a DEL ignores, in rising order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tolerate {
    Nothing,
    /// Programs missing in all directories.
    MissingPrograms,
    /// Any failure of a program.
    Everything,
}

#[derive(Debug)]
pub(crate) struct Cni {
    bin_dirs: Vec<PathBuf>,
    started: Option<fn(u32)>,
    pub(crate) answers: Answers,
    pub(crate) conf: ConfDir,
    cache: Cache,
    add_timeout: Duration,
    /// Sandboxes whose ADD began in this process: its leftover processes ended with it.
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

    /// The deadline of an ADD that starts now.
    pub(crate) fn add_deadline(&self) -> Instant {
        Instant::now() + self.add_timeout
    }

    /// The data that a sandbox's record needs before [`Cni::add`] starts.
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

    /// Deletes a sandbox from its network; its namespace may be removed. A failure that is not
    /// tolerated stops the chain, and the caller retries later (CRI-514).
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
            tracing::warn!(sandbox = sandbox_id, %error, "skipped a failed CNI DEL; {} may keep resources of the sandbox", plugin.kind);
        }
        let removed = self
            .cache
            .remove(&endpoint.network, sandbox_id, &endpoint.interface);
        removed.map_err(|cause| target.cache_error(cause))
    }

    /// Returns a sandbox's addresses from the result cache; empty while it is being added.
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

    /// Calls one plugin for one sandbox.
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

    /// Runs one plugin; without an environment for no particular sandbox.
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

/// A plugin's stdin: its configuration with the list's keys, and the additions of this call.
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
        tracing::warn!(dir = %earlier.display(), %error, "cannot take over CNI results of an earlier version");
    }
    cache
}

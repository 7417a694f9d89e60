//! The network by CNI plugins: lists of programs that each add to what the one before made.
//!
//! ```text
//!   ADD    plugin 1 ─result─► plugin 2 ─result─► …  last result: cached, returned     (failure: DEL of the list)
//!   DEL    … ◄─ plugin 2 ◄─ plugin 1 in reverse, each with the cached result; then the cache entry is removed
//!   CHECK, STATUS, GC: in order
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
mod invoke;
mod result;
mod strays;
mod target;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::record::OnCni;
use crate::types::{Attach, Attachment, Config, INTERFACE, NotReady};
use cache::{Cache, Entry};
pub(crate) use capability::LIMIT_ANNOTATIONS;
use confdir::ConfDir;
pub(crate) use confdir::Found;
pub(crate) use conflist::ConfList;
use conflist::{Plugin, Version};
pub use error::CniError;
use invoke::{Call, Verb, find_plugin};
use target::{Target, is_namespace};

const DEL_TIMEOUT: Duration = Duration::from_secs(60);
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
/// A STATUS answer is good for this long (CRI-503).
const READY_FOR: Duration = Duration::from_secs(5);
const UNREADY_FOR: Duration = Duration::from_millis(500);

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
    conf: ConfDir,
    cache: Cache,
    add_timeout: Duration,
    /// Sandboxes whose ADD is of this life: what such a one leaves running has been ended with it.
    begun: Mutex<HashSet<String>>,
    last_status: Mutex<Option<StatusSeen>>,
}

#[derive(Debug)]
struct StatusSeen {
    of: Arc<ConfList>,
    until: Instant,
    answer: Result<(), NotReady>,
}

impl Cni {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            bin_dirs: config.bin_dirs.clone(),
            started: config.started,
            conf: ConfDir::new(config.conf_dir.clone()),
            cache: Cache::new(&config.cache_dir),
            add_timeout: config.add_timeout,
            begun: Mutex::default(),
            last_status: Mutex::new(None),
        }
    }

    /// Looks at the configuration directory. Blocks for some microseconds.
    pub(crate) fn look(&self) -> Found {
        self.conf.look()
    }

    pub(crate) fn conf_dir(&self) -> &Path {
        self.conf.path()
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
        held: &OnCni,
    ) -> Result<Attachment, CniError> {
        let target = Target::new(sandbox_id, netns, held)?;
        self.begun.lock().insert(sandbox_id.to_owned());
        let deadline = Instant::now() + self.add_timeout;
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
        held: &OnCni,
        tolerate: Tolerate,
    ) -> Result<(), CniError> {
        let target = Target::new(sandbox_id, netns, held)?;
        let deadline = Instant::now() + DEL_TIMEOUT;
        let cached = self.cached_result(&target);
        let begun_here = self.begun.lock().remove(sandbox_id);
        let added = self.cache.read(&held.network, sandbox_id, &held.interface);
        if !begun_here && added.is_none() {
            strays::end(sandbox_id).await;
        }
        for plugin in target.list.plugins.iter().rev() {
            let done = self
                .call(Verb::Del, &target, plugin, cached.as_ref(), deadline)
                .await;
            let tolerated = match &done {
                Err(CniError::PluginMissing { .. }) => tolerate >= Tolerate::MissingPrograms,
                _ => tolerate == Tolerate::Everything,
            };
            match done {
                Err(error) if tolerated => {
                    tracing::warn!(sandbox = sandbox_id, %error, "CNI DEL skipped; {} may keep resources of the sandbox", plugin.kind);
                }
                other => drop(other?),
            }
        }
        let removed = self
            .cache
            .remove(&held.network, sandbox_id, &held.interface);
        removed.map_err(|cause| target.cache_error(cause))
    }

    /// Asks the plugins whether the network is as they made it (CRI-515). Lists that cannot be checked pass.
    pub(crate) async fn check(
        &self,
        sandbox_id: &str,
        netns: &Path,
        held: &OnCni,
    ) -> Result<(), CniError> {
        let target = Target::new(sandbox_id, netns, held)?;
        if target.list.version < Version::V0_4_0 || target.list.disable_check {
            return Ok(());
        }
        let cached = self
            .cached_result(&target)
            .ok_or_else(|| target.wrong("no cached result".into()))?;
        let deadline = Instant::now() + self.add_timeout;
        for plugin in &target.list.plugins {
            self.call(Verb::Check, &target, plugin, Some(&cached), deadline)
                .await?;
        }
        Ok(())
    }

    /// Whether the plugins of a list are there and say that they can work (CRI-503, CRI-516).
    pub(crate) async fn status(&self, list: &Arc<ConfList>) -> Result<(), NotReady> {
        for kind in list.plugins.iter().flat_map(programs) {
            let found = find_plugin(kind, &self.bin_dirs);
            found.map_err(|error| not_ready(&error.to_string()))?;
        }
        if list.version < Version::V1_1_0 {
            return Ok(());
        }
        if let Some(seen) = &*self.last_status.lock()
            && seen.of == *list
            && Instant::now() < seen.until
        {
            return seen.answer.clone();
        }
        let answer = self.ask_status(list).await;
        let until = Instant::now()
            + if answer.is_ok() {
                READY_FOR
            } else {
                UNREADY_FOR
            };
        let seen = StatusSeen {
            of: list.clone(),
            until,
            answer: answer.clone(),
        };
        *self.last_status.lock() = Some(seen);
        answer
    }

    async fn ask_status(&self, list: &ConfList) -> Result<(), NotReady> {
        let deadline = Instant::now() + STATUS_TIMEOUT;
        for plugin in &list.plugins {
            let asked = self
                .call_list(Verb::Status, list, plugin, Map::new(), deadline)
                .await;
            asked.map_err(|error| not_ready(&error.to_string()))?;
        }
        Ok(())
    }

    /// Lets plugins drop what belongs to no attachment in `valid` (CRI-517). Attachments of other runtimes whose
    /// namespace is alive count as valid: sharing a cache must not cost them their addresses.
    pub(crate) async fn gc(&self, list: &ConfList, valid: &[String]) -> Result<(), CniError> {
        if list.version < Version::V1_1_0 || list.disable_gc {
            return Ok(());
        }
        let mut attachments: Vec<Value> = valid
            .iter()
            .map(|id| json!({ "containerID": id, "ifname": INTERFACE }))
            .collect();
        let is_alive = |entry: &Entry| {
            entry.network_name == list.name
                && !valid.contains(&entry.container_id)
                && is_namespace(Path::new(&entry.netns))
        };
        let others = self.cache.find(|_| true, is_alive);
        attachments.extend(
            others
                .iter()
                .map(|entry| json!({ "containerID": entry.container_id, "ifname": entry.if_name })),
        );
        let mut extra = Map::new();
        extra.insert("cni.dev/valid-attachments".into(), json!(attachments));
        extra.insert("cni.dev/attachments".into(), json!(attachments));
        let deadline = Instant::now() + DEL_TIMEOUT;
        let mut first = Ok(());
        for plugin in &list.plugins {
            let done = self
                .call_list(Verb::Gc, list, plugin, extra.clone(), deadline)
                .await;
            first = first.and(done.map(drop));
        }
        first
    }

    /// A sandbox that only the result cache knows: the record was lost with the state directory, or another runtime
    /// added it.
    pub(crate) fn find_cached(&self, sandbox_id: &str) -> Vec<(PathBuf, OnCni)> {
        let infix = format!("-{sandbox_id}-");
        let found = self.cache.find(
            |name| name.contains(&infix),
            |entry| entry.container_id == sandbox_id,
        );
        found
            .into_iter()
            .filter_map(|entry| Some((PathBuf::from(&entry.netns), held_from(entry)?)))
            .collect()
    }

    /// Cached attachments of a network that no record holds and whose namespace is gone.
    pub(crate) fn find_dead(&self, network: &str, known: impl Fn(&str) -> bool) -> Vec<String> {
        let dead = |entry: &Entry| {
            entry.network_name == network
                && !known(&entry.container_id)
                && !is_namespace(Path::new(&entry.netns))
        };
        let named = |name: &str| name.starts_with(network);
        self.cache
            .find(named, dead)
            .into_iter()
            .map(|entry| entry.container_id)
            .collect()
    }

    fn cached_result(&self, target: &Target<'_>) -> Option<Value> {
        if target.list.version < Version::V0_4_0 {
            return None;
        }
        let entry = self.cache.read(
            &target.held.network,
            target.sandbox_id,
            &target.held.interface,
        )?;
        Some(entry.result).filter(Value::is_object)
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
        let offered = target.held.capability_args.iter();
        let taken = offered.filter(|(name, _)| plugin.capabilities.contains(*name));
        let runtime: Map<String, Value> = taken
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if !runtime.is_empty() {
            extra.insert("runtimeConfig".into(), Value::Object(runtime));
        }
        let call = Call {
            verb,
            kind: &plugin.kind,
            bin_dirs: &self.bin_dirs,
            started: self.started,
            environment: &target.environment(),
            input: input(&target.list, plugin, extra),
            deadline,
        };
        call.run().await
    }

    /// One plugin for no sandbox in particular.
    async fn call_list(
        &self,
        verb: Verb,
        list: &ConfList,
        plugin: &Plugin,
        extra: Map<String, Value>,
        deadline: Instant,
    ) -> Result<Vec<u8>, CniError> {
        let input = input(list, plugin, extra);
        Call {
            verb,
            kind: &plugin.kind,
            bin_dirs: &self.bin_dirs,
            started: self.started,
            environment: &[],
            input,
            deadline,
        }
        .run()
        .await
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

/// The programs a plugin's configuration names: its own, and its address manager's.
fn programs(plugin: &Plugin) -> impl Iterator<Item = &str> {
    let ipam = plugin
        .config
        .get("ipam")
        .and_then(|ipam| ipam.get("type"))
        .and_then(Value::as_str);
    std::iter::once(plugin.kind.as_str()).chain(ipam.filter(|kind| !kind.is_empty()))
}

fn held_from(entry: Entry) -> Option<OnCni> {
    Some(OnCni {
        config: entry.config().ok()?,
        network: entry.network_name,
        interface: entry.if_name,
        args: entry.cni_args.unwrap_or_default(),
        capability_args: entry.capability_args.unwrap_or_default(),
    })
}

fn not_ready(why: &str) -> NotReady {
    NotReady {
        reason: "NetworkPluginNotReady",
        message: format!("Network plugin returns error: {why}"),
    }
}

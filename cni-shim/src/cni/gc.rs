//! Removes leftovers from a network: by GC where the configuration has version 1.1.0 or later
//! (CRI-517), and attachments that only the cache knows.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::cache::Entry;
use super::conflist::ConfList;
use super::error::CniError;
use super::invoke::Verb;
use super::{Cni, DEL_TIMEOUT};
use crate::namespaces::is_namespace;
use crate::record::OnCni;

impl Cni {
    /// Plugins drop resources of attachments that are not in `valid` (CRI-517). Attachments of
    /// other runtimes with a live namespace are valid too: they share the cache.
    pub(crate) async fn gc(
        &self,
        list: &ConfList,
        valid: &[(String, String)],
    ) -> Result<(), CniError> {
        let is_alive = |entry: &Entry| {
            entry.network_name == list.name
                && !valid.contains(&(entry.container_id.clone(), entry.if_name.clone()))
                && is_namespace(Path::new(&entry.netns))
        };
        let others = self.cache.find(|_| true, is_alive);
        let others = others.iter().map(|one| (&one.container_id, &one.if_name));
        let ours = valid.iter().map(|(id, interface)| (id, interface));
        let attachments: Vec<Value> = ours
            .chain(others)
            .map(|(id, interface)| json!({ "containerID": id, "ifname": interface }))
            .collect();
        let mut extra = Map::new();
        extra.insert("cni.dev/valid-attachments".into(), json!(attachments));
        extra.insert("cni.dev/attachments".into(), json!(attachments));
        let deadline = Instant::now() + DEL_TIMEOUT;
        let mut first = Ok(());
        for plugin in &list.plugins {
            let done = self
                .run(Verb::Gc, list, plugin, extra.clone(), &[], deadline)
                .await;
            first = first.and(done.map(drop));
        }
        first
    }

    /// Attachments of a sandbox in the result cache only: the record was lost with the state
    /// directory, or another runtime added them.
    pub(crate) fn find_cached(&self, sandbox_id: &str) -> Vec<(PathBuf, OnCni)> {
        let infix = format!("-{sandbox_id}-");
        let found = self.cache.find(
            |name| name.contains(&infix),
            |entry| entry.container_id == sandbox_id,
        );
        found
            .into_iter()
            .filter_map(|entry| Some((PathBuf::from(&entry.netns), endpoint_of(entry)?)))
            .collect()
    }

    /// Cached attachments of a network without a record and without a namespace.
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
}

fn endpoint_of(entry: Entry) -> Option<OnCni> {
    Some(OnCni {
        config: entry.config().ok()?,
        network: entry.network_name,
        interface: entry.if_name,
        args: entry.cni_args.unwrap_or_default(),
        capability_args: entry.capability_args.unwrap_or_default(),
    })
}

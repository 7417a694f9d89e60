//! Lists the networks of sandboxes, and collects leftovers of removed ones.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt as _};

use crate::attachments::{Attachments, Choice};
use crate::cni::{CniError, ConfList, DEL_TIMEOUT};
use crate::error::NetworkError;
use crate::exclusion::Busy;
use crate::network::Network;
use crate::record::{Backend, Record};
use crate::types::{INTERFACE, PortMapping};

/// Leftovers that are detached at once. Half of the default of `parallel`, so that pods go on.
const AT_ONCE: usize = 8;
/// The time in which the removal of a leftover begins.
const BEGUN_WITHIN: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Attachment,
    CachedResult,
    /// Abandoned: no sandbox is left that could need such a record.
    Unreadable,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Attachment => "attachment",
            Self::CachedResult => "cached result",
            Self::Unreadable => "unreadable record",
        }
    }
}

/// A sandbox's recorded network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attached {
    pub sandbox_id: String,
    pub netns: PathBuf,
    /// Attached by CNI plugins, otherwise on the built-in bridge.
    pub by_cni: bool,
    /// The name of the CNI list, or of the bridge.
    pub network: String,
    pub interface: String,
    /// The primary one first; empty during the attach.
    pub addresses: Vec<String>,
    pub ports: Vec<PortMapping>,
    /// Why the record cannot be read; other fields are then empty.
    pub problem: Option<String>,
}

/// A part of the network without a sandbox.
#[derive(Debug)]
pub struct Leftover {
    /// Empty for the garbage collection of plugins.
    pub sandbox_id: String,
    pub network: String,
    pub what: &'static str,
    /// The result of its removal; `Ok` for a dry run.
    pub outcome: Result<(), NetworkError>,
}

impl Network {
    /// All sandboxes with a network, by id.
    pub async fn list(&self) -> Result<Vec<Attached>, NetworkError> {
        self.blocking(|all| {
            let bridge = all.bridge.as_ref().map_or("", |bridge| bridge.name());
            let known: Vec<Record> = all.known.lock().values().cloned().collect();
            let listed = known.into_iter().map(|record| {
                let named = Attached {
                    sandbox_id: record.sandbox_id,
                    netns: record.netns,
                    ..Attached::default()
                };
                match record.backend {
                    Backend::Bridge(endpoint) => Attached {
                        network: bridge.to_owned(),
                        addresses: texts(endpoint.ips()),
                        interface: INTERFACE.to_owned(),
                        ports: endpoint.ports,
                        ..named
                    },
                    Backend::Cni(endpoint) => Attached {
                        by_cni: true,
                        addresses: texts(all.cni.addresses_of(&named.sandbox_id, &endpoint)),
                        ports: endpoint.ports(),
                        network: endpoint.network,
                        interface: endpoint.interface,
                        ..named
                    },
                }
            });
            let mut listed: Vec<Attached> = listed.collect();
            let unreadable = all.unreadable.lock();
            listed.extend(unreadable.iter().map(|(id, record)| {
                let path = all.records.path(id);
                Attached {
                    sandbox_id: id.clone(),
                    addresses: texts(record.addresses.iter().copied()),
                    problem: Some(format!("{}: {}", path.display(), record.reason)),
                    ..Attached::default()
                }
            }));
            listed.sort_by(|a, b| a.sandbox_id.cmp(&b.sandbox_id));
            Ok(listed)
        })
        .await
    }

    /// Detaches every sandbox that is not in `valid`, then runs the garbage collection of CNI
    /// plugins (CRI-517). Continues after a failure and returns the first.
    pub async fn gc(&self, valid: impl FnOnce() -> HashSet<String>) -> Result<(), NetworkError> {
        let left = self.collect(valid, false).await;
        let outcomes = left.into_iter().map(|one| one.outcome);
        outcomes.fold(Ok(()), Result::and)
    }

    /// The same with all results; `look` makes it a dry run. `valid` is called after the listing,
    /// so that a sandbox made meanwhile is not collected.
    pub async fn collect(
        &self,
        valid: impl FnOnce() -> HashSet<String>,
        look: bool,
    ) -> Vec<Leftover> {
        let all = &self.attachments;
        let known: Vec<(String, String)> = {
            let bridge = all.bridge.as_ref().map_or("", |bridge| bridge.name());
            let known = all.known.lock();
            let network = |record: &Record| match &record.backend {
                Backend::Bridge(_) => bridge.to_owned(),
                Backend::Cni(endpoint) => endpoint.network.clone(),
            };
            known
                .iter()
                .map(|(id, record)| (id.clone(), network(record)))
                .collect()
        };
        let unreadable: Vec<String> = all.unreadable.lock().keys().cloned().collect();
        let list = match all.choose().await {
            Ok(Choice::Cni(list)) => Some(list),
            _ => None,
        };
        let valid = valid();

        let orphans = known.into_iter().filter(|(id, _)| !valid.contains(id));
        let mut orphans: Vec<_> = orphans
            .map(|(id, network)| (id, network, Kind::Attachment))
            .collect();
        if let Some(list) = &list {
            let (network, owned) = (list.name.clone(), valid.clone());
            let dead = self.blocking(move |all| {
                // An attachment in progress has a record, but no result yet.
                let attached = |id: &str| owned.contains(id) || all.known.lock().contains_key(id);
                Ok(all.cni.find_dead(&network, attached))
            });
            // It fails only when the process ends.
            let dead = dead.await.unwrap_or_default().into_iter();
            orphans.extend(dead.map(|id| (id, list.name.clone(), Kind::CachedResult)));
        }
        orphans.sort();
        orphans.dedup_by(|a, b| a.0 == b.0);
        let unreadable = unreadable.into_iter().filter(|id| !valid.contains(id));
        orphans.extend(unreadable.map(|id| (id, String::new(), Kind::Unreadable)));
        // One deadline, however many never end; a later call takes up the rest.
        let until = Instant::now() + BEGUN_WITHIN;
        let left = orphans
            .into_iter()
            .map(|(sandbox_id, network, kind)| async move {
                let outcome = match kind {
                    _ if look => Ok(()),
                    _ if Instant::now() > until => Err(NetworkError::Worker(format!(
                        "not begun within {} s: others do not end",
                        BEGUN_WITHIN.as_secs()
                    ))),
                    Kind::Unreadable => self.abandon(&sandbox_id).await,
                    _ => self.detach_leftover(&sandbox_id).await,
                };
                Leftover {
                    sandbox_id,
                    network,
                    what: kind.name(),
                    outcome,
                }
            });
        let left = stream::iter(left).buffer_unordered(AT_ONCE);
        let mut left: Vec<_> = left.collect().await;
        left.sort_by(|a: &Leftover, b| a.sandbox_id.cmp(&b.sandbox_id));
        if let Some(list) = list.filter(|list| list.collects()) {
            let outcome = if look {
                Ok(())
            } else {
                collect_by_plugins(all, &list).await
            };
            left.push(Leftover {
                sandbox_id: String::new(),
                network: list.name.clone(),
                what: "plugins",
                outcome,
            });
        }
        left
    }
}

/// GC of the plugins, beside no ADD or DEL.
async fn collect_by_plugins(all: &Attachments, list: &ConfList) -> Result<(), NetworkError> {
    let gc = async {
        let valid = all.valid_attachments(&list.name);
        all.cni.gc(list, &valid).await
    };
    let busy = |busy: Busy| CniError::Network {
        network: list.name.clone(),
        reason: format!("GC: {busy}"),
    };
    let done = all.exclusion.alone(DEL_TIMEOUT, gc).await;
    Ok(done.map_err(busy)??)
}

fn texts(addresses: impl IntoIterator<Item = IpAddr>) -> Vec<String> {
    addresses.into_iter().map(|one| one.to_string()).collect()
}

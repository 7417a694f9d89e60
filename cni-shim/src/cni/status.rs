//! Checks whether the plugins of a list can work now: their programs exist, and from version 1.1.0
//! on they confirm it by STATUS (CRI-516).

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;

use super::Cni;
use super::conflist::{ConfList, Plugin, Version};
use super::error::CniError;
use super::invoke::{Verb, find_plugin};
use crate::types::NotReady;

const TIMEOUT: Duration = Duration::from_secs(10);

impl Cni {
    /// Whether a list's plugins could add a sandbox now; their answers may be some seconds old.
    pub(crate) async fn status(&self, list: &Arc<ConfList>) -> Result<(), NotReady> {
        let there = async || {
            for kind in list.plugins.iter().flat_map(programs) {
                find_plugin(kind, &self.bin_dirs, &self.answers).await?;
            }
            Ok(())
        };
        let ask = async || self.ask_status(list).await;
        self.readiness.of(list, there, ask).await
    }

    async fn ask_status(&self, list: &ConfList) -> Result<(), CniError> {
        if list.version < Version::V1_1_0 {
            return Ok(());
        }
        let deadline = Instant::now() + TIMEOUT;
        for plugin in &list.plugins {
            self.run(Verb::Status, list, plugin, Map::new(), &[], deadline)
                .await?;
        }
        Ok(())
    }
}

/// The programs of a plugin's configuration: its own, and its IPAM plugin's.
fn programs(plugin: &Plugin) -> impl Iterator<Item = &str> {
    let ipam = plugin
        .config
        .get("ipam")
        .and_then(|ipam| ipam.get("type"))
        .and_then(Value::as_str);
    std::iter::once(plugin.kind.as_str()).chain(ipam.filter(|kind| !kind.is_empty()))
}

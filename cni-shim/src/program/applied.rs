//! What the bridge and its rules were last made of: a call that finds the same does not make them again. With hundreds of
//! pods that would be most of its time.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::file;
use crate::nft::serves_loopback6;
use crate::types::BridgeConfig;

const FILE: &str = "applied.json";

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Applied {
    /// Another after each boot, after which nothing of it is there.
    boot: String,
    /// The configuration, by its words.
    config: String,
    loopback6: bool,
    index: u32,
}

/// The bridge's index, if it was made as it is to be.
pub(super) fn index(state_dir: &Path, config: &BridgeConfig) -> Option<u32> {
    let text = fs::read(state_dir.join(FILE)).ok()?;
    let applied: Applied = serde_json::from_slice(&text).ok()?;
    let index = applied.index;
    (applied == now(config, index)).then_some(index)
}

/// Notes that it is. What cannot be noted is made again.
pub(super) fn note(state_dir: &Path, config: &BridgeConfig, index: u32) {
    if let Ok(text) = serde_json::to_vec(&now(config, index)) {
        let _ = file::replace(&state_dir.join(FILE), &text, 0o600);
    }
}

fn now(config: &BridgeConfig, index: u32) -> Applied {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    Applied {
        boot: boot.unwrap_or_default().trim().to_owned(),
        config: format!("{} {config:?}", env!("CARGO_PKG_VERSION")),
        loopback6: serves_loopback6(),
        index,
    }
}

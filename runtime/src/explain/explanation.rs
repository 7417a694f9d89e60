//! An explanation, in the form of `cairn explain --output json`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of the JSON form. Fields may be added without raising it.
pub(super) const SCHEMA: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    pub schema: u32,
    pub container: About,
    /// All plugins asked at CreateContainer, in order; validators last.
    pub plugins: Vec<Said>,
    /// The reason of a rejected creation: a veto, a conflict, a validator.
    pub refused: Option<String>,
    /// The OCI spec from CRI; absent if no plugin changed it, or the creation was rejected.
    pub base: Option<Value>,
    /// The OCI spec that the container is made from, with later updates of its resources.
    pub spec: Option<Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    pub id: String,
    pub name: String,
    pub pod: String,
    /// `namespace/name`.
    pub pod_name: String,
    /// `created`, `running`, `exited`, `unknown`; `refused` without a container.
    pub state: String,
    pub image: String,
}

/// The answer of one plugin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// `NN-name`.
    pub plugin: String,
    /// The event, such as `CreateContainer`.
    pub hook: String,
    /// As in the event log: `answered`, `refused`, `timed_out`, ...
    pub outcome: String,
    pub reason: Option<String>,
    /// Absent if the event log does not reach back to it.
    pub took_ns: Option<u64>,
    pub changes: Vec<Change>,
    /// Updates of other containers.
    pub updates: u32,
    pub evictions: u32,
}

/// One field that a plugin set or removed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    pub deed: Deed,
    /// Its path in an adjustment, such as `mounts`.
    pub field: String,
    /// For fields with keys: the destination of a mount, the name of a variable.
    pub key: Option<String>,
    /// Absent for removed fields, and for environment variables.
    pub value: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    Set,
    Removed,
    /// Beside other plugins' entries: hooks.
    Added,
    /// Set, and overridden by a later plugin.
    Overridden,
}

//! What is explained, in the form of `cairn explain --output json`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of the JSON form. Fields may be added without raising it.
pub(super) const SCHEMA: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    pub schema: u32,
    pub container: About,
    /// Whoever was asked at CreateContainer, in order; validators last.
    pub plugins: Vec<Said>,
    /// Why there is no such container: a veto, a conflict, a validator.
    pub refused: Option<String>,
    /// The OCI spec as CRI asks for it; absent where no plugin changed it, or the creation was refused.
    pub base: Option<Value>,
    /// The OCI spec as the container is made from it, with later updates of its resources.
    pub spec: Option<Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    pub id: String,
    pub name: String,
    pub pod: String,
    /// `namespace/name`.
    pub pod_name: String,
    /// `created`, `running`, `exited`, `unknown`; `refused` where there is none.
    pub state: String,
    pub image: String,
}

/// What came of one plugin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// `NN-name`.
    pub plugin: String,
    /// The event, such as `CreateContainer`.
    pub hook: String,
    /// As in the event log: `answered`, `refused`, `timed_out`, ...
    pub outcome: String,
    pub reason: Option<String>,
    /// Absent where the event log does not reach back so far.
    pub took_ns: Option<u64>,
    pub changes: Vec<Change>,
    /// Of other containers.
    pub updates: u32,
    pub evictions: u32,
}

/// One thing that a plugin set, or took away.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    pub deed: Deed,
    /// Its path in an adjustment, such as `mounts`.
    pub field: String,
    /// Of fields that have keys: the destination of a mount, the name of a variable.
    pub key: Option<String>,
    /// Absent for what was removed, and for environment variables.
    pub value: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    Set,
    Removed,
    /// Beside other plugins: hooks.
    Added,
    /// Set, and overridden by a plugin behind it.
    Overridden,
}

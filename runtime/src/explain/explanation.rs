//! An explanation, in the form of `cairn explain --output json`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::trace::Values;

/// Version of the JSON form. Fields may be added without raising it.
pub(super) const SCHEMA: u32 = 2;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    pub schema: u32,
    pub container: About,
    /// Plugins that were called at CreateContainer (for a pod, at RunPodSandbox), in order;
    /// validators last.
    pub plugins: Vec<Answer>,
    /// The reason of a rejected creation: a veto, a conflict, a validator.
    pub refused: Option<String>,
    /// How it ended, or could not start, if that was a failure.
    #[serde(default)]
    pub failed: Option<String>,
    /// The latest updates of its resources, in order.
    #[serde(default)]
    pub updates: Vec<Updated>,
    /// Earlier updates, and updates and evictions of other containers that are not recorded.
    #[serde(default)]
    pub more_updates: u64,
    /// The OCI spec of the CRI request; absent if no plugin changed it, or the creation was
    /// refused.
    pub base: Option<Value>,
    /// The OCI spec that the container is made from, with later updates of its resources.
    pub spec: Option<Value>,
    /// Of a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<Explanation>,
}

/// An update of a container's resources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Updated {
    /// Absent for a CRI call.
    pub plugin: Option<String>,
    /// `Synchronize`, `UpdateContainers`, the event that was answered, or the CRI call.
    pub hook: String,
    /// Time of day in ns since the epoch.
    pub wall_ns: i64,
    #[serde(flatten)]
    pub values: Values,
    /// Why it failed.
    pub error: Option<String>,
}

/// The id and name of a container are empty if it is a pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    pub id: String,
    pub name: String,
    pub pod: String,
    /// `namespace/name`.
    pub pod_name: String,
    /// `created`, `running`, `exited`, `unknown`; `refused` or `removed` if the container does not
    /// exist. For a pod `ready`, `notready`, or one of these two.
    pub state: String,
    pub image: String,
}

/// The answer of one plugin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
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
    pub effect: Effect,
    /// Its path in an adjustment, such as `mounts`.
    pub field: String,
    /// For fields with keys: the destination of a mount, the name of a variable.
    pub key: Option<String>,
    /// Absent for removed fields, and for environment variables.
    pub value: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    Set,
    Removed,
    /// Beside other plugins' entries: hooks.
    Added,
    /// Set, and overridden by a later plugin.
    Overridden,
}

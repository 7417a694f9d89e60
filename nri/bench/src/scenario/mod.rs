//! A scenario: a TOML file, checked whole before anything is started. What is wrong is named with its line.

mod read;
mod shape;

use std::{collections::BTreeMap, time::Duration};

use nri::{
    EventMask, PluginId,
    proto::{
        Container, ContainerAdjustment, ContainerEviction, ContainerUpdate, LinuxResources,
        PodSandbox,
    },
    validate::DefaultValidator,
};
use nri_testing::Flavor;
use serde::Deserialize;
use serde_json::Value;

use crate::rules::Rule;

pub use read::{Bad, read};
#[cfg(test)]
pub use shape::filled;

/// How the runtime speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum Speaks {
    /// v1alpha1, and v1beta1 with who asks for it.
    #[default]
    #[serde(rename = "newest")]
    Newest,
    /// As NRI v0.12.5: v1alpha1 with dedicated calls, no v1beta1.
    #[serde(rename = "v0.12.5")]
    V0125,
    /// As runtimes before dedicated calls: events without an answer come as StateChange; no v1beta1, no NRI version and no
    /// timeouts in Configure.
    #[serde(rename = "state-change")]
    StateChange,
    /// v1beta1 only.
    #[serde(rename = "v1beta1")]
    V1Beta1,
}

/// Who a plugin is that nothing is said of.
pub fn unnamed() -> PluginId {
    PluginId {
        index: "10".to_owned(),
        name: "plugin".to_owned(),
    }
}

/// A scenario, checked.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub name: String,
    pub flavor: Flavor,
    pub speaks: Speaks,
    /// Name and version that plugins are told; empty: as the flavor.
    pub identity: (String, String),
    pub request_timeout: Duration,
    /// How long the plugin may take to join, and to come back.
    pub join_timeout: Duration,
    /// Name and index that a launched plugin is given.
    pub plugin: PluginId,
    /// What Configure carries.
    pub config: String,
    pub validator: DefaultValidator,
    /// Broken rules that are no failure.
    pub allow: Vec<Rule>,
    /// Bytes that the plugin may grow by.
    pub growth: u64,
    pub others: Vec<Other>,
    pub pods: BTreeMap<String, PodSandbox>,
    pub containers: BTreeMap<String, Container>,
    pub steps: Vec<Step>,
}

/// A plugin beside the one under test, which adjusts every container alike.
#[derive(Debug, Clone)]
pub struct Other {
    pub id: PluginId,
    pub adjust: ContainerAdjustment,
}

/// One step, with the line it begins at.
#[derive(Debug, Clone)]
pub struct Step {
    pub line: usize,
    /// What it does, in the word of the scenario.
    pub what: String,
    pub act: Act,
    pub expect: Expect,
}

#[derive(Debug, Clone)]
pub enum Act {
    /// The plugin joins a runtime that has so many pods, each with so many containers.
    Join {
        pods: u32,
        containers: u32,
        plugins: Vec<PluginId>,
    },
    RunPod(String),
    UpdatePod {
        pod: String,
        overhead: Box<LinuxResources>,
        resources: Box<LinuxResources>,
    },
    Create {
        pod: String,
        container: String,
    },
    Start(String),
    Update {
        container: String,
        resources: Box<LinuxResources>,
    },
    Stop(String),
    Remove(String),
    StopPod(String),
    RemovePod(String),
    /// The runtime is gone without a word, and comes back with its pods.
    Crash,
    /// The runtime says goodbye, and comes back with its pods.
    Restart,
    /// A second instance of the plugin comes, then the first one goes.
    Rollout,
    /// Every message to the plugin is held back so long from now on.
    Slow(Duration),
    /// So many whole lives of a pod with a container.
    Churn {
        pod: String,
        container: String,
        times: u32,
    },
}

/// What a step must come to. Nothing given: no error.
#[derive(Debug, Clone, Default)]
pub struct Expect {
    /// The operation fails, with this in its reason.
    pub error: Option<String>,
    /// The adjustment holds this, as JSON of ContainerAdjustment.
    pub adjust: Option<Value>,
    /// The adjustment holds nothing else.
    pub exact: bool,
    /// The plugin adjusts nothing, updates and evicts nobody.
    pub unchanged: bool,
    /// Updates of other containers hold these, as JSON of ContainerUpdate; `container_id` is a container's name.
    pub updates: Vec<ContainerUpdate>,
    /// These are evicted; `container_id` is a container's name.
    pub evictions: Vec<ContainerEviction>,
    /// What the container's resources become at `update`, as JSON of LinuxResources.
    pub resources: Option<Value>,
    /// It subscribes to just these.
    pub events: Option<EventMask>,
    /// `v1alpha1` or `v1beta1`.
    pub protocol: Option<String>,
    /// The plugin prints these, each somewhere in what it prints from the beginning of the step on.
    pub prints: Vec<String>,
    /// No answer of the step takes longer.
    pub within: Option<Duration>,
}

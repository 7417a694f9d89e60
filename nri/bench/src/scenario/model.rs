//! A parsed scenario: the runtime, and each step with its expectations.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use nri::{
    PluginId,
    proto::{Container, ContainerAdjustment, LinuxResources, PodSandbox},
    validate::DefaultValidator,
};
use nri_testing::{Flavor, container, pod};
use serde::Deserialize;

use crate::{expect::Expected, rules::Rule};

/// Generation of the runtime's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Speaks {
    /// As NRI v0.12.5: one call per event.
    #[default]
    DedicatedCalls,
    /// As runtimes before dedicated calls: events without an answer are sent as StateChange; no NRI
    /// version and no timeouts in Configure.
    StateChange,
}

/// The default plugin identity.
pub fn unnamed() -> PluginId {
    PluginId {
        index: "10".to_owned(),
        name: "plugin".to_owned(),
    }
}

/// A checked scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub name: String,
    /// Its path.
    pub file: String,
    pub flavor: Flavor,
    pub speaks: Speaks,
    /// Name and version sent to plugins; empty: the flavor's.
    pub identity: (String, String),
    pub request_timeout: Duration,
    /// Time limit for the plugin to join, and to rejoin.
    pub join_timeout: Duration,
    /// The CPUs of the runtime's host, such as `0-3`; `None`: those of this host.
    pub cpus: Option<String>,
    /// Name and index of a launched plugin.
    pub plugin: PluginId,
    /// The configuration in Configure.
    pub config: String,
    pub validator: DefaultValidator,
    /// Rules whose violation is allowed.
    pub allow: Vec<Rule>,
    /// Bytes of allowed memory growth.
    pub growth: u64,
    pub others: Vec<Other>,
    pub pods: BTreeMap<String, PodSandbox>,
    pub containers: BTreeMap<String, Container>,
    pub steps: Vec<Step>,
}

impl Scenario {
    /// The pod of this name.
    pub fn pod(&self, name: &str) -> PodSandbox {
        let given = self.pods.get(name).cloned();
        given.unwrap_or_else(|| pod(name).into())
    }

    /// The container of this name.
    pub fn container(&self, name: &str) -> Container {
        let given = self.containers.get(name).cloned();
        given.unwrap_or_else(|| container(name).into())
    }
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
    /// Its action, in the word of the scenario.
    pub what: String,
    pub act: Act,
    pub expect: Vec<Expected>,
}

#[derive(Debug, Clone)]
pub enum Act {
    /// The plugin joins a runtime with these pods, each with its containers, by name.
    Join {
        pods: Vec<(String, Vec<String>)>,
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
    /// The runtime disappears without Shutdown, and restarts with its pods.
    Crash,
    /// The runtime sends Shutdown, and restarts with its pods.
    Restart,
    /// A second instance of the plugin joins, then the first one ends. The words start the second
    /// one.
    Rollout(Option<Vec<String>>),
    /// Every message to the plugin is delayed by this from now on.
    Slow(Duration),
    /// Complete lives of a pod with a container.
    Churn {
        pod: String,
        container: String,
        times: u32,
    },
}

impl Act {
    /// Adds the names of its pods and containers.
    pub fn names<'a>(
        &'a self,
        of_pods: &mut BTreeSet<&'a str>,
        of_containers: &mut BTreeSet<&'a str>,
    ) {
        match self {
            Self::Join { pods, .. } => {
                of_pods.extend(pods.iter().map(|(pod, _)| pod.as_str()));
                let containers = pods.iter().flat_map(|(_, containers)| containers);
                of_containers.extend(containers.map(String::as_str));
            }
            Self::RunPod(pod)
            | Self::UpdatePod { pod, .. }
            | Self::StopPod(pod)
            | Self::RemovePod(pod) => _ = of_pods.insert(pod),
            Self::Create { pod, container } | Self::Churn { pod, container, .. } => {
                of_pods.insert(pod);
                of_containers.insert(container);
            }
            Self::Start(container)
            | Self::Update { container, .. }
            | Self::Stop(container)
            | Self::Remove(container) => _ = of_containers.insert(container),
            Self::Crash | Self::Restart | Self::Rollout(_) | Self::Slow(_) => {}
        }
    }
}

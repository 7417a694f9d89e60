//! A Kubernetes pod, reduced to the fields that a runtime gets.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::quantity;

/// The period that kubelets set.
const PERIOD: i64 = 100_000;

/// A pod with all its containers, init containers first.
#[derive(Debug)]
pub(super) struct Pod {
    pub name: String,
    pub namespace: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub runtime_handler: String,
    pub containers: Vec<Container>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Object {
    kind: String,
    metadata: Metadata,
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    namespace: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    runtime_class_name: String,
    init_containers: Vec<Container>,
    containers: Vec<Container>,
    /// Of a Deployment, DaemonSet, StatefulSet or Job.
    template: Option<Box<Object>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Container {
    pub name: String,
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub env: Vec<Env>,
    pub volume_mounts: Vec<VolumeMount>,
    restart_policy: String,
    /// An init container that ends before the next container starts.
    #[serde(skip)]
    pub ends: bool,
    resources: Resources,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Env {
    pub name: String,
    pub value: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct VolumeMount {
    pub name: String,
    pub mount_path: String,
    pub read_only: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    limits: BTreeMap<String, String>,
    requests: BTreeMap<String, String>,
}

impl Pod {
    /// Reads the first document.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let mut options = serde_saphyr::Options::default();
        options.with_snippet = false;
        let object: Object = serde_saphyr::from_str_with_options(text, options)
            .map_err(|e| format!("neither a recording, nor a pod in YAML or JSON: {e}"))?;
        let (kind, metadata, spec) = (object.kind, object.metadata, object.spec);
        let (of_pod, spec) = match spec.template {
            Some(template) => (template.metadata, template.spec),
            None => (Metadata::default(), spec),
        };
        let or = |one: String, other: String| if one.is_empty() { other } else { one };
        let mut labels = of_pod.labels;
        let mut annotations = of_pod.annotations;
        if kind == "Pod" || kind.is_empty() {
            labels.extend(metadata.labels);
            annotations.extend(metadata.annotations);
        }
        let init = spec.init_containers.into_iter().map(|mut container| {
            container.ends = container.restart_policy != "Always";
            container
        });
        let containers: Vec<_> = init.chain(spec.containers).collect();
        if containers.is_empty() {
            return Err(
                "no pod: neither `spec.containers` nor `spec.template.spec.containers`".to_owned(),
            );
        }
        if containers.iter().any(|c| c.name.is_empty()) {
            return Err("a container without a name".to_owned());
        }
        Ok(Self {
            name: or(or(of_pod.name, metadata.name), "pod".to_owned()),
            namespace: or(metadata.namespace, "default".to_owned()),
            labels,
            annotations,
            runtime_handler: spec.runtime_class_name,
            containers,
        })
    }
}

impl Container {
    /// The kubelet's values for requests and limits: the field below `linux.resources`, and its
    /// value.
    pub(super) fn resources(&self) -> Result<Vec<(&'static str, i64)>, String> {
        let bad = |what: &str, text: &str| {
            format!(
                "container {:?}: {what} {text:?} is not a quantity",
                self.name
            )
        };
        let mut all = Vec::new();
        if let Some(text) = self.resources.limits.get("memory") {
            let bytes = quantity::whole(text).ok_or_else(|| bad("memory limit", text))?;
            all.push(("memory.limit", bytes));
        }
        let limit = self.resources.limits.get("cpu");
        if let Some(text) = self.resources.requests.get("cpu").or(limit) {
            let milli = quantity::milli(text).ok_or_else(|| bad("CPU request", text))?;
            all.push(("cpu.shares", (milli.saturating_mul(1024) / 1000).max(2)));
        }
        if let Some(text) = limit {
            let milli = quantity::milli(text).ok_or_else(|| bad("CPU limit", text))?;
            all.push(("cpu.quota", (milli.saturating_mul(PERIOD) / 1000).max(1000)));
            all.push(("cpu.period", PERIOD));
        }
        Ok(all)
    }
}

//! OCI annotations for other tools (CRI-208). The CRI's own are stored elsewhere, unchanged.

use std::collections::HashMap;

use proto_cri::v1::ContainerConfig;

use super::facts::{ImageFacts, Policy, SandboxFacts};

const PREFIX: &str = "io.kubernetes.cri";
/// Annotation of a container's spec that names its sandbox.
pub const SANDBOX_ID: &str = "io.kubernetes.cri.sandbox-id";

/// Annotations of a container: its identity, its sandbox, and those that the policy allows.
pub fn container(
    sandbox: &SandboxFacts,
    config: &ContainerConfig,
    image: &ImageFacts,
    policy: &Policy,
) -> HashMap<String, String> {
    let mut all = common(sandbox, "container");
    let name = config.metadata.as_ref().map_or("", |m| m.name.as_str());
    all.insert(format!("{PREFIX}.container-name"), name.to_owned());
    all.insert(format!("{PREFIX}.image-name"), image.name.clone());
    all.extend(allowed(&sandbox.annotations, policy));
    all.extend(allowed(&config.annotations, policy));
    all
}

/// Annotations of the pause container: the pod's identity, and its limits if known (CRI-234).
pub fn pause(sandbox: &SandboxFacts, policy: &Policy) -> HashMap<String, String> {
    let mut all = common(sandbox, "sandbox");
    if let Some(resources) = &sandbox.resources {
        for (name, value) in [
            ("sandbox-cpu-period", resources.cpu_period),
            ("sandbox-cpu-quota", resources.cpu_quota),
            ("sandbox-cpu-shares", resources.cpu_shares),
            ("sandbox-memory", resources.memory_limit_in_bytes),
        ] {
            all.insert(format!("{PREFIX}.{name}"), value.to_string());
        }
    }
    all.extend(allowed(&sandbox.annotations, policy));
    all
}

fn common(sandbox: &SandboxFacts, kind: &str) -> HashMap<String, String> {
    let metadata = &sandbox.metadata;
    [
        ("container-type", kind),
        ("sandbox-id", &sandbox.id),
        ("sandbox-name", &metadata.name),
        ("sandbox-namespace", &metadata.namespace),
        ("sandbox-uid", &metadata.uid),
        ("sandbox-log-directory", &sandbox.log_directory),
    ]
    .into_iter()
    .map(|(name, value)| (format!("{PREFIX}.{name}"), value.to_owned()))
    .collect()
}

/// Annotations with an allowed prefix. Names under our own prefix are dropped.
fn allowed<'a>(
    annotations: &'a std::collections::BTreeMap<String, String>,
    policy: &'a Policy,
) -> impl Iterator<Item = (String, String)> + 'a {
    annotations
        .iter()
        .filter(|(key, _)| !key.starts_with(PREFIX))
        .filter(|(key, _)| {
            policy
                .annotation_prefixes
                .iter()
                .any(|p| key.starts_with(p.as_str()))
        })
        .map(|(key, value)| (key.clone(), value.clone()))
}

//! Records as CRI messages, and the filters of the list RPCs. Reads snapshots and never waits.

use std::collections::BTreeMap;

use proto_cri::v1 as cri;

use crate::pod::{
    held::{HeldContainer, HeldPod},
    record::{ContainerPhase, ContainerRecord, PodPhase, PodRecord},
};

pub fn pod_state(record: &PodRecord) -> cri::PodSandboxState {
    match record.phase {
        PodPhase::Ready => cri::PodSandboxState::SandboxReady,
        PodPhase::Creating | PodPhase::NotReady => cri::PodSandboxState::SandboxNotready,
    }
}

pub fn container_state(record: &ContainerRecord) -> cri::ContainerState {
    match record.phase {
        ContainerPhase::Creating | ContainerPhase::Created => cri::ContainerState::ContainerCreated,
        ContainerPhase::Running => cri::ContainerState::ContainerRunning,
        ContainerPhase::Exited => cri::ContainerState::ContainerExited,
        ContainerPhase::Unknown => cri::ContainerState::ContainerUnknown,
    }
}

pub fn pod(record: &PodRecord) -> cri::PodSandbox {
    cri::PodSandbox {
        id: record.id.clone(),
        metadata: record.config.metadata.clone(),
        state: pod_state(record).into(),
        created_at: record.created_at,
        labels: record.config.labels.clone(),
        annotations: record.config.annotations.clone(),
        runtime_handler: record.runtime_handler.clone(),
    }
}

/// CRI-116, CRI-117.
pub fn pod_status(record: &PodRecord) -> cri::PodSandboxStatus {
    let ips = match record.phase {
        PodPhase::Ready => record.ips(),
        _ => Vec::new(),
    };
    cri::PodSandboxStatus {
        network: Some(cri::PodSandboxNetworkStatus {
            ip: ips.first().cloned().unwrap_or_default(),
            additional_ips: ips
                .iter()
                .skip(1)
                .map(|ip| cri::PodIp { ip: ip.clone() })
                .collect(),
        }),
        linux: Some(cri::LinuxPodSandboxStatus {
            namespaces: Some(cri::Namespace {
                options: Some(record.namespace_options()),
            }),
        }),
        ..as_status(pod(record))
    }
}

/// The fields of the lists. Each field is named, so that a new one in CRI needs a decision here.
fn as_status(pod: cri::PodSandbox) -> cri::PodSandboxStatus {
    cri::PodSandboxStatus {
        id: pod.id,
        metadata: pod.metadata,
        state: pod.state,
        created_at: pod.created_at,
        labels: pod.labels,
        annotations: pod.annotations,
        runtime_handler: pod.runtime_handler,
        network: None,
        linux: None,
    }
}

fn image(record: &ContainerRecord) -> cri::ImageSpec {
    cri::ImageSpec {
        image: record.image.name.clone(),
        annotations: record.image.annotations.clone(),
        user_specified_image: record.image.user_specified.clone(),
        runtime_handler: record.image.runtime_handler.clone(),
        image_ref: String::new(),
    }
}

/// CRI-135.
pub fn container(record: &ContainerRecord) -> cri::Container {
    cri::Container {
        id: record.id.clone(),
        pod_sandbox_id: record.pod.clone(),
        metadata: record.config.metadata.clone(),
        image: Some(image(record)),
        image_ref: record.image.reference.clone(),
        state: container_state(record).into(),
        created_at: record.created_at,
        labels: record.config.labels.clone(),
        annotations: record.config.annotations.clone(),
        image_id: record.image.id.clone(),
    }
}

/// CRI-143.
pub fn container_status(record: &ContainerRecord) -> cri::ContainerStatus {
    cri::ContainerStatus {
        started_at: record.started_at,
        finished_at: record.finished_at,
        exit_code: record.exit.code,
        reason: record.exit.reason.clone(),
        message: record.exit.message.clone(),
        mounts: record.config.mounts.clone(),
        log_path: record
            .log_path
            .as_ref()
            .map(|path| path.display().to_string())
            .unwrap_or_default(),
        resources: Some(cri::ContainerResources {
            linux: Some(record.resources.clone()),
            windows: None,
        }),
        user: Some(cri::ContainerUser {
            linux: Some(cri::LinuxContainerUser {
                uid: record.user.uid,
                gid: record.user.gid,
                supplemental_groups: record.user.groups.clone(),
            }),
        }),
        stop_signal: record.stop_signal,
        ..as_container_status(container(record))
    }
}

/// The fields of the lists, as in [`as_status`].
fn as_container_status(container: cri::Container) -> cri::ContainerStatus {
    cri::ContainerStatus {
        id: container.id,
        metadata: container.metadata,
        state: container.state,
        created_at: container.created_at,
        image: container.image,
        image_ref: container.image_ref,
        image_id: container.image_id,
        labels: container.labels,
        annotations: container.annotations,
        started_at: 0,
        finished_at: 0,
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        mounts: Vec::new(),
        log_path: String::new(),
        resources: None,
        user: None,
        stop_signal: 0,
    }
}

/// A sandbox with an unreadable record: never ready, even if it runs.
pub fn held_pod(held: &HeldPod) -> cri::PodSandbox {
    cri::PodSandbox {
        id: held.id.clone(),
        metadata: held.config.metadata.clone(),
        state: cri::PodSandboxState::SandboxNotready.into(),
        created_at: held.created_at,
        labels: held.config.labels.clone(),
        annotations: held.config.annotations.clone(),
        runtime_handler: String::new(),
    }
}

pub fn held_pod_status(held: &HeldPod) -> cri::PodSandboxStatus {
    as_status(held_pod(held))
}

/// Clients reject a container without an image name or reference.
fn known(text: &str) -> String {
    match text {
        "" => "unknown".to_owned(),
        text => text.to_owned(),
    }
}

fn held_image(held: &HeldContainer) -> cri::ImageSpec {
    let mut image = held.config.image.clone().unwrap_or_default();
    if !held.image.name.is_empty() {
        image.image.clone_from(&held.image.name);
    }
    image.image = known(&image.image);
    image
}

/// A container with an unreadable record.
pub fn held_container(held: &HeldContainer) -> cri::Container {
    cri::Container {
        id: held.id.clone(),
        pod_sandbox_id: held.pod.clone().unwrap_or_default(),
        metadata: held.config.metadata.clone(),
        image: Some(held_image(held)),
        image_ref: known(&held.image.reference),
        image_id: known(&held.image.id),
        state: cri::ContainerState::ContainerUnknown.into(),
        created_at: held.created_at,
        labels: held.config.labels.clone(),
        annotations: held.config.annotations.clone(),
    }
}

pub fn held_container_status(held: &HeldContainer) -> cri::ContainerStatus {
    cri::ContainerStatus {
        reason: "RecordUnreadable".to_owned(),
        message: held.refusal("container").text,
        mounts: held.config.mounts.clone(),
        ..as_container_status(held_container(held))
    }
}

/// Every key must match exactly.
fn labels_match(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

/// CRI-119: all given conditions must match; without a filter everything passes.
pub fn pod_passes(filter: Option<&cri::PodSandboxFilter>, record: &PodRecord) -> bool {
    passes_pod(filter, &record.id, pod_state(record), &record.config.labels)
}

pub fn held_pod_passes(filter: Option<&cri::PodSandboxFilter>, held: &HeldPod) -> bool {
    let state = cri::PodSandboxState::SandboxNotready;
    passes_pod(filter, &held.id, state, &held.config.labels)
}

fn passes_pod(
    filter: Option<&cri::PodSandboxFilter>,
    id: &str,
    state: cri::PodSandboxState,
    labels: &BTreeMap<String, String>,
) -> bool {
    filter.is_none_or(|filter| {
        let wanted = filter.state.as_ref();
        id.starts_with(&filter.id)
            && wanted.is_none_or(|wanted| wanted.state() == state)
            && labels_match(&filter.label_selector, labels)
    })
}

/// CRI-135.
pub fn container_passes(filter: Option<&cri::ContainerFilter>, record: &ContainerRecord) -> bool {
    let (state, labels) = (container_state(record), &record.config.labels);
    passes_container(filter, &record.id, &record.pod, state, labels)
}

pub fn held_container_passes(filter: Option<&cri::ContainerFilter>, held: &HeldContainer) -> bool {
    let pod = held.pod.as_deref().unwrap_or_default();
    let state = cri::ContainerState::ContainerUnknown;
    passes_container(filter, &held.id, pod, state, &held.config.labels)
}

fn passes_container(
    filter: Option<&cri::ContainerFilter>,
    id: &str,
    pod: &str,
    state: cri::ContainerState,
    labels: &BTreeMap<String, String>,
) -> bool {
    filter.is_none_or(|filter| {
        let wanted = filter.state.as_ref();
        id.starts_with(&filter.id)
            && pod.starts_with(&filter.pod_sandbox_id)
            && wanted.is_none_or(|wanted| wanted.state() == state)
            && labels_match(&filter.label_selector, labels)
    })
}

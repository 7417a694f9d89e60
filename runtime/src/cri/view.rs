//! Records as CRI messages, and the filters of the list RPCs. Reads snapshots, waits for
//! nothing.

use std::collections::BTreeMap;

use proto_cri::v1 as cri;

use crate::pod::{
    Container, Pod,
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
    let ips = match (&record.network, record.phase) {
        (Some(network), PodPhase::Ready) => network.ips.as_slice(),
        _ => &[],
    };
    cri::PodSandboxStatus {
        id: record.id.clone(),
        metadata: record.config.metadata.clone(),
        state: pod_state(record).into(),
        created_at: record.created_at,
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
        labels: record.config.labels.clone(),
        annotations: record.config.annotations.clone(),
        runtime_handler: record.runtime_handler.clone(),
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
        id: record.id.clone(),
        metadata: record.config.metadata.clone(),
        state: container_state(record).into(),
        created_at: record.created_at,
        started_at: record.started_at,
        finished_at: record.finished_at,
        exit_code: record.exit.code,
        image: Some(image(record)),
        image_ref: record.image.reference.clone(),
        reason: record.exit.reason.clone(),
        message: record.exit.message.clone(),
        labels: record.config.labels.clone(),
        annotations: record.config.annotations.clone(),
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
        image_id: record.image.id.clone(),
        user: Some(cri::ContainerUser {
            linux: Some(cri::LinuxContainerUser {
                uid: record.user.uid,
                gid: record.user.gid,
                supplemental_groups: record.user.groups.clone(),
            }),
        }),
        stop_signal: record.stop_signal,
    }
}

/// Every key must match exactly.
fn labels_match(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

/// CRI-119: all given conditions hold; no filter lets all through.
pub fn pod_passes(filter: Option<&cri::PodSandboxFilter>, pod: &Pod) -> bool {
    let Some(filter) = filter else { return true };
    let record = pod.cell.get();
    pod.id.starts_with(&filter.id)
        && filter
            .state
            .as_ref()
            .is_none_or(|wanted| wanted.state() == pod_state(&record))
        && labels_match(&filter.label_selector, &record.config.labels)
}

/// CRI-135.
pub fn container_passes(
    filter: Option<&cri::ContainerFilter>,
    pod: &Pod,
    container: &Container,
) -> bool {
    let Some(filter) = filter else { return true };
    let record = container.cell.get();
    container.id.starts_with(&filter.id)
        && pod.id.starts_with(&filter.pod_sandbox_id)
        && filter
            .state
            .as_ref()
            .is_none_or(|wanted| wanted.state() == container_state(&record))
        && labels_match(&filter.label_selector, &record.config.labels)
}

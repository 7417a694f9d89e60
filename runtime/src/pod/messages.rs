//! Pods and containers as plugins see them (spec/nri.md 12.3). The part of a container's
//! message that comes from its spec is made once and kept with the container; state, pid and
//! times are laid over it as of now.

use super::{
    Container, Pod,
    hooks::state,
    record::{ContainerPhase, ContainerRecord},
    spec::Specs,
};
use crate::oci::{self, ImageFacts, NriContainerFacts, SeccompKind};

pub fn pod(pod: &Pod) -> proto_nri::PodSandbox {
    oci::nri_pod(&pod.services.sandbox_facts(pod), None, &pod.services.policy)
}

/// What of a container's message its spec says.
pub fn base(pod: &Pod, container: &Container, specs: &Specs) -> proto_nri::Container {
    let record = container.cell.get();
    let image = ImageFacts {
        name: record.image.name.clone(),
        digest: record.image.reference.clone(),
        config_digest: record.image.id.clone(),
        ..ImageFacts::default()
    };
    // A name that is none was refused when the spec was built.
    let devices = oci::cdi_names(&record.config).unwrap_or_default();
    let seccomp: Option<SeccompKind> =
        oci::from_cri::seccomp_choice(&record.config, &pod.services.policy).ok();
    oci::nri_container(
        &NriContainerFacts {
            id: &container.id,
            sandbox_id: &pod.id,
            name: record.name(),
            state: state(record.phase),
            labels: Some(&record.config.labels),
            annotations: Some(&record.config.annotations),
            created_at: record.created_at,
            cdi_devices: &devices,
            image: Some(&image),
            seccomp: seccomp.as_ref(),
            ..NriContainerFacts::default()
        },
        &specs.spec,
    )
}

/// Who a container is whose spec never reached the disk: the daemon was killed while it was
/// being created, and plugins are told that it is gone.
fn without_spec(record: &ContainerRecord) -> proto_nri::Container {
    proto_nri::Container {
        id: record.id.clone(),
        pod_sandbox_id: record.pod.clone(),
        name: record.name().to_owned(),
        labels: record.config.labels.clone(),
        annotations: record.config.annotations.clone(),
        ..Default::default()
    }
}

/// The container as it is now.
pub fn container(container: &Container) -> proto_nri::Container {
    let record = container.cell.get();
    let mut message = container.message().unwrap_or_else(|| without_spec(&record));
    message.state = state(record.phase).into();
    message.pid = match record.phase {
        ContainerPhase::Running => record.process.as_ref().map_or(0, |process| process.pid),
        _ => 0,
    };
    message.created_at = record.created_at;
    message.started_at = record.started_at;
    message.finished_at = record.finished_at;
    message.exit_code = record.exit.code;
    message.status_reason.clone_from(&record.exit.reason);
    message.status_message.clone_from(&record.exit.message);
    message
}

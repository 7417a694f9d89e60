//! Pods and containers as plugins and the spec builder see them. The part of a container's message
//! that comes from its spec is made once and kept with the container; the current state, pid and
//! times are added.

use std::sync::Arc;

use proto_cri::v1 as cri;
use proto_nri::ContainerState;

use super::{
    node::Node,
    record::{ContainerPhase, ContainerRecord, Process},
    spec::Specs,
    state::{Container, Pod},
};
use crate::oci::{
    self, ImageFacts, NriContainerFacts, Policy, SandboxFacts, SandboxFiles, SandboxNamespaces,
    SeccompKind,
};

/// The policy of the pod's runtime handler. A handler that is no longer configured gets no new
/// containers; its pods are described with the default policy.
pub fn policy<'a>(node: &'a Node, pod: &Pod) -> &'a Arc<Policy> {
    let handler = &pod.cell.get().runtime_handler;
    let policies = &node.policies;
    policies.get(handler).unwrap_or(&policies.default)
}

/// The sandbox facts for the pure spec builder.
pub fn sandbox(node: &Node, pod: &Pod) -> SandboxFacts {
    let record = pod.cell.get();
    let linux = record.linux();
    let context = linux.security_context.clone().unwrap_or_default();
    let options = record.namespace_options();
    let files = node.dirs.files(&pod.id);
    let host_ipc = options.ipc() == cri::NamespaceMode::Node;
    let pause = record.pause.as_ref();
    SandboxFacts {
        id: pod.id.clone(),
        metadata: record.metadata(),
        labels: record.config.labels.clone(),
        annotations: record.config.annotations.clone(),
        runtime_handler: record.runtime_handler.clone(),
        cgroup_parent: record.cgroup_parent.clone(),
        namespaces: SandboxNamespaces {
            net: record.namespaces.net.clone(),
            ipc: record.namespaces.ipc.clone(),
            uts: record.namespaces.uts.clone(),
            pid: pause.map(Process::pid_namespace),
            user: record.namespaces.user.clone(),
        },
        user_mapping: oci::namespaces::user_mapping(&options).unwrap_or_default(),
        namespace_options: options,
        hostname: node.hostname(&record),
        files: SandboxFiles {
            hostname: files.hostname,
            hosts: files.hosts,
            resolv_conf: files.resolv_conf,
            shm: if host_ipc {
                "/dev/shm".into()
            } else {
                files.shm
            },
        },
        host_network: record.host_network(),
        log_directory: record.config.log_directory.clone(),
        privileged: context.privileged,
        selinux: record.selinux.clone(),
        overhead: record.overhead.clone(),
        resources: record.resources.clone(),
        ips: record.ips(),
        pause_pid: pause.map_or(0, |pause| pause.pid),
    }
}

pub fn pod(node: &Node, pod: &Pod) -> proto_nri::PodSandbox {
    oci::nri_pod(&sandbox(node, pod), None, policy(node, pod))
}

/// The part of a container's message that comes from its spec.
pub fn from_spec(
    node: &Node,
    pod: &Pod,
    container: &Container,
    specs: &Specs,
) -> proto_nri::Container {
    let record = container.cell.get();
    let image = ImageFacts {
        name: record.image.name.clone(),
        digest: record.image.reference.clone(),
        config_digest: record.image.id.clone(),
        ..ImageFacts::default()
    };
    // Invalid names were rejected when the spec was built.
    let devices = oci::cdi_names(&record.config).unwrap_or_default();
    let seccomp: Option<SeccompKind> =
        oci::from_cri::seccomp_choice(&record.config, policy(node, pod)).ok();
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

/// The message of a container without a spec on disk: the daemon was killed during its creation,
/// and plugins are notified of its removal.
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

/// The current message of the container.
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

/// The NRI state of a container's phase.
fn state(phase: ContainerPhase) -> ContainerState {
    match phase {
        ContainerPhase::Creating | ContainerPhase::Created => ContainerState::ContainerCreated,
        ContainerPhase::Running => ContainerState::ContainerRunning,
        ContainerPhase::Exited => ContainerState::ContainerStopped,
        ContainerPhase::Unknown => ContainerState::ContainerUnknown,
    }
}

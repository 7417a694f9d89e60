//! Every field of the wire types of a container is handled or rejected by name: a field of a new
//! protocol version fails here until it is added to a list.

use std::collections::{BTreeMap, BTreeSet};

use prost_types::{DescriptorProto, field_descriptor_proto::Type};

/// Fields of CRI that a module of `oci/` reads.
pub(crate) const CRI_HANDLED: &[&str] = &[
    "Capability.add_ambient_capabilities",
    "Capability.add_capabilities",
    "Capability.drop_capabilities",
    "CDIDevice.name",
    "ContainerConfig.CDI_devices",
    "ContainerConfig.annotations",
    "ContainerConfig.args",
    "ContainerConfig.command",
    "ContainerConfig.devices",
    "ContainerConfig.envs",
    "ContainerConfig.linux",
    "ContainerConfig.log_path",
    "ContainerConfig.metadata",
    "ContainerConfig.mounts",
    "ContainerConfig.stop_signal",
    "ContainerConfig.tty",
    "ContainerConfig.working_dir",
    "ContainerMetadata.name",
    "Device.container_path",
    "Device.host_path",
    "Device.permissions",
    "HugepageLimit.limit",
    "HugepageLimit.page_size",
    "IDMapping.container_id",
    "IDMapping.host_id",
    "IDMapping.length",
    "Int64Value.value",
    "KeyValue.key",
    "KeyValue.value",
    "LinuxContainerConfig.resources",
    "LinuxContainerConfig.security_context",
    "LinuxContainerResources.cpu_period",
    "LinuxContainerResources.cpu_quota",
    "LinuxContainerResources.cpu_shares",
    "LinuxContainerResources.cpuset_cpus",
    "LinuxContainerResources.cpuset_mems",
    "LinuxContainerResources.hugepage_limits",
    "LinuxContainerResources.memory_limit_in_bytes",
    "LinuxContainerResources.memory_swap_limit_in_bytes",
    "LinuxContainerResources.oom_score_adj",
    "LinuxContainerResources.unified",
    "LinuxContainerSecurityContext.apparmor",
    "LinuxContainerSecurityContext.apparmor_profile",
    "LinuxContainerSecurityContext.capabilities",
    "LinuxContainerSecurityContext.masked_paths",
    "LinuxContainerSecurityContext.namespace_options",
    "LinuxContainerSecurityContext.no_new_privs",
    "LinuxContainerSecurityContext.privileged",
    "LinuxContainerSecurityContext.readonly_paths",
    "LinuxContainerSecurityContext.readonly_rootfs",
    "LinuxContainerSecurityContext.run_as_group",
    "LinuxContainerSecurityContext.run_as_user",
    "LinuxContainerSecurityContext.run_as_username",
    "LinuxContainerSecurityContext.seccomp",
    "LinuxContainerSecurityContext.seccomp_profile_path",
    "LinuxContainerSecurityContext.supplemental_groups",
    "LinuxContainerSecurityContext.supplemental_groups_policy",
    "LinuxPodSandboxConfig.cgroup_parent",
    "LinuxPodSandboxConfig.overhead",
    "LinuxPodSandboxConfig.resources",
    "LinuxPodSandboxConfig.security_context",
    "LinuxPodSandboxConfig.sysctls",
    "LinuxSandboxSecurityContext.apparmor",
    "LinuxSandboxSecurityContext.namespace_options",
    "LinuxSandboxSecurityContext.privileged",
    "LinuxSandboxSecurityContext.run_as_group",
    "LinuxSandboxSecurityContext.run_as_user",
    "LinuxSandboxSecurityContext.seccomp",
    "LinuxSandboxSecurityContext.seccomp_profile_path",
    "LinuxSandboxSecurityContext.supplemental_groups",
    "Mount.container_path",
    "Mount.gidMappings",
    "Mount.host_path",
    "Mount.image",
    "Mount.image_sub_path",
    "Mount.mount_options",
    "Mount.propagation",
    "Mount.readonly",
    "Mount.recursive_read_only",
    "Mount.uidMappings",
    "NamespaceOption.ipc",
    "NamespaceOption.network",
    "NamespaceOption.pid",
    "NamespaceOption.target_id",
    "NamespaceOption.userns_options",
    "PodSandboxConfig.annotations",
    "PodSandboxConfig.hostname",
    "PodSandboxConfig.labels",
    "PodSandboxConfig.linux",
    "PodSandboxConfig.log_directory",
    "PodSandboxConfig.metadata",
    "PodSandboxMetadata.name",
    "PodSandboxMetadata.namespace",
    "PodSandboxMetadata.uid",
    "SELinuxOption.level",
    "SELinuxOption.role",
    "SELinuxOption.type",
    "SELinuxOption.user",
    "SecurityProfile.localhost_ref",
    "SecurityProfile.profile_type",
    "UserNamespace.gids",
    "UserNamespace.mode",
    "UserNamespace.uids",
];

/// Fields of CRI that do not affect a spec, with the module that handles them.
pub(crate) const CRI_ELSEWHERE: &[(&str, &str)] = &[
    ("ContainerConfig.image", "pod: the image store resolves it"),
    (
        "ContainerConfig.labels",
        "pod: the record, and the NRI message",
    ),
    ("ContainerConfig.stdin", "pod: the monitor's launch"),
    ("ContainerConfig.stdin_once", "pod: the monitor's launch"),
    ("ContainerMetadata.attempt", "pod: the reserved name"),
    ("DNSConfig.options", "pod: resolv.conf"),
    ("DNSConfig.searches", "pod: resolv.conf"),
    ("DNSConfig.servers", "pod: resolv.conf"),
    ("ImageSpec.annotations", "pod: the record, for status"),
    ("ImageSpec.image", "pod: the image store resolves it"),
    ("ImageSpec.image_ref", "pod: status"),
    ("ImageSpec.runtime_handler", "pod: the record, for status"),
    (
        "ImageSpec.user_specified_image",
        "pod: the record, for status",
    ),
    ("PodSandboxConfig.dns_config", "pod: resolv.conf"),
    ("PodSandboxConfig.port_mappings", "pod: the network"),
    ("PodSandboxMetadata.attempt", "pod: the reserved name"),
    ("PortMapping.container_port", "pod: the network"),
    ("PortMapping.host_ip", "pod: the network"),
    ("PortMapping.host_port", "pod: the network"),
    ("PortMapping.protocol", "pod: the network"),
    (
        "LinuxSandboxSecurityContext.readonly_rootfs",
        "the pause root is always read-only",
    ),
    (
        "LinuxSandboxSecurityContext.supplemental_groups_policy",
        "the pause root has no /etc/group: the listed groups are all there are",
    ),
];

/// Fields of CRI that are rejected if they would have an effect.
pub(crate) const CRI_REFUSED: &[&str] = &[
    "ContainerConfig.windows",
    "LinuxContainerSecurityContext.selinux_options",
    "LinuxSandboxSecurityContext.selinux_options",
    "Mount.selinux_relabel",
    "PodSandboxConfig.windows",
];

/// Messages that are rejected completely.
pub(crate) const CRI_OPAQUE: &[&str] = &["WindowsContainerConfig", "WindowsPodSandboxConfig"];

const NRI_HANDLED: &[&str] = &[
    "CDIDevice.name",
    "ContainerAdjustment.CDI_devices",
    "ContainerAdjustment.annotations",
    "ContainerAdjustment.args",
    "ContainerAdjustment.env",
    "ContainerAdjustment.hooks",
    "ContainerAdjustment.linux",
    "ContainerAdjustment.mounts",
    "ContainerAdjustment.rlimits",
    "Hook.args",
    "Hook.env",
    "Hook.path",
    "Hook.timeout",
    "Hooks.create_container",
    "Hooks.create_runtime",
    "Hooks.poststart",
    "Hooks.poststop",
    "Hooks.prestart",
    "Hooks.start_container",
    "HugepageLimit.limit",
    "HugepageLimit.page_size",
    "KeyValue.key",
    "KeyValue.value",
    "LinuxCPU.cpus",
    "LinuxCPU.mems",
    "LinuxCPU.period",
    "LinuxCPU.quota",
    "LinuxCPU.realtime_period",
    "LinuxCPU.realtime_runtime",
    "LinuxCPU.shares",
    "LinuxContainerAdjustment.cgroups_path",
    "LinuxContainerAdjustment.devices",
    "LinuxContainerAdjustment.io_priority",
    "LinuxContainerAdjustment.memory_policy",
    "LinuxContainerAdjustment.namespaces",
    "LinuxContainerAdjustment.net_devices",
    "LinuxContainerAdjustment.oom_score_adj",
    "LinuxContainerAdjustment.rdt",
    "LinuxContainerAdjustment.resources",
    "LinuxContainerAdjustment.scheduler",
    "LinuxContainerAdjustment.seccomp_policy",
    "LinuxContainerAdjustment.sysctl",
    "LinuxDevice.file_mode",
    "LinuxDevice.gid",
    "LinuxDevice.major",
    "LinuxDevice.minor",
    "LinuxDevice.path",
    "LinuxDevice.type",
    "LinuxDevice.uid",
    "LinuxDeviceCgroup.access",
    "LinuxDeviceCgroup.allow",
    "LinuxDeviceCgroup.major",
    "LinuxDeviceCgroup.minor",
    "LinuxDeviceCgroup.type",
    "LinuxIOPriority.class",
    "LinuxIOPriority.priority",
    "LinuxMemory.disable_oom_killer",
    "LinuxMemory.kernel",
    "LinuxMemory.kernel_tcp",
    "LinuxMemory.limit",
    "LinuxMemory.reservation",
    "LinuxMemory.swap",
    "LinuxMemory.swappiness",
    "LinuxMemory.use_hierarchy",
    "LinuxMemoryPolicy.flags",
    "LinuxMemoryPolicy.mode",
    "LinuxMemoryPolicy.nodes",
    "LinuxNamespace.path",
    "LinuxNamespace.type",
    "LinuxNetDevice.name",
    "LinuxPids.limit",
    "LinuxRdt.clos_id",
    "LinuxRdt.enable_monitoring",
    "LinuxRdt.remove",
    "LinuxRdt.schemata",
    "LinuxResources.blockio_class",
    "LinuxResources.cpu",
    "LinuxResources.devices",
    "LinuxResources.hugepage_limits",
    "LinuxResources.memory",
    "LinuxResources.pids",
    "LinuxResources.rdt_class",
    "LinuxResources.unified",
    "LinuxScheduler.deadline",
    "LinuxScheduler.flags",
    "LinuxScheduler.nice",
    "LinuxScheduler.period",
    "LinuxScheduler.policy",
    "LinuxScheduler.priority",
    "LinuxScheduler.runtime",
    "LinuxSeccomp.architectures",
    "LinuxSeccomp.default_action",
    "LinuxSeccomp.default_errno",
    "LinuxSeccomp.flags",
    "LinuxSeccomp.syscalls",
    "LinuxSeccompArg.index",
    "LinuxSeccompArg.op",
    "LinuxSeccompArg.value",
    "LinuxSeccompArg.value_two",
    "LinuxSyscall.action",
    "LinuxSyscall.args",
    "LinuxSyscall.errno_ret",
    "LinuxSyscall.names",
    "Mount.destination",
    "Mount.options",
    "Mount.source",
    "Mount.type",
    "OptionalBool.value",
    "OptionalFileMode.value",
    "OptionalInt.value",
    "OptionalInt64.value",
    "OptionalRepeatedString.value",
    "OptionalString.value",
    "OptionalUInt32.value",
    "OptionalUInt64.value",
    "POSIXRlimit.hard",
    "POSIXRlimit.soft",
    "POSIXRlimit.type",
];

const NRI_REFUSED: &[&str] = &[
    "LinuxSeccomp.listener_metadata",
    "LinuxSeccomp.listener_path",
];

#[test]
fn no_field_of_a_pod_or_container_configuration_is_dropped_in_silence() {
    let elsewhere: Vec<&str> = CRI_ELSEWHERE.iter().map(|(field, _)| *field).collect();
    check(
        "cri/api.proto",
        &["PodSandboxConfig", "ContainerConfig"],
        CRI_OPAQUE,
        &[CRI_HANDLED, &elsewhere, CRI_REFUSED],
    );
}

#[test]
fn no_field_of_an_adjustment_is_dropped_in_silence() {
    check(
        "nri/nri.proto",
        &["ContainerAdjustment"],
        &[],
        &[NRI_HANDLED, NRI_REFUSED],
    );
}

/// Every field below the roots is in exactly one list, and every entry of a list is a field.
pub(crate) fn check(file: &str, roots: &[&str], opaque: &[&str], lists: &[&[&str]]) {
    let found = fields(file, roots, opaque);
    let mut listed = BTreeSet::new();
    for field in lists.iter().flat_map(|list| list.iter()) {
        assert!(
            listed.insert((*field).to_owned()),
            "{field} stands in two lists"
        );
    }
    let undecided: Vec<_> = found.difference(&listed).collect();
    assert!(
        undecided.is_empty(),
        "neither handled nor refused: {undecided:#?}"
    );
    let stale: Vec<_> = listed.difference(&found).collect();
    assert!(stale.is_empty(), "no such fields any more: {stale:#?}");
}

pub(crate) fn fields(file: &str, roots: &[&str], opaque: &[&str]) -> BTreeSet<String> {
    let set = proto_gen::descriptors(file).expect("it compiles");
    let messages: BTreeMap<&str, &DescriptorProto> = set
        .file
        .iter()
        .flat_map(|file| &file.message_type)
        .map(|m| (m.name(), m))
        .collect();
    let mut found = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut queue: Vec<String> = roots.iter().map(|root| (*root).to_owned()).collect();
    while let Some(name) = queue.pop() {
        if opaque.contains(&name.as_str()) || !seen.insert(name.clone()) {
            continue;
        }
        let message = messages.get(name.as_str()).expect("a message of the file");
        for field in &message.field {
            found.insert(format!("{name}.{}", field.name()));
            if field.r#type() != Type::Message {
                continue;
            }
            let target = field.type_name().rsplit('.').next().unwrap_or_default();
            let entry = message.nested_type.iter().find(|n| n.name() == target);
            match entry {
                // A map: its values may be messages.
                Some(entry) => queue.extend(
                    entry
                        .field
                        .iter()
                        .filter(|f| f.r#type() == Type::Message)
                        .filter_map(|f| f.type_name().rsplit('.').next().map(str::to_owned)),
                ),
                None => queue.push(target.to_owned()),
            }
        }
    }
    found
}

//! The spec of the pause process, which exists only if a pod shares its PID namespace (CRI-201).
//!
//! Every container of the pod sees this process, so it must have fewer rights than each of them. It
//! has no capabilities; its mounts are removed once it has started (`pod/pause.rs`); its program
//! adds a seccomp filter (`monitor/src/pause.rs`).

use std::path::Path;

use oci_spec::runtime::{Linux, LinuxCpu, LinuxNamespaceType, LinuxResources, Spec};
use proto_cri::v1::LinuxSandboxSecurityContext;

use super::{
    annotations, apparmor,
    base::{OCI_VERSION, empty_linux, empty_process, id_mappings, kernel_mount, namespace, root},
    cgroups_path, devices,
    error::SpecError,
    facts::{HostFacts, HostView, Policy, SandboxFacts},
    from_cri::oci_user,
    namespaces::joined,
    process::oom_score_adj,
    rlimits::rlimits,
    selinux,
    user::{self, UserRequest},
};

/// The score that keeps the pause process alive longer than any container.
const PAUSE_OOM_SCORE_ADJ: i64 = -998;

pub struct PauseInputs<'a> {
    pub sandbox: &'a SandboxFacts,
    /// The pod's security context, if any.
    pub context: Option<&'a LinuxSandboxSecurityContext>,
    pub host: &'a HostFacts,
    pub view: &'a dyn HostView,
    pub policy: &'a Policy,
    /// The built-in root; `args` run in it.
    pub rootfs: &'a Path,
    pub args: &'a [String],
}

/// Read-only root, no capabilities, no new privileges, two CPU shares, its own leaf cgroup. The
/// pod's seccomp profile is for containers: the program's own filter is stricter.
pub fn pause_spec(inputs: &PauseInputs<'_>) -> Result<Spec, SpecError> {
    let (sandbox, host, policy) = (inputs.sandbox, inputs.host, inputs.policy);
    let none = LinuxSandboxSecurityContext::default();
    let context = inputs.context.unwrap_or(&none);
    let user = user::resolve(&UserRequest {
        run_as_user: context.run_as_user.as_ref().map(|v| v.value),
        run_as_group: context.run_as_group.as_ref().map(|v| v.value),
        supplemental_groups: &context.supplemental_groups,
        strict_groups: true,
        ..UserRequest::default()
    })?;

    let mut process = empty_process();
    process.set_terminal(Some(false));
    process.set_user(oci_user(&user));
    process.set_args(Some(inputs.args.to_vec()));
    process.set_env(Some(vec!["PATH=/".to_owned()]));
    process.set_cwd("/".into());
    process.set_rlimits(Some(rlimits(policy, u64::MAX)?).filter(|list| !list.is_empty()));
    process.set_no_new_privileges(Some(true));
    process.set_apparmor_profile(apparmor::profile(
        context.apparmor.as_ref(),
        "",
        context.privileged,
        host,
        inputs.view,
    )?);
    let labels = sandbox.selinux.as_ref();
    if selinux::confines_pause(context) {
        process.set_selinux_label(labels.map(|labels| labels.process.clone()));
    }
    process.set_oom_score_adj(Some(oom_score_adj(PAUSE_OOM_SCORE_ADJ, host)?));

    let mut linux = linux_section(sandbox, policy)?;
    linux.set_mount_label(labels.map(|labels| labels.file.clone()));

    let mut spec = Spec::default();
    spec.set_version(OCI_VERSION.to_owned());
    spec.set_hostname(None);
    spec.set_root(Some(root(inputs.rootfs, true)));
    spec.set_process(Some(process));
    let dev = ["nosuid", "strictatime", "mode=755", "size=64k"];
    spec.set_mounts(Some(vec![
        kernel_mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        kernel_mount("/dev", "tmpfs", &dev),
    ]));
    spec.set_annotations(Some(annotations::pause(sandbox, policy)));
    spec.set_linux(Some(linux));
    Ok(spec)
}

fn linux_section(sandbox: &SandboxFacts, policy: &Policy) -> Result<Linux, SpecError> {
    let mut cpu = LinuxCpu::default();
    cpu.set_shares(Some(2));
    let mut resources = LinuxResources::default();
    resources.set_cpu(Some(cpu));
    resources.set_devices(Some(devices::default_rules()));

    let mut namespaces = vec![
        namespace(LinuxNamespaceType::Mount, None),
        namespace(LinuxNamespaceType::Pid, None),
    ];
    namespaces.extend(joined(&sandbox.namespaces));
    let mut linux = empty_linux();
    linux.set_resources(Some(resources));
    linux.set_namespaces(Some(namespaces));
    linux.set_uid_mappings(sandbox.user_mapping.map(id_mappings));
    linux.set_gid_mappings(sandbox.user_mapping.map(id_mappings));
    let cgroup = cgroups_path::of_pod(sandbox, policy, &sandbox.id)?;
    linux.set_cgroups_path(Some(cgroup.into()));
    Ok(linux)
}

//! Builds a container's OCI spec from its CRI configuration.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use oci_spec::runtime::{Linux, Process, Spec, User};
use proto_cri::v1::{
    ContainerConfig, LinuxContainerConfig, LinuxContainerResources, LinuxContainerSecurityContext,
    NamespaceOption, SupplementalGroupsPolicy,
};

use super::{
    annotations, apparmor,
    base::{OCI_VERSION, clean_path, empty_linux, empty_process, id_mappings, root},
    capabilities::{self, CapSets},
    cdi, cdi_apply, cgroups_path, devices,
    error::SpecError,
    facts::{
        ApplyContext, HostFacts, HostView, IdMap, ImageFacts, Policy, SandboxFacts, SeccompKind,
    },
    masks::masks,
    mounts::{self, MountInputs},
    namespaces, process,
    resources::{resources_from_cri, resources_to_cri},
    rlimits::rlimits,
    seccomp, selinux,
    signal::{StopSignal, stop_signal},
    together,
    user::{self, ResolvedUser, UserRequest},
};

pub struct Inputs<'a> {
    pub id: &'a str,
    pub config: &'a ContainerConfig,
    pub sandbox: &'a SandboxFacts,
    pub host: &'a HostFacts,
    pub policy: &'a Policy,
    pub image: &'a ImageFacts,
    pub view: &'a dyn HostView,
    /// Mount point of the root.
    pub rootfs: &'a Path,
    /// Text of the image's `/etc/passwd` and `/etc/group`, read inside the container's root.
    pub passwd: Option<&'a str>,
    pub group: Option<&'a str>,
    /// Text of the localhost profile that [`seccomp_choice`] names.
    pub seccomp_profile: Option<&'a str>,
    /// The PID namespace of the target container, if it runs in this pod.
    pub target_pid_namespace: Option<&'a Path>,
    /// Prepared directories for [`image_volumes`], by container path. Their content has the image's
    /// owners; in a pod with a user namespace the mount is mapped.
    pub volumes: &'a BTreeMap<String, PathBuf>,
    /// Prepared trees of image mounts, by container path as configured.
    pub image_mounts: &'a BTreeMap<String, PathBuf>,
}

/// A container's spec, and the values that status, hooks and the monitor need.
#[derive(Clone)]
pub struct ContainerSpec {
    pub spec: Spec,
    /// Absolute; `None` means that output is drained and dropped (CRI-130).
    pub log_path: Option<PathBuf>,
    pub stop_signal: StopSignal,
    pub user: ResolvedUser,
    pub seccomp: SeccompKind,
    pub privileged: bool,
    /// Host trees that get the container's SELinux label before it starts.
    pub relabel: Vec<PathBuf>,
    /// For ContainerStatus, as in the spec.
    pub resources: LinuxContainerResources,
    /// For the log: leniently parsed values.
    pub warnings: Vec<String>,
}

impl std::fmt::Debug for ContainerSpec {
    /// Omits the spec: its environment must not reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContainerSpec")
            .field("log_path", &self.log_path)
            .field("stop_signal", &self.stop_signal)
            .field("user", &self.user)
            .field("seccomp", &self.seccomp)
            .field("privileged", &self.privileged)
            .field("resources", &self.resources)
            .field("warnings", &self.warnings)
            .finish_non_exhaustive()
    }
}

/// Builds the spec. Pure: the same inputs give the same spec.
pub fn container_spec(inputs: &Inputs<'_>) -> Result<ContainerSpec, SpecError> {
    if inputs.config.windows.is_some() {
        return Err(SpecError::unsupported("windows", "this is a Linux runtime"));
    }
    let none = (
        LinuxContainerConfig::default(),
        LinuxContainerSecurityContext::default(),
    );
    let linux = inputs.config.linux.as_ref().unwrap_or(&none.0);
    let context = linux.security_context.as_ref().unwrap_or(&none.1);
    if context.privileged && !inputs.sandbox.privileged {
        return Err(SpecError::invalid(
            "linux.security_context.privileged",
            "the pod is not privileged",
        ));
    }
    let labels = selinux::container(
        context.selinux_options.as_ref(),
        inputs.sandbox.selinux.as_ref(),
        inputs.host,
        inputs.view,
    )?;
    let (stop_signal, warning) = stop_signal(inputs.config.stop_signal, &inputs.image.stop_signal);
    let user = resolve_user(context, inputs)?;
    check_mapped(&user, inputs.sandbox.user_mapping)?;
    let capabilities = capabilities::sets(
        context.capabilities.as_ref(),
        context.privileged,
        inputs.host.capabilities,
    )?;
    let seccomp = seccomp_choice(inputs.config, inputs.policy)?;
    let mounts = mounts::build(&MountInputs {
        mounts: &inputs.config.mounts,
        sandbox: inputs.sandbox,
        host: inputs.host,
        view: inputs.view,
        labelled: labels.is_some(),
        privileged: context.privileged,
        readonly_rootfs: context.readonly_rootfs,
        volumes: inputs.volumes,
        image_mounts: inputs.image_mounts,
    })?;

    let mut oci_linux = linux_section(inputs, linux, context, &user)?;
    oci_linux.set_seccomp(seccomp::filter(
        &seccomp,
        inputs.seccomp_profile,
        capabilities.granted,
        inputs.host,
    )?);
    oci_linux.set_rootfs_propagation(mounts.rootfs_propagation.map(str::to_owned));
    oci_linux.set_mount_label(labels.as_ref().map(|labels| labels.file.clone()));

    let mut spec = Spec::default();
    spec.set_version(OCI_VERSION.to_owned());
    spec.set_hostname(None);
    spec.set_root(Some(root(inputs.rootfs, context.readonly_rootfs)));
    let mut process = process_section(inputs, linux, context, &user, capabilities)?;
    if selinux::confines(context, inputs.sandbox)? {
        process.set_selinux_label(labels.map(|labels| labels.process));
    }
    spec.set_process(Some(process));
    spec.set_mounts(Some(mounts.list));
    spec.set_annotations(Some(annotations::container(
        inputs.sandbox,
        inputs.config,
        inputs.image,
        inputs.policy,
    )));
    spec.set_linux(Some(oci_linux));
    let cdi_devices = cdi::cdi_names(inputs.config)?;
    cdi_apply::inject(&mut spec, &cdi_devices, inputs.host, inputs.view)?;
    devices::check_nodes(&spec)?;
    together::check(&spec)?;
    Ok(ContainerSpec {
        resources: resources_to_cri(&spec),
        spec,
        log_path: log_path(&inputs.sandbox.log_directory, &inputs.config.log_path)?,
        stop_signal,
        user,
        seccomp,
        privileged: context.privileged,
        relabel: mounts.relabel,
        warnings: warning.into_iter().collect(),
    })
}

/// The seccomp profile of a container; the caller reads the file of a localhost one.
#[expect(
    deprecated,
    reason = "kubelets and crictl files still send the old string"
)]
pub fn seccomp_choice(config: &ContainerConfig, policy: &Policy) -> Result<SeccompKind, SpecError> {
    let context = config
        .linux
        .as_ref()
        .and_then(|l| l.security_context.as_ref());
    seccomp::choose(
        context.and_then(|c| c.seccomp.as_ref()),
        context.map_or("", |c| &c.seccomp_profile_path),
        context.is_some_and(|c| c.privileged),
        &policy.seccomp_when_absent,
    )
}

/// The image's volumes that no mount of the container covers, cleaned and sorted (CRI-129). The
/// caller prepares a directory for each.
pub fn image_volumes(config: &ContainerConfig, image: &ImageFacts) -> Vec<String> {
    let covered = |path: &String| {
        config
            .mounts
            .iter()
            .any(|m| clean_path(&m.container_path) == *path)
    };
    let mut paths: Vec<String> = image
        .volumes
        .iter()
        .map(|path| clean_path(path))
        .filter(|path| path != "/" && !covered(path))
        .collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// The path of the log, if both parts are given (CRI-130).
pub fn log_path(directory: &str, file: &str) -> Result<Option<PathBuf>, SpecError> {
    if directory.is_empty() || file.is_empty() {
        return Ok(None);
    }
    if !directory.starts_with('/') {
        return Err(SpecError::invalid(
            "sandbox_config.log_directory",
            format!("{directory:?} must be absolute"),
        ));
    }
    if file.split('/').any(|part| part == "..") {
        return Err(SpecError::invalid(
            "log_path",
            format!("{file:?} leaves the log directory"),
        ));
    }
    Ok(Some(
        Path::new(directory).join(file.trim_start_matches('/')),
    ))
}

fn resolve_user(
    context: &LinuxContainerSecurityContext,
    inputs: &Inputs<'_>,
) -> Result<ResolvedUser, SpecError> {
    let groups =
        SupplementalGroupsPolicy::try_from(context.supplemental_groups_policy).map_err(|_| {
            SpecError::invalid(
                "linux.security_context.supplemental_groups_policy",
                format!("{} is unknown", context.supplemental_groups_policy),
            )
        })?;
    user::resolve(&UserRequest {
        run_as_user: context.run_as_user.as_ref().map(|v| v.value),
        run_as_group: context.run_as_group.as_ref().map(|v| v.value),
        run_as_username: &context.run_as_username,
        supplemental_groups: &context.supplemental_groups,
        strict_groups: groups == SupplementalGroupsPolicy::Strict,
        image_user: &inputs.image.user,
        passwd: inputs.passwd,
        group: inputs.group,
    })
}

/// Refuses ids that the pod's user namespace does not map: no process can have them.
fn check_mapped(user: &ResolvedUser, mapping: Option<IdMap>) -> Result<(), SpecError> {
    let Some(IdMap { length, .. }) = mapping else {
        return Ok(());
    };
    let groups = user.supplemental_groups.iter();
    let groups = groups.map(|gid| ("group", *gid));
    let mut ids = [("user", user.uid), ("group", user.gid)]
        .into_iter()
        .chain(groups);
    match ids.find(|(_, id)| *id >= length) {
        None => Ok(()),
        Some((kind, id)) => Err(SpecError::invalid(
            "linux.security_context",
            format!("{kind} {id} is not among the {length} ids of the pod's user namespace"),
        )),
    }
}

#[expect(
    deprecated,
    reason = "kubelets and crictl files still send the old string"
)]
fn process_section(
    inputs: &Inputs<'_>,
    linux: &LinuxContainerConfig,
    context: &LinuxContainerSecurityContext,
    user: &ResolvedUser,
    capabilities: CapSets,
) -> Result<Process, SpecError> {
    let config = inputs.config;
    let score = linux.resources.as_ref().map_or(0, |r| r.oom_score_adj);
    let mut process = empty_process();
    process.set_terminal(Some(config.tty));
    process.set_user(oci_user(user));
    process.set_args(Some(process::args(config, inputs.image)?));
    process.set_env(Some(process::env(
        config,
        inputs.image,
        &inputs.sandbox.hostname,
        user,
    )?));
    process.set_cwd(process::cwd(config, inputs.image)?.into());
    process.set_capabilities(Some(capabilities.to_oci()));
    let limits = rlimits(inputs.policy, inputs.view.max_open_files())?;
    process.set_rlimits(Some(limits).filter(|list| !list.is_empty()));
    // libcontainer rejects `false` beside seccomp, so that the key is omitted.
    process.set_no_new_privileges(context.no_new_privs.then_some(true));
    process.set_apparmor_profile(apparmor::profile(
        context.apparmor.as_ref(),
        &context.apparmor_profile,
        context.privileged,
        inputs.host,
        inputs.view,
    )?);
    // Always set: the daemon's own score must not be inherited.
    process.set_oom_score_adj(Some(process::oom_score_adj(score, inputs.host)?));
    Ok(process)
}

/// The user section; on Linux it does not include the login name.
pub(super) fn oci_user(user: &ResolvedUser) -> User {
    let mut oci = User::default();
    oci.set_uid(user.uid);
    oci.set_gid(user.gid);
    oci.set_additional_gids(Some(user.supplemental_groups.clone()));
    oci
}

fn linux_section(
    inputs: &Inputs<'_>,
    linux: &LinuxContainerConfig,
    context: &LinuxContainerSecurityContext,
    user: &ResolvedUser,
) -> Result<Linux, SpecError> {
    let (sandbox, host, policy) = (inputs.sandbox, inputs.host, inputs.policy);
    let no_options = NamespaceOption::default();
    let options = context.namespace_options.as_ref().unwrap_or(&no_options);
    let no_resources = LinuxContainerResources::default();
    let asked = linux.resources.as_ref().unwrap_or(&no_resources);
    let all_devices = context.privileged && !policy.privileged_without_host_devices;
    let devices = devices::build(
        &inputs.config.devices,
        all_devices,
        if all_devices { &host.devices } else { &[] },
        policy
            .device_ownership_from_user
            .then_some((user.uid, user.gid)),
        inputs.view,
    )?;
    let mut resources = resources_from_cri(
        asked,
        &ApplyContext {
            host,
            policy,
            view: inputs.view,
        },
    )?;
    resources.set_devices(Some(devices.rules));

    let mut section = empty_linux();
    section.set_resources(Some(resources));
    section.set_devices(Some(devices.nodes).filter(|list| !list.is_empty()));
    let cgroup = cgroups_path::of_pod(sandbox, policy, inputs.id)?;
    section.set_cgroups_path(Some(cgroup.into()));
    section.set_namespaces(Some(namespaces::build(
        options,
        sandbox,
        host,
        context.privileged,
        inputs.target_pid_namespace,
    )?));
    section.set_uid_mappings(sandbox.user_mapping.map(id_mappings));
    section.set_gid_mappings(sandbox.user_mapping.map(id_mappings));
    let masks = masks(context, policy)?;
    section.set_masked_paths(masks.masked);
    section.set_readonly_paths(masks.read_only);
    Ok(section)
}

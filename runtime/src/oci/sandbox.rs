//! Checks a sandbox configuration before anything is created (CRI-200, CRI-205 to CRI-207).

use std::collections::BTreeMap;

use proto_cri::v1::{
    LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption, PodSandboxConfig,
};

use super::{
    error::SpecError,
    facts::{HostFacts, IdMap, Policy},
    namespaces::{mode, user_mapping},
    seccomp, selinux,
};

/// PID namespaces of the containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidSharing {
    /// One namespace for the pod, which needs a pause process.
    Pod,
    /// Each container has its own.
    Container,
    Host,
}

/// The checked request of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxPlan {
    pub host_network: bool,
    pub host_ipc: bool,
    pub pid: PidSharing,
    /// With a user namespace, which owns the others.
    pub user_mapping: Option<IdMap>,
    /// For the pod's UTS namespace; `None` with host network, or if unset.
    pub hostname: Option<String>,
    /// Written in the pod's namespaces before any container starts, defaults included.
    pub sysctls: BTreeMap<String, String>,
    pub privileged: bool,
    pub namespace_options: NamespaceOption,
}

/// The longest hostname that the kernel accepts.
const MAX_HOSTNAME: usize = 64;

/// Checks the Linux part of a sandbox configuration.
#[expect(
    deprecated,
    reason = "kubelets and crictl files still send the old string"
)]
pub fn plan(
    config: &PodSandboxConfig,
    host: &HostFacts,
    policy: &Policy,
) -> Result<SandboxPlan, SpecError> {
    if config.windows.is_some() {
        return Err(SpecError::unsupported("windows", "this is a Linux runtime"));
    }
    let none = LinuxSandboxSecurityContext::default();
    let linux = config.linux.as_ref();
    let context = linux
        .and_then(|l| l.security_context.as_ref())
        .unwrap_or(&none);
    let options = context.namespace_options.clone().unwrap_or_default();
    let host_network = pod_or_node(options.network, "network")?;
    let host_ipc = pod_or_node(options.ipc, "ipc")?;
    let pid = match mode(options.pid, "pid")? {
        NamespaceMode::Pod => PidSharing::Pod,
        NamespaceMode::Container => PidSharing::Container,
        NamespaceMode::Node => PidSharing::Host,
        NamespaceMode::Target => return Err(not_for_pods("pid", NamespaceMode::Target)),
    };
    let user_mapping = user_mapping(&options)?;
    if user_mapping.is_some() && (host_ipc || pid == PidSharing::Host) {
        return Err(SpecError::invalid(
            "linux.security_context.namespace_options.userns_options",
            "a user namespace cannot be combined with the host's PID or IPC namespace",
        ));
    }
    if let (Some(_), Some(why)) = (&user_mapping, &host.no_user_namespaces) {
        return Err(SpecError::unsupported(
            "linux.security_context.namespace_options.userns_options",
            format!("user namespaces for pods are not available on this host: {why}"),
        ));
    }
    if context.run_as_group.is_some() && context.run_as_user.is_none() {
        return Err(SpecError::invalid(
            "linux.security_context.run_as_group",
            "needs run_as_user",
        ));
    }
    if let Some(options) = &context.selinux_options {
        selinux::check(options)?;
    }
    // Only checked: containers have their own profiles, the pause process a stricter filter.
    seccomp::choose(
        context.seccomp.as_ref(),
        &context.seccomp_profile_path,
        context.privileged,
        &policy.seccomp_when_absent,
    )?;
    let asked = linux.map(|l| &l.sysctls);
    Ok(SandboxPlan {
        hostname: hostname(&config.hostname, host_network)?,
        sysctls: sysctls(asked, host_network, host_ipc, user_mapping.is_some())?,
        privileged: context.privileged,
        namespace_options: options,
        host_network,
        host_ipc,
        pid,
        user_mapping,
    })
}

fn pod_or_node(value: i32, field: &str) -> Result<bool, SpecError> {
    match mode(value, field)? {
        NamespaceMode::Pod => Ok(false),
        NamespaceMode::Node => Ok(true),
        other => Err(not_for_pods(field, other)),
    }
}

fn not_for_pods(field: &str, mode: NamespaceMode) -> SpecError {
    SpecError::invalid(
        format!("linux.security_context.namespace_options.{field}"),
        format!("{} is not supported for a pod", mode.as_str_name()),
    )
}

fn hostname(name: &str, host_network: bool) -> Result<Option<String>, SpecError> {
    if name.len() > MAX_HOSTNAME {
        return Err(SpecError::invalid(
            "hostname",
            format!("{name:?} is longer than {MAX_HOSTNAME} bytes"),
        ));
    }
    if name.contains(['\0', '\n', '/']) {
        return Err(SpecError::invalid(
            "hostname",
            format!("invalid hostname {name:?}"),
        ));
    }
    Ok(Some(name.to_owned()).filter(|n| !host_network && !n.is_empty()))
}

/// The sysctls of a pod and the defaults (CRI-206, CRI-207), only of namespaces that it owns.
fn sysctls(
    asked: Option<&BTreeMap<String, String>>,
    host_network: bool,
    host_ipc: bool,
    user_namespace: bool,
) -> Result<BTreeMap<String, String>, SpecError> {
    let mut all = BTreeMap::new();
    if !host_network {
        all.insert(
            "net.ipv4.ip_unprivileged_port_start".to_owned(),
            "0".to_owned(),
        );
        if !user_namespace {
            all.insert(
                "net.ipv4.ping_group_range".to_owned(),
                "0 2147483647".to_owned(),
            );
        }
    }
    for (name, value) in asked.into_iter().flatten() {
        check_sysctl(name, value, host_network, host_ipc)
            .map_err(|cause| SpecError::invalid(format!("linux.sysctls[{name:?}]"), cause))?;
        all.insert(name.clone(), value.clone());
    }
    Ok(all)
}

/// Checks that a sysctl is namespaced, and that the pod owns its namespace. The last two: that one
/// is the host's or, by a plugin, of an unknown owner.
pub(super) fn check_sysctl(
    name: &str,
    value: &str,
    foreign_network: bool,
    foreign_ipc: bool,
) -> Result<(), &'static str> {
    let word = |part: &str| {
        !part.is_empty()
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
    };
    if !name.split('.').all(word) {
        return Err("must be a name with dots");
    }
    if value.contains(['\0', '\n']) || value.len() > 4096 {
        return Err("has an invalid value");
    }
    let of_ipc = name == "kernel.sem"
        || name.starts_with("kernel.shm")
        || name.starts_with("kernel.msg")
        || name.starts_with("fs.mqueue.");
    match (of_ipc, name.starts_with("net.")) {
        (true, _) if foreign_ipc => Err("cannot be set in an IPC namespace that is not the pod's"),
        (_, true) if foreign_network => Err("cannot be set in a network that is not the pod's"),
        (false, false) => Err("is not namespaced"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proto_cri::v1::{IdMapping, LinuxPodSandboxConfig, UserNamespace, WindowsPodSandboxConfig};

    use super::*;

    fn config(options: NamespaceOption, sysctls: &[(&str, &str)]) -> PodSandboxConfig {
        PodSandboxConfig {
            hostname: "web".to_owned(),
            linux: Some(LinuxPodSandboxConfig {
                security_context: Some(LinuxSandboxSecurityContext {
                    namespace_options: Some(options),
                    ..LinuxSandboxSecurityContext::default()
                }),
                sysctls: sysctls
                    .iter()
                    .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                    .collect(),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        }
    }

    fn plan_of(config: &PodSandboxConfig) -> Result<SandboxPlan, SpecError> {
        plan(config, &HostFacts::default(), &Policy::default())
    }

    fn options(network: NamespaceMode, pid: NamespaceMode, ipc: NamespaceMode) -> NamespaceOption {
        NamespaceOption {
            network: network as i32,
            pid: pid as i32,
            ipc: ipc as i32,
            ..NamespaceOption::default()
        }
    }

    #[test]
    fn absent_options_mean_that_the_pod_shares_everything() {
        let plan = plan_of(&PodSandboxConfig::default()).expect("valid");
        assert_eq!((plan.host_network, plan.host_ipc), (false, false));
        assert_eq!(plan.pid, PidSharing::Pod);
        assert_eq!(plan.sysctls.len(), 2);
    }

    #[test]
    fn modes_that_make_no_sense_for_a_pod_are_refused() {
        use NamespaceMode::{Container, Node, Pod, Target};
        for bad in [
            options(Container, Pod, Pod),
            options(Target, Pod, Pod),
            options(Pod, Target, Pod),
            options(Pod, Pod, Container),
            options(Pod, Pod, Target),
        ] {
            assert!(plan_of(&config(bad, &[])).is_err());
        }
        let host = plan_of(&config(options(Node, Node, Node), &[])).expect("valid");
        assert_eq!(
            (host.host_network, host.host_ipc, host.pid),
            (true, true, PidSharing::Host)
        );
        assert_eq!(host.hostname, None);
        assert!(host.sysctls.is_empty());
    }

    #[test]
    fn a_user_namespace_needs_idmapped_mounts_and_namespaces_of_its_own() {
        use NamespaceMode::{Container, Node, Pod};
        let map = IdMapping {
            host_id: 65536,
            container_id: 0,
            length: 65536,
        };
        let with_user = |mut options: NamespaceOption| {
            options.userns_options = Some(UserNamespace {
                mode: Pod as i32,
                uids: vec![map],
                gids: vec![map],
            });
            config(options, &[])
        };
        let host = HostFacts::default();
        let plan_on =
            |host: &HostFacts, options| plan(&with_user(options), host, &Policy::default());
        let good = plan_on(&host, options(Pod, Container, Pod)).expect("valid");
        assert_eq!(good.user_mapping.map(|m| m.host_id), Some(65536));
        assert_eq!(good.sysctls.len(), 1, "ping_group_range has no ids there");
        assert!(plan_on(&host, options(Pod, Node, Pod)).is_err());
        assert!(plan_on(&host, options(Pod, Container, Node)).is_err());
        let lacking = HostFacts {
            no_user_namespaces: Some("overlayfs takes no shifted layer".to_owned()),
            ..HostFacts::default()
        };
        let refused = plan_on(&lacking, options(Pod, Container, Pod)).expect_err("cannot be had");
        assert!(
            refused.to_string().contains("no shifted layer"),
            "{refused}"
        );
    }

    #[test]
    fn only_namespaced_sysctls_of_namespaces_the_pod_owns_are_taken() {
        use NamespaceMode::{Container, Node, Pod};
        let own = options(Pod, Container, Pod);
        for good in [
            "kernel.shmmax",
            "kernel.msgmax",
            "kernel.sem",
            "fs.mqueue.msg_max",
            "net.ipv4.ip_forward",
        ] {
            let plan = plan_of(&config(own.clone(), &[(good, "1")])).expect(good);
            assert_eq!(plan.sysctls.get(good).map(String::as_str), Some("1"));
        }
        for bad in [
            "kernel.hostname",
            "vm.swappiness",
            "net/ipv4/x",
            "net..x",
            "net.ipv4.../x",
            "",
        ] {
            assert!(
                plan_of(&config(own.clone(), &[(bad, "1")])).is_err(),
                "{bad}"
            );
        }
        let host_net = options(Node, Container, Pod);
        assert!(plan_of(&config(host_net, &[("net.ipv4.ip_forward", "1")])).is_err());
        let host_ipc = options(Pod, Container, Node);
        assert!(plan_of(&config(host_ipc, &[("kernel.shmmax", "1")])).is_err());
    }

    #[test]
    fn a_sysctl_of_the_pod_replaces_a_default() {
        let asked = [("net.ipv4.ip_unprivileged_port_start", "1024")];
        let plan = plan_of(&config(NamespaceOption::default(), &asked)).expect("valid");
        assert_eq!(plan.sysctls["net.ipv4.ip_unprivileged_port_start"], "1024");
    }

    #[test]
    fn a_hostname_must_fit_the_kernel() {
        let mut config = config(NamespaceOption::default(), &[]);
        assert_eq!(
            plan_of(&config).expect("valid").hostname.as_deref(),
            Some("web")
        );
        config.hostname = "a".repeat(65);
        assert!(plan_of(&config).is_err());
        config.hostname = "a\nb".to_owned();
        assert!(plan_of(&config).is_err());
    }

    #[test]
    fn a_windows_pod_is_refused() {
        let config = PodSandboxConfig {
            windows: Some(WindowsPodSandboxConfig::default()),
            ..PodSandboxConfig::default()
        };
        assert!(
            plan_of(&config)
                .expect_err("refused")
                .to_string()
                .contains("windows")
        );
    }
}

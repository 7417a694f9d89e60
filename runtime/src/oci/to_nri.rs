//! Pods and containers as complete NRI messages.

use std::collections::BTreeMap;

use oci_spec::runtime::{
    Hook, Hooks, Linux, LinuxDevice, LinuxIntelRdt, LinuxNamespaceType, LinuxSchedulerFlag,
    LinuxSeccomp, Mount, Process, Scheduler, Spec,
};
use proto_nri as nri;

use super::{
    cgroups_path,
    facts::{ImageFacts, Policy, SandboxFacts, SeccompKind},
    nri_resources::{cri_to_nri, resources_to_nri},
};

/// The current pod. `pause`: the spec of the pause process, if any.
pub fn nri_pod(sandbox: &SandboxFacts, pause: Option<&Spec>, policy: &Policy) -> nri::PodSandbox {
    let mut annotations = sandbox.annotations.clone();
    annotations.extend(super::annotations::pause(sandbox, policy));
    nri::PodSandbox {
        id: sandbox.id.clone(),
        name: sandbox.metadata.name.clone(),
        uid: sandbox.metadata.uid.clone(),
        namespace: sandbox.metadata.namespace.clone(),
        labels: sandbox.labels.clone(),
        annotations,
        runtime_handler: sandbox.runtime_handler.clone(),
        linux: Some(nri::LinuxPodSandbox {
            pod_overhead: sandbox.overhead.as_ref().map(cri_to_nri),
            pod_resources: sandbox.resources.as_ref().map(cri_to_nri),
            cgroup_parent: sandbox.cgroup_parent.clone(),
            cgroups_path: pod_cgroups_path(sandbox, policy),
            namespaces: pod_namespaces(sandbox),
            resources: pause.and_then(super::limits::current).map(resources_to_nri),
        }),
        pid: sandbox.pause_pid,
        ips: sandbox.ips.clone(),
    }
}

/// Cgroup of the pause process, existing or not; empty for an invalid parent.
fn pod_cgroups_path(sandbox: &SandboxFacts, policy: &Policy) -> String {
    cgroups_path::of_pod(sandbox, policy, &sandbox.id).unwrap_or_default()
}

/// The pod's own namespaces, by their pinned paths; the host's are not listed.
fn pod_namespaces(sandbox: &SandboxFacts) -> Vec<nri::LinuxNamespace> {
    [
        ("pid", &sandbox.namespaces.pid),
        ("ipc", &sandbox.namespaces.ipc),
        ("uts", &sandbox.namespaces.uts),
        ("network", &sandbox.namespaces.net),
        ("user", &sandbox.namespaces.user),
    ]
    .into_iter()
    .filter_map(|(kind, path)| {
        Some(nri::LinuxNamespace {
            r#type: kind.to_owned(),
            path: text(path.as_ref()?),
        })
    })
    .collect()
}

/// Facts about a container that are not in its spec.
#[derive(Clone, Debug, Default)]
pub struct NriContainerFacts<'a> {
    pub id: &'a str,
    pub sandbox_id: &'a str,
    pub name: &'a str,
    pub state: nri::ContainerState,
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// Of CRI. Those of the spec override them, so that ours and the plugins' cannot be forged.
    pub annotations: Option<&'a BTreeMap<String, String>>,
    /// 0 without a process.
    pub pid: u32,
    /// Nanoseconds since the Unix epoch; 0 if it has not happened (NRI-732).
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    pub reason: &'a str,
    pub message: &'a str,
    /// Qualified names from the CRI field and from annotations.
    pub cdi_devices: &'a [String],
    pub image: Option<&'a ImageFacts>,
    pub seccomp: Option<&'a SeccompKind>,
}

/// The current container, from its spec and these facts.
pub fn nri_container(facts: &NriContainerFacts<'_>, spec: &Spec) -> nri::Container {
    let mut annotations = facts.annotations.cloned().unwrap_or_default();
    annotations.extend(spec.annotations().clone().into_iter().flatten());
    let process = spec.process().as_ref();
    nri::Container {
        id: facts.id.to_owned(),
        pod_sandbox_id: facts.sandbox_id.to_owned(),
        name: facts.name.to_owned(),
        state: facts.state as i32,
        labels: facts.labels.cloned().unwrap_or_default(),
        annotations,
        args: process.and_then(|p| p.args().clone()).unwrap_or_default(),
        env: process.and_then(|p| p.env().clone()).unwrap_or_default(),
        mounts: spec.mounts().iter().flatten().map(mount).collect(),
        hooks: spec.hooks().as_ref().map(hooks),
        linux: spec
            .linux()
            .as_ref()
            .map(|l| linux(l, process, facts.seccomp)),
        pid: facts.pid,
        rlimits: process.map(rlimits).unwrap_or_default(),
        created_at: facts.created_at,
        started_at: facts.started_at,
        finished_at: facts.finished_at,
        exit_code: facts.exit_code,
        status_reason: facts.reason.to_owned(),
        status_message: facts.message.to_owned(),
        cdi_devices: facts
            .cdi_devices
            .iter()
            .map(|name| nri::CdiDevice { name: name.clone() })
            .collect(),
        user: process.map(|p| nri::User {
            uid: p.user().uid(),
            gid: p.user().gid(),
            additional_gids: p.user().additional_gids().clone().unwrap_or_default(),
        }),
        image: facts.image.map(|image| nri::Image {
            name: image.name.clone(),
            digest: image.digest.clone(),
            config_digest: image.config_digest.clone(),
        }),
    }
}

fn text(path: &std::path::Path) -> String {
    path.to_string_lossy().into_owned()
}

fn words<T: ToString>(list: &Option<Vec<T>>) -> Vec<String> {
    list.iter().flatten().map(ToString::to_string).collect()
}

fn mount(mount: &Mount) -> nri::Mount {
    nri::Mount {
        destination: text(mount.destination()),
        r#type: mount.typ().clone().unwrap_or_default(),
        source: mount.source().as_deref().map(text).unwrap_or_default(),
        options: mount.options().clone().unwrap_or_default(),
    }
}

fn hooks(hooks: &Hooks) -> nri::Hooks {
    let list = |kind: &Option<Vec<Hook>>| kind.iter().flatten().map(hook).collect();
    nri::Hooks {
        prestart: list(hooks.prestart()),
        create_runtime: list(hooks.create_runtime()),
        create_container: list(hooks.create_container()),
        start_container: list(hooks.start_container()),
        poststart: list(hooks.poststart()),
        poststop: list(hooks.poststop()),
    }
}

fn hook(hook: &Hook) -> nri::Hook {
    nri::Hook {
        path: text(hook.path()),
        args: hook.args().clone().unwrap_or_default(),
        env: hook.env().clone().unwrap_or_default(),
        timeout: hook.timeout().map(|value| nri::OptionalInt { value }),
    }
}

fn rlimits(process: &Process) -> Vec<nri::PosixRlimit> {
    let limits = process.rlimits().iter().flatten();
    limits
        .map(|limit| nri::PosixRlimit {
            r#type: limit.typ().to_string(),
            hard: limit.hard(),
            soft: limit.soft(),
        })
        .collect()
}

fn linux(
    linux: &Linux,
    process: Option<&Process>,
    profile: Option<&SeccompKind>,
) -> nri::LinuxContainer {
    nri::LinuxContainer {
        namespaces: linux
            .namespaces()
            .iter()
            .flatten()
            .map(|namespace| nri::LinuxNamespace {
                r#type: namespace_name(namespace.typ()).to_owned(),
                path: namespace.path().as_deref().map(text).unwrap_or_default(),
            })
            .collect(),
        devices: linux.devices().iter().flatten().map(device).collect(),
        resources: linux.resources().as_ref().map(resources_to_nri),
        oom_score_adj: process
            .and_then(Process::oom_score_adj)
            .map(|score| nri::OptionalInt {
                value: score.into(),
            }),
        cgroups_path: linux
            .cgroups_path()
            .as_deref()
            .map(text)
            .unwrap_or_default(),
        io_priority: process.and_then(io_priority),
        seccomp_profile: profile.map(seccomp_profile),
        seccomp_policy: linux.seccomp().as_ref().map(seccomp),
        sysctl: linux.sysctl().clone().into_iter().flatten().collect(),
        net_devices: linux
            .net_devices()
            .iter()
            .flatten()
            .map(|(host, device)| {
                let name = device.name().clone().unwrap_or_default();
                (host.clone(), nri::LinuxNetDevice { name })
            })
            .collect(),
        scheduler: process.and_then(|p| p.scheduler().as_ref()).map(scheduler),
        rdt: linux.intel_rdt().as_ref().map(rdt),
    }
}

/// The OCI name for a type of namespace.
fn namespace_name(kind: LinuxNamespaceType) -> &'static str {
    match kind {
        LinuxNamespaceType::Mount => "mount",
        LinuxNamespaceType::Cgroup => "cgroup",
        LinuxNamespaceType::Uts => "uts",
        LinuxNamespaceType::Ipc => "ipc",
        LinuxNamespaceType::User => "user",
        LinuxNamespaceType::Pid => "pid",
        LinuxNamespaceType::Network => "network",
        LinuxNamespaceType::Time => "time",
    }
}

fn device(device: &LinuxDevice) -> nri::LinuxDevice {
    let id = |value: Option<u32>| value.map(|value| nri::OptionalUInt32 { value });
    nri::LinuxDevice {
        path: text(device.path()),
        r#type: device.typ().as_str().to_owned(),
        major: device.major(),
        minor: device.minor(),
        file_mode: device
            .file_mode()
            .map(|value| nri::OptionalFileMode { value }),
        uid: id(device.uid()),
        gid: id(device.gid()),
    }
}

fn io_priority(process: &Process) -> Option<nri::LinuxIoPriority> {
    let priority = process.io_priority().as_ref()?;
    // Both sides use the same names.
    let class = nri::IoPrioClass::from_str_name(&priority.class().to_string());
    Some(nri::LinuxIoPriority {
        class: class.unwrap_or(nri::IoPrioClass::IoprioClassNone) as i32,
        // Checked to be 0..=7 where it is set.
        priority: i32::try_from(priority.priority()).unwrap_or_default(),
    })
}

fn scheduler(scheduler: &Scheduler) -> nri::LinuxScheduler {
    // Both sides use the same names.
    let policy = nri::LinuxSchedulerPolicy::from_str_name(&scheduler.policy().to_string());
    nri::LinuxScheduler {
        policy: policy.unwrap_or(nri::LinuxSchedulerPolicy::SchedNone) as i32,
        nice: scheduler.nice().unwrap_or_default(),
        priority: scheduler.priority().unwrap_or_default(),
        flags: scheduler
            .flags()
            .iter()
            .flatten()
            .map(|flag| scheduler_flag(*flag) as i32)
            .collect(),
        runtime: scheduler.runtime().unwrap_or_default(),
        deadline: scheduler.deadline().unwrap_or_default(),
        period: scheduler.period().unwrap_or_default(),
    }
}

fn scheduler_flag(flag: LinuxSchedulerFlag) -> nri::LinuxSchedulerFlag {
    use nri::LinuxSchedulerFlag as Nri;
    match flag {
        LinuxSchedulerFlag::SchedResetOnFork => Nri::SchedFlagResetOnFork,
        LinuxSchedulerFlag::SchedFlagReclaim => Nri::SchedFlagReclaim,
        LinuxSchedulerFlag::SchedFlagDLOverrun => Nri::SchedFlagDlOverrun,
        LinuxSchedulerFlag::SchedFlagKeepPolicy => Nri::SchedFlagKeepPolicy,
        LinuxSchedulerFlag::SchedFlagKeepParams => Nri::SchedFlagKeepParams,
        LinuxSchedulerFlag::SchedFlagUtilClampMin => Nri::SchedFlagUtilClampMin,
        LinuxSchedulerFlag::SchedFlagUtilClampMax => Nri::SchedFlagUtilClampMax,
    }
}

fn rdt(rdt: &LinuxIntelRdt) -> nri::LinuxRdt {
    nri::LinuxRdt {
        clos_id: rdt
            .clos_id()
            .clone()
            .map(|value| nri::OptionalString { value }),
        schemata: rdt
            .schemata()
            .clone()
            .map(|value| nri::OptionalRepeatedString { value }),
        enable_monitoring: (*rdt.enable_monitoring()).map(|value| nri::OptionalBool { value }),
        remove: false,
    }
}

fn seccomp_profile(kind: &SeccompKind) -> nri::SecurityProfile {
    use nri::security_profile::ProfileType;
    let (kind, reference) = match kind {
        SeccompKind::Unconfined => (ProfileType::Unconfined, ""),
        SeccompKind::RuntimeDefault => (ProfileType::RuntimeDefault, ""),
        SeccompKind::Localhost(path) => (ProfileType::Localhost, path.as_str()),
    };
    nri::SecurityProfile {
        profile_type: kind as i32,
        localhost_ref: reference.to_owned(),
    }
}

fn seccomp(policy: &LinuxSeccomp) -> nri::LinuxSeccomp {
    let number = |value: Option<u32>| value.map(|value| nri::OptionalUInt32 { value });
    nri::LinuxSeccomp {
        default_action: policy.default_action().to_string(),
        default_errno: number(policy.default_errno_ret()),
        architectures: words(policy.architectures()),
        flags: words(policy.flags()),
        listener_path: policy
            .listener_path()
            .as_deref()
            .map(text)
            .unwrap_or_default(),
        listener_metadata: policy.listener_metadata().clone().unwrap_or_default(),
        syscalls: policy
            .syscalls()
            .iter()
            .flatten()
            .map(|rule| nri::LinuxSyscall {
                names: rule.names().clone(),
                action: rule.action().to_string(),
                errno_ret: number(rule.errno_ret()),
                args: rule
                    .args()
                    .iter()
                    .flatten()
                    .map(|arg| nri::LinuxSeccompArg {
                        index: u32::try_from(arg.index()).unwrap_or(u32::MAX),
                        value: arg.value(),
                        value_two: arg.value_two().unwrap_or_default(),
                        op: arg.op().to_string(),
                    })
                    .collect(),
            })
            .collect(),
    }
}

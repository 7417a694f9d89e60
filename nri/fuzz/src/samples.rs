//! Sample objects: a pod, a container with a value of every kind, an answer that sets a value of
//! every kind, and the policies of a plugin.

use nri::{
    EventMask, PluginId,
    adjust::{Adjust, HookKind, SetResources, update},
    mask::FieldMask,
    policy::{OnTimeout, PluginPolicy},
    proto::*,
};

/// The container that is created, updated or stopped, and another one.
pub(super) const CONTAINER: &str = "ctr";
pub(super) const OTHER: &str = "other";
pub(super) const POD: &str = "pod";

pub(super) fn plugin(id: &str) -> PluginId {
    id.parse().expect("a plugin id")
}

pub(super) fn pod(id: &str) -> PodSandbox {
    PodSandbox {
        id: id.into(),
        name: "a-pod".into(),
        namespace: "default".into(),
        annotations: [("old".into(), "original".into())].into(),
        ..Default::default()
    }
}

pub(super) fn mount(destination: &str) -> Mount {
    Mount {
        destination: destination.into(),
        source: "/source".into(),
        r#type: "bind".into(),
        options: vec!["ro".into()],
    }
}

pub(super) fn device(path: &str) -> LinuxDevice {
    LinuxDevice {
        path: path.into(),
        r#type: "c".into(),
        major: 1,
        minor: 3,
        file_mode: Some(OptionalFileMode { value: 0o666 }),
        ..Default::default()
    }
}

/// The smallest container, for tests of calls rather than of their content.
pub(super) fn small_container(id: &str) -> Container {
    Container {
        id: id.into(),
        pod_sandbox_id: POD.into(),
        name: "main".into(),
        ..Default::default()
    }
}

fn namespace(kind: &str) -> LinuxNamespace {
    LinuxNamespace {
        r#type: kind.into(),
        path: String::new(),
    }
}

pub(super) fn container(id: &str) -> Container {
    Container {
        id: id.into(),
        pod_sandbox_id: POD.into(),
        name: "main".into(),
        annotations: [("old".into(), "original".into())].into(),
        args: vec!["sh".into(), "-c".into()],
        env: vec!["OLD=original".into(), "ODD".into()],
        mounts: vec![mount("/old"), mount("/odd//path/")],
        linux: Some(LinuxContainer {
            devices: vec![device("/dev/old")],
            namespaces: vec![namespace("network"), namespace("pid")],
            sysctl: [("old".into(), "original".into())].into(),
            net_devices: [("old".into(), LinuxNetDevice::default())].into(),
            resources: Some(resources()),
            rdt: Some(LinuxRdt {
                clos_id: Some(OptionalString {
                    value: "old".into(),
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The resources that the runtime sets itself.
pub(super) fn resources() -> LinuxResources {
    let mut resources = LinuxResources::default();
    resources
        .memory_limit(1 << 30)
        .cpu_shares(2)
        .cpuset_cpus("0-1")
        .pids_limit(10)
        .add_hugepage_limit("2MB", 1 << 21)
        .add_unified("memory.high", "max");
    resources
}

/// An adjustment with one entry of each kind, alternately added, removed and replaced.
pub(super) fn adjustment() -> ContainerAdjustment {
    let mut adjust = ContainerAdjustment::default();
    let hook = Hook {
        path: "/bin/hook".into(),
        ..Default::default()
    };
    adjust
        .add_annotation("b", "2")
        .remove_annotation("old")
        .set_annotation("a", "2")
        .add_mount(mount("/b"))
        .remove_mount("/old")
        .set_mount(mount("/a"))
        .add_env("B", "2")
        .remove_env("OLD")
        .set_env("A", "2")
        .set_args(["true"])
        .add_hook(HookKind::Poststop, hook)
        .add_device(device("/dev/b"))
        .remove_device("/dev/old")
        .set_device(device("/dev/a"))
        .add_cdi_device("vendor.example/device=b")
        .add_rlimit("RLIMIT_CORE", 2, 1);
    adjust
        .add_namespace("ipc", "/proc/1/ns/ipc")
        .remove_namespace("network")
        .add_sysctl("b", "2")
        .remove_sysctl("old")
        .set_sysctl("a", "2")
        .add_net_device("b", "eth2")
        .remove_net_device("old")
        .set_net_device("a", "eth1")
        .cgroups_path("/b")
        .oom_score_adj(5)
        .io_priority(LinuxIoPriority {
            class: IoPrioClass::IoprioClassBe as i32,
            priority: 4,
        })
        .seccomp_policy(LinuxSeccomp {
            default_action: "SCMP_ACT_ALLOW".into(),
            ..Default::default()
        })
        .scheduler(LinuxScheduler::default())
        .memory_policy(LinuxMemoryPolicy::default())
        .remove_rdt()
        .rdt_clos_id("b");
    adjust
        .memory_swap(5)
        .cpu_quota(5)
        .cpuset_mems("0")
        .add_hugepage_limit("1GB", 1 << 30)
        .blockio_class("b")
        .rdt_class("b")
        .add_unified("cpu.weight", "5");
    adjust
}

/// Addresses of a pod, each once.
pub(super) fn addresses() -> PodSandboxAdjustment {
    let ips = ["192.0.2.7", "2001:db8::7"].map(str::to_owned).into();
    let network = Some(PodSandboxNetwork { ips });
    PodSandboxAdjustment { network }
}

/// Updates of the other container and of a third.
pub(super) fn updates() -> Vec<ContainerUpdate> {
    let mut first = update(OTHER, false);
    first
        .cpu_shares(100)
        .memory_limit(1 << 20)
        .pids_limit(7)
        .add_hugepage_limit("2MB", 1 << 22)
        .add_unified("cpu.weight", "7");
    let mut second = update("third", true);
    second.cpuset_cpus("0").blockio_class("").rdt_class("gold");
    vec![first, second]
}

pub(super) fn evictions() -> Vec<ContainerEviction> {
    vec![ContainerEviction {
        container_id: OTHER.into(),
        reason: "it is in the way".into(),
    }]
}

pub(super) fn create_answer() -> CreateContainerResponse {
    CreateContainerResponse {
        adjust: Some(adjustment()),
        update: updates(),
        evict: evictions(),
    }
}

pub(super) fn update_answer() -> UpdateContainerResponse {
    let mut target = update(CONTAINER, false);
    target.cpu_shares(3).add_hugepage_limit("2MB", 4096);
    let mut update = vec![target];
    update.extend(updates());
    UpdateContainerResponse {
        update,
        evict: evictions(),
    }
}

/// The policy of the first plugin of an input: eight sets of fields, refused or dropped.
pub(super) fn policy(control: u8) -> PluginPolicy {
    let fields = [
        FieldMask::ALL,
        FieldMask::ALL - FieldMask::EVICT,
        FieldMask::RESOURCES,
        FieldMask::MEMORY | FieldMask::CPU | FieldMask::EVICT,
        FieldMask::of(Field::Annotations)
            | FieldMask::of(Field::Mounts)
            | FieldMask::of(Field::Env),
        FieldMask::of(Field::RdtClosId) | FieldMask::of(Field::Devices),
        FieldMask::ALL - FieldMask::RDT - FieldMask::of(Field::OciHooks),
        FieldMask::NONE,
    ];
    PluginPolicy {
        fields: fields[usize::from(control & 7)],
        ..PluginPolicy::default()
    }
}

/// The policy of the plugin on a fuzzed connection.
pub(super) fn connection_policy(control: u8) -> PluginPolicy {
    let on = |bit: u8| control & bit != 0;
    PluginPolicy {
        required: on(16),
        must_run: on(32),
        on_timeout: Some(if on(64) {
            OnTimeout::Skip
        } else {
            OnTimeout::Close
        }),
        breaker: Some(2),
        events: if on(128) {
            EventMask::ALL - EventMask::of(Event::PostStartContainer)
        } else {
            EventMask::ALL
        },
        ..policy(control)
    }
}

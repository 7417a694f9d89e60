//! Each field of an adjustment (NRI-700…724), as the author of a plugin would check it.

mod devices;
mod linux;
mod mounts;
mod process;
mod resources;
mod whole;
mod words;

use cairn::oci::{ApplyContext, SpecError, apply_adjustment};
use oci_spec::runtime::{Linux, Process, Spec};
use proto_nri as nri;

use crate::support::Fixture;

pub(crate) fn context(f: &Fixture) -> ApplyContext<'_> {
    ApplyContext {
        host: &f.host,
        policy: &f.policy,
        view: &f.view,
    }
}

/// One value of every kind that this host supports.
pub(crate) fn everything() -> nri::ContainerAdjustment {
    let hook = |path: &str| {
        vec![nri::Hook {
            path: path.to_owned(),
            args: vec!["x".to_owned()],
            env: vec!["A=1".to_owned()],
            timeout: Some(nri::OptionalInt { value: 5 }),
        }]
    };
    nri::ContainerAdjustment {
        annotations: [("plugin".to_owned(), "was here".to_owned())].into(),
        mounts: vec![nri::Mount {
            destination: "/plugin".to_owned(),
            r#type: "bind".to_owned(),
            source: "/shared/plugin".to_owned(),
            options: vec!["rbind".to_owned(), "rslave".to_owned()],
        }],
        env: vec![variable("PLUGIN", "1")],
        args: vec!["/bin/other".to_owned()],
        hooks: Some(nri::Hooks {
            prestart: hook("/h/prestart"),
            create_runtime: hook("/h/createRuntime"),
            create_container: hook("/h/createContainer"),
            start_container: hook("/h/startContainer"),
            poststart: hook("/h/poststart"),
            poststop: hook("/h/poststop"),
        }),
        linux: Some(every_linux()),
        rlimits: vec![rlimit("nofile", 10, 20)],
        cdi_devices: vec![],
    }
}

fn every_linux() -> nri::LinuxContainerAdjustment {
    nri::LinuxContainerAdjustment {
        devices: vec![device("/dev/plugin", "c", 10, 200)],
        resources: Some(every_resource()),
        cgroups_path: "/elsewhere/c1".to_owned(),
        oom_score_adj: Some(nri::OptionalInt { value: 300 }),
        io_priority: Some(nri::LinuxIoPriority {
            class: nri::IoPrioClass::IoprioClassBe as i32,
            priority: 3,
        }),
        seccomp_policy: Some(nri::LinuxSeccomp {
            default_action: "SCMP_ACT_ERRNO".to_owned(),
            default_errno: Some(nri::OptionalUInt32 { value: 13 }),
            architectures: vec!["SCMP_ARCH_X86_64".to_owned()],
            flags: vec!["SECCOMP_FILTER_FLAG_LOG".to_owned()],
            syscalls: vec![nri::LinuxSyscall {
                names: vec!["read".to_owned()],
                action: "SCMP_ACT_ALLOW".to_owned(),
                errno_ret: None,
                args: vec![nri::LinuxSeccompArg {
                    index: 1,
                    value: 2,
                    value_two: 3,
                    op: "SCMP_CMP_MASKED_EQ".to_owned(),
                }],
            }],
            ..nri::LinuxSeccomp::default()
        }),
        namespaces: vec![nri::LinuxNamespace {
            r#type: "time".to_owned(),
            path: "/ns/time".to_owned(),
        }],
        sysctl: [("net.ipv4.ip_forward".to_owned(), "1".to_owned())].into(),
        net_devices: [(
            "eth7".to_owned(),
            nri::LinuxNetDevice {
                name: "fast0".to_owned(),
            },
        )]
        .into(),
        scheduler: Some(nri::LinuxScheduler {
            policy: nri::LinuxSchedulerPolicy::SchedFifo as i32,
            priority: 10,
            flags: vec![nri::LinuxSchedulerFlag::SchedFlagResetOnFork as i32],
            ..nri::LinuxScheduler::default()
        }),
        rdt: Some(nri::LinuxRdt {
            clos_id: Some(string("gold")),
            schemata: Some(nri::OptionalRepeatedString {
                value: vec!["L3:0=f".to_owned()],
            }),
            enable_monitoring: Some(nri::OptionalBool { value: true }),
            remove: false,
        }),
        memory_policy: Some(nri::LinuxMemoryPolicy {
            mode: nri::MpolMode::MpolInterleave as i32,
            nodes: "0-1".to_owned(),
            flags: vec![nri::MpolFlag::MpolFStaticNodes as i32],
        }),
    }
}

fn every_resource() -> nri::LinuxResources {
    let int = |value| Some(nri::OptionalInt64 { value });
    let uint = |value| Some(nri::OptionalUInt64 { value });
    nri::LinuxResources {
        memory: Some(nri::LinuxMemory {
            limit: int(1000 << 20),
            reservation: int(900 << 20),
            swap: int(2000 << 20),
            use_hierarchy: Some(nri::OptionalBool { value: true }),
            ..nri::LinuxMemory::default()
        }),
        cpu: Some(nri::LinuxCpu {
            shares: uint(100),
            quota: int(-1),
            period: uint(1000),
            cpus: "0".to_owned(),
            mems: "0".to_owned(),
            ..nri::LinuxCpu::default()
        }),
        hugepage_limits: vec![nri::HugepageLimit {
            page_size: "2MB".to_owned(),
            limit: 4,
        }],
        unified: [("memory.high".to_owned(), "5".to_owned())].into(),
        devices: vec![nri::LinuxDeviceCgroup {
            allow: false,
            r#type: "b".to_owned(),
            major: int(8),
            minor: None,
            access: "w".to_owned(),
        }],
        pids: Some(nri::LinuxPids { limit: 100 }),
        ..nri::LinuxResources::default()
    }
}

fn string(value: &str) -> nri::OptionalString {
    nri::OptionalString {
        value: value.to_owned(),
    }
}

fn variable(key: &str, value: &str) -> nri::KeyValue {
    nri::KeyValue {
        key: key.to_owned(),
        value: value.to_owned(),
    }
}

fn rlimit(kind: &str, soft: u64, hard: u64) -> nri::PosixRlimit {
    nri::PosixRlimit {
        r#type: kind.to_owned(),
        soft,
        hard,
    }
}

fn device(path: &str, kind: &str, major: i64, minor: i64) -> nri::LinuxDevice {
    nri::LinuxDevice {
        path: path.to_owned(),
        r#type: kind.to_owned(),
        major,
        minor,
        ..nri::LinuxDevice::default()
    }
}

fn of_linux(linux: nri::LinuxContainerAdjustment) -> nri::ContainerAdjustment {
    nri::ContainerAdjustment {
        linux: Some(linux),
        ..nri::ContainerAdjustment::default()
    }
}

fn of_resources(resources: nri::LinuxResources) -> nri::ContainerAdjustment {
    of_linux(nri::LinuxContainerAdjustment {
        resources: Some(resources),
        ..nri::LinuxContainerAdjustment::default()
    })
}

fn host() -> Fixture {
    let mut f = Fixture::default();
    f.host.resctrl = true;
    f
}

fn apply(f: &Fixture, adjust: &nri::ContainerAdjustment) -> Result<Spec, SpecError> {
    let mut spec = f.spec().spec;
    apply_adjustment(&mut spec, adjust, &context(f)).map(|()| spec)
}

fn applied(adjust: &nri::ContainerAdjustment) -> Spec {
    apply(&host(), adjust).expect("applied")
}

/// Returns the error; the spec must be unchanged.
fn refused(adjust: &nri::ContainerAdjustment) -> String {
    let f = host();
    let mut spec = f.spec().spec;
    let before = spec.clone();
    let error = apply_adjustment(&mut spec, adjust, &context(&f)).expect_err("refused");
    assert_eq!(spec, before, "a refused adjustment leaves nothing");
    error.to_string()
}

fn linux(spec: &Spec) -> &Linux {
    spec.linux().as_ref().expect("linux")
}

fn process(spec: &Spec) -> &Process {
    spec.process().as_ref().expect("process")
}

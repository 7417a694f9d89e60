//! Every field whose value is a constant, a flag, a name or a list of constants, with an unknown
//! value.

use proto_nri::{self as nri, LinuxSchedulerFlag as Flag};

use super::{device, every_linux, of_linux, of_resources, refused, rlimit, variable};

fn linux(change: impl FnOnce(&mut nri::LinuxContainerAdjustment)) -> nri::ContainerAdjustment {
    let mut linux = nri::LinuxContainerAdjustment::default();
    change(&mut linux);
    of_linux(linux)
}

fn adjust(change: impl FnOnce(&mut nri::ContainerAdjustment)) -> nri::ContainerAdjustment {
    let mut adjust = nri::ContainerAdjustment::default();
    change(&mut adjust);
    adjust
}

fn mount(kind: &str, source: &str, option: &str) -> nri::ContainerAdjustment {
    adjust(|a| {
        a.mounts = vec![nri::Mount {
            destination: "/x".to_owned(),
            r#type: kind.to_owned(),
            source: source.to_owned(),
            options: vec![option.to_owned()],
        }];
    })
}

fn hook(change: impl FnOnce(&mut nri::Hook)) -> nri::ContainerAdjustment {
    let mut hook = nri::Hook {
        path: "/h/program".to_owned(),
        ..nri::Hook::default()
    };
    change(&mut hook);
    adjust(|a| {
        a.hooks = Some(nri::Hooks {
            create_runtime: vec![hook],
            ..nri::Hooks::default()
        });
    })
}

fn seccomp(change: impl FnOnce(&mut nri::LinuxSeccomp)) -> nri::ContainerAdjustment {
    let mut policy = every_linux().seccomp_policy.expect("a policy");
    change(&mut policy);
    linux(|l| l.seccomp_policy = Some(policy))
}

fn scheduler(change: impl FnOnce(&mut nri::LinuxScheduler)) -> nri::ContainerAdjustment {
    let mut scheduler = nri::LinuxScheduler {
        policy: nri::LinuxSchedulerPolicy::SchedOther as i32,
        ..nri::LinuxScheduler::default()
    };
    change(&mut scheduler);
    linux(|l| l.scheduler = Some(scheduler))
}

fn memory(mode: i32, nodes: &str, flags: &[i32]) -> nri::ContainerAdjustment {
    linux(|l| {
        l.memory_policy = Some(nri::LinuxMemoryPolicy {
            mode,
            nodes: nodes.to_owned(),
            flags: flags.to_vec(),
        });
    })
}

fn rule(kind: &str, access: &str) -> nri::ContainerAdjustment {
    of_resources(nri::LinuxResources {
        devices: vec![nri::LinuxDeviceCgroup {
            allow: true,
            r#type: kind.to_owned(),
            access: access.to_owned(),
            ..nri::LinuxDeviceCgroup::default()
        }],
        ..nri::LinuxResources::default()
    })
}

fn limits(change: impl FnOnce(&mut nri::LinuxResources)) -> nri::ContainerAdjustment {
    linux(|l| change(l.resources.get_or_insert_default()))
}

fn cpus(cpus: &str, mems: &str) -> nri::ContainerAdjustment {
    of_resources(nri::LinuxResources {
        cpu: Some(nri::LinuxCpu {
            cpus: cpus.to_owned(),
            mems: mems.to_owned(),
            ..nri::LinuxCpu::default()
        }),
        ..nri::LinuxResources::default()
    })
}

fn bind_at(source: &str, destination: &str) -> nri::Mount {
    nri::Mount {
        destination: destination.to_owned(),
        r#type: "bind".to_owned(),
        source: source.to_owned(),
        options: vec!["bind".to_owned()],
    }
}

/// The field in the error, another required text of the error, and the adjustment.
#[rustfmt::skip]
fn table() -> Vec<(&'static str, &'static str, nri::ContainerAdjustment)> {
    let int = |value| Some(nri::OptionalInt { value });
    let text = |value: &str| Some(nri::OptionalString { value: value.to_owned() });
    let bind = nri::MpolMode::MpolBind as i32;
    let mut rows = vec![
        ("adjust.annotations[\"\"]", "without a name", adjust(|a| a.annotations = [(String::new(), "v".to_owned())].into())),
        ("adjust.env[\"A=B\"]", "invalid", adjust(|a| a.env = vec![variable("A=B", "x")])),
        ("adjust.args", "NUL", adjust(|a| a.args = vec!["a\0b".to_owned()])),
        ("adjust.mounts[\"/x\"]", "frobnicate", mount("bind", "/private/x", "frobnicate")),
        ("adjust.mounts[\"/x\"]", "tmpcopyup", mount("tmpfs", "tmpfs", "tmpcopyup")),
        ("adjust.mounts[\"/x\"]", "neither a type", mount("", "/private/x", "ro")),
        ("adjust.mounts[\"/x\"]", "/missing", mount("bind", "/missing", "ro")),
        ("adjust.hooks", "/nosuch", hook(|h| h.path = "/nosuch".to_owned())),
        ("adjust.hooks", "/private/dir", hook(|h| h.path = "/private/dir".to_owned())),
        ("adjust.hooks", "NUL", hook(|h| h.args = vec!["a\0b".to_owned()])),
        ("adjust.hooks", "NAME=value", hook(|h| h.env = vec!["NOVALUE".to_owned()])),
        ("adjust.hooks", "above zero", hook(|h| h.timeout = int(0))),
        ("adjust.rlimits[\"RLIMIT_NONSENSE\"]", "unknown", adjust(|a| a.rlimits = vec![rlimit("RLIMIT_NONSENSE", 1, 1)])),
        ("adjust.rlimits[\"nofile\"]", "above the hard", adjust(|a| a.rlimits = vec![rlimit("nofile", 2, 1)])),
        ("adjust.rlimits[\"nofile\"]", "fs.nr_open", adjust(|a| a.rlimits = vec![rlimit("nofile", 2, 1 << 40)])),
        ("adjust.mounts[\"/proc/sys\"]", "inside /proc", adjust(|a| a.mounts = vec![bind_at("/private/x", "/proc/sys")])),
        ("adjust.mounts[\"/proc\"]", "by a procfs", adjust(|a| a.mounts = vec![bind_at("/private/x", "/proc")])),
        ("adjust.cdi_devices", "no/such=one", adjust(|a| a.cdi_devices = vec![nri::CdiDevice { name: "no/such=one".to_owned() }])),
        ("adjust.linux.devices[\"/dev/x\"]", "\"z\"", linux(|l| l.devices = vec![device("/dev/x", "z", 1, 1)])),
        ("adjust.linux.devices[\"/dev/x\"]", "-1:1 is not", linux(|l| l.devices = vec![device("/dev/x", "c", -1, 1)])),
        ("adjust.linux.devices[\"/dev/x\"]", "4096:0 is not", linux(|l| l.devices = vec![device("/dev/x", "c", 4096, 0)])),
        ("adjust.linux.devices[\"/proc/x\"]", "/proc or /sys", linux(|l| l.devices = vec![device("/proc/x", "c", 1, 1)])),
        ("adjust.linux.cgroups_path", "absolute", linux(|l| l.cgroups_path = "elsewhere".to_owned())),
        ("adjust.linux.oom_score_adj", "1001", linux(|l| l.oom_score_adj = int(1001))),
        ("adjust.linux.io_priority", "class 9", linux(|l| l.io_priority = Some(nri::LinuxIoPriority { class: 9, priority: 0 }))),
        ("adjust.linux.io_priority", "8", linux(|l| l.io_priority = Some(nri::LinuxIoPriority { class: 2, priority: 8 }))),
        ("adjust.linux.scheduler", "policy 99", scheduler(|s| s.policy = 99)),
        ("adjust.linux.scheduler", "flag 99", scheduler(|s| s.flags = vec![99])),
        ("adjust.linux.scheduler", "nice", scheduler(|s| s.nice = 20)),
        ("adjust.linux.scheduler", "priority", scheduler(|s| s.priority = 1)),
        ("adjust.linux.scheduler", "utilization clamps", scheduler(|s| s.flags = vec![Flag::SchedFlagUtilClampMin as i32])),
        ("adjust.linux.scheduler", "SCHED_FLAG_RECLAIM", scheduler(|s| s.flags = vec![Flag::SchedFlagReclaim as i32])),
        ("adjust.linux.seccomp_policy", "SCMP_ACT_DANCE", seccomp(|p| p.default_action = "SCMP_ACT_DANCE".to_owned())),
        ("adjust.linux.seccomp_policy", "SCMP_ARCH_VAX", seccomp(|p| p.architectures = vec!["SCMP_ARCH_VAX".to_owned()])),
        ("adjust.linux.seccomp_policy", "SECCOMP_FILTER_FLAG_WAIT", seccomp(|p| p.flags = vec!["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV".to_owned()])),
        ("adjust.linux.seccomp_policy", "listener_path: ", seccomp(|p| p.listener_path = "/run/l.sock".to_owned())),
        ("adjust.linux.seccomp_policy", "listener_metadata: ", seccomp(|p| p.listener_metadata = "for it".to_owned())),
        ("adjust.linux.seccomp_policy", "SCMP_ACT_NOTIFY", seccomp(|p| p.syscalls[0].action = "SCMP_ACT_NOTIFY".to_owned())),
        ("adjust.linux.seccomp_policy", "FLAG_NONE", seccomp(|p| p.flags = vec!["FLAG_NONE".to_owned()])),
        ("adjust.linux.seccomp_policy", "SCMP_ACT_HUM", seccomp(|p| p.syscalls[0].action = "SCMP_ACT_HUM".to_owned())),
        ("adjust.linux.seccomp_policy", "SCMP_CMP_ISH", seccomp(|p| p.syscalls[0].args[0].op = "SCMP_CMP_ISH".to_owned())),
        ("adjust.linux.seccomp_policy", "six arguments", seccomp(|p| p.syscalls[0].args[0].index = 6)),
        ("adjust.linux.seccomp_policy", "without names", seccomp(|p| p.syscalls[0].names.clear())),
        ("adjust.linux.namespaces[\"dream\"]", "unknown", linux(|l| l.namespaces = vec![nri::LinuxNamespace { r#type: "dream".to_owned(), path: String::new() }])),
        ("adjust.linux.namespaces[\"ipc\"]", "absolute", linux(|l| l.namespaces = vec![nri::LinuxNamespace { r#type: "ipc".to_owned(), path: "ns".to_owned() }])),
        ("adjust.linux.namespaces[\"ipc\"]", "\"/missing\" is not a namespace", linux(|l| l.namespaces = vec![nri::LinuxNamespace { r#type: "ipc".to_owned(), path: "/missing".to_owned() }])),
        ("adjust.linux.namespaces[\"ipc\"]", "another type, net", linux(|l| l.namespaces = vec![nri::LinuxNamespace { r#type: "ipc".to_owned(), path: "/ns/net".to_owned() }])),
        ("adjust.linux.sysctl[\"vm.swappiness\"]", "", linux(|l| l.sysctl = [("vm.swappiness".to_owned(), "1".to_owned())].into())),
        ("adjust.linux.net_devices[\"eth7\"]", "a/b", linux(|l| l.net_devices = [("eth7".to_owned(), nri::LinuxNetDevice { name: "a/b".to_owned() })].into())),
        ("adjust.linux.net_devices[\"eth7\"]", "too-long-a-name-for-it", linux(|l| l.net_devices = [("eth7".to_owned(), nri::LinuxNetDevice { name: "too-long-a-name-for-it".to_owned() })].into())),
        ("adjust.linux.memory_policy", "mode 99", memory(99, "0", &[])),
        ("adjust.linux.memory_policy", "flag 99", memory(bind, "0", &[99])),
        ("adjust.linux.memory_policy", "nodes: invalid list \"x\"", memory(bind, "x", &[])),
        ("adjust.linux.memory_policy", "no memory node 2", memory(bind, "0-2", &[])),
        ("adjust.linux.rdt.clos_id", "a/b", linux(|l| l.rdt = Some(nri::LinuxRdt { clos_id: text("a/b"), ..nri::LinuxRdt::default() }))),
        ("adjust.linux.resources.devices", "\"z\"", rule("z", "r")),
        ("adjust.linux.resources.devices", "\"rx\"", rule("c", "rx")),
        ("adjust.linux.resources.devices", "\"p\"", rule("p", "r")),
    ];
    rows.extend([
        ("adjust.linux.resources", "one,two", cpus("one,two", "")),
        ("adjust.linux.resources", "1-", cpus("", "1-")),
        ("adjust.linux.resources.cpu.cpus", "no CPU 4", cpus("0,4", "")),
        ("adjust.linux.resources.cpu.quota", "999", limits(|r| r.cpu.get_or_insert_default().quota = Some(nri::OptionalInt64 { value: 999 }))),
        ("adjust.linux.resources.cpu.period", "1000001", limits(|r| r.cpu.get_or_insert_default().period = Some(nri::OptionalUInt64 { value: 1_000_001 }))),
        ("adjust.linux.resources.memory.limit", "4096", limits(|r| r.memory.get_or_insert_default().limit = Some(nri::OptionalInt64 { value: 4096 }))),
        ("adjust.linux.resources.unified[\"cgroup.procs\"]", "not a limit", limits(|r| r.unified = [("cgroup.procs".to_owned(), "1".to_owned())].into())),
        ("adjust.linux.resources.pids.limit", "below the 3", of_resources(nri::LinuxResources { pids: Some(nri::LinuxPids { limit: 2 }), ..nri::LinuxResources::default() })),
        ("adjust.linux.resources.cpu.mems", "no memory node 2", cpus("", "1-2")),
        ("adjust.linux.resources.hugepage_limits[\"2 potatoes\"]", "example: 2MB", of_resources(nri::LinuxResources {
            hugepage_limits: vec![nri::HugepageLimit { page_size: "2 potatoes".to_owned(), limit: 1 }],
            ..nri::LinuxResources::default()
        })),
        ("adjust.linux.resources.unified[\"../escape\"]", "invalid name", of_resources(nri::LinuxResources {
            unified: [("../escape".to_owned(), "1".to_owned())].into(),
            ..nri::LinuxResources::default()
        })),
        ("adjust.linux.resources.blockio_class", "nosuch", of_resources(nri::LinuxResources { blockio_class: text("nosuch"), ..nri::LinuxResources::default() })),
        ("adjust.linux.resources.rdt_class", "a/b", of_resources(nri::LinuxResources { rdt_class: text("a/b"), ..nri::LinuxResources::default() })),
    ]);
    rows
}

/// C-04.6: a silently dropped value would weaken a plugin's restriction.
#[test]
fn every_unknown_option_flag_and_constant_is_refused_by_the_name_of_its_field() {
    let mut taken = Vec::new();
    for (field, word, adjust) in table() {
        let text = refused(&adjust);
        if !text.starts_with(field) || !text.contains(word) {
            taken.push(format!("{field}, {word}: {text}"));
        }
    }
    assert!(taken.is_empty(), "not reported as expected: {taken:#?}");
}

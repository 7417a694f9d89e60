//! Each row of the table of NRI section 7, as a plugin author would check it.

use cairn::oci::{
    ApplyContext, BlockIoClasses, CdiResolver, CgroupDriver, CgroupMode, HostDevice, SpecError,
    apply_adjustment, apply_nri_update, devices::default_rules,
};
use oci_spec::runtime::{Linux, LinuxBlockIo, LinuxNamespaceType, Process, Spec};
use proto_nri as nri;

use crate::support::{Fixture, assert_golden};

pub fn context(f: &Fixture) -> ApplyContext<'_> {
    ApplyContext {
        host: &f.host,
        policy: &f.policy,
        view: &f.view,
        cdi: None,
        blockio: None,
    }
}

/// One value of every kind that this host can do.
pub fn everything() -> nri::ContainerAdjustment {
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
            limit: int(1000),
            reservation: int(900),
            swap: int(2000),
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

/// The text of the refusal; the spec must be as it was.
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

#[test]
fn no_adjustment_leaves_the_spec_untouched() {
    let f = host();
    assert_eq!(applied(&nri::ContainerAdjustment::default()), f.spec().spec);
    assert_eq!(
        applied(&of_linux(nri::LinuxContainerAdjustment::default())),
        f.spec().spec
    );
}

#[test]
fn one_value_of_every_kind() {
    assert_golden("nri_everything", &applied(&everything()));
}

#[test]
fn a_spec_is_the_same_after_it_was_on_disk() {
    let mut adjust = everything();
    let scheduler = adjust
        .linux
        .as_mut()
        .and_then(|l| l.scheduler.as_mut())
        .expect("set");
    // Of all policies this one takes the most; clamps are refused.
    *scheduler = nri::LinuxScheduler {
        policy: nri::LinuxSchedulerPolicy::SchedDeadline as i32,
        flags: (0..=4).collect(),
        runtime: 2000,
        deadline: 3000,
        period: 4000,
        ..nri::LinuxScheduler::default()
    };
    let spec = applied(&adjust);
    let text = serde_json::to_vec(&spec).expect("serialisable");
    assert_eq!(
        serde_json::from_slice::<Spec>(&text).expect("readable"),
        spec
    );
}

#[test]
fn annotations_are_removed_first_and_set_then() {
    let mut f = host();
    f.policy.annotation_prefixes = vec!["a/".to_owned()];
    f.config.annotations = [("a/x", "1"), ("a/y", "2")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
    let adjust = nri::ContainerAdjustment {
        annotations: [("-a/x", ""), ("a/x", "new"), ("-a/y", ""), ("z", "3")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
        ..Default::default()
    };
    let spec = apply(&f, &adjust).expect("applied");
    let found = spec.annotations().as_ref().expect("annotations");
    assert_eq!(found.get("a/x").map(String::as_str), Some("new"));
    assert!(!found.contains_key("a/y"));
    assert_eq!(found["z"], "3");
}

#[test]
fn variables_keep_their_places_when_changed_and_new_ones_follow() {
    let f = host();
    let mut spec = f.spec().spec;
    let old = ["A=1", "odd", "B=2", "A=again", "C=3"]
        .map(str::to_owned)
        .to_vec();
    if let Some(process) = spec.process_mut() {
        process.set_env(Some(old));
    }
    let adjust = nri::ContainerAdjustment {
        env: vec![
            variable("NEW", "n"),
            variable("-C", ""),
            variable("A", "x"),
            variable("", "ignored"),
            variable("-B", ""),
            variable("B", "y=z"),
        ],
        ..Default::default()
    };
    apply_adjustment(&mut spec, &adjust, &context(&f)).expect("applied");
    let env = process(&spec).env().clone().expect("env");
    assert_eq!(env, ["A=x", "odd", "B=y=z", "NEW=n"]);
}

#[test]
fn a_refusal_about_a_variable_hides_its_value() {
    for bad in [variable("TOKEN", "secret\0"), variable("TO=KEN", "secret")] {
        let text = refused(&nri::ContainerAdjustment {
            env: vec![bad],
            ..Default::default()
        });
        assert!(
            text.contains("adjust.env") && !text.contains("secret"),
            "{text}"
        );
    }
}

#[test]
fn arguments_are_replaced_as_a_whole_and_a_lone_marker_changes_nothing() {
    let args = |list: &[&str]| {
        let spec = applied(&nri::ContainerAdjustment {
            args: list.iter().map(|s| (*s).to_owned()).collect(),
            ..Default::default()
        });
        process(&spec).args().clone().expect("args")
    };
    assert_eq!(args(&["/new", "x"]), ["/new", "x"]);
    assert_eq!(args(&["", "/new"]), ["/new"]);
    assert_eq!(args(&[""]), ["/bin/serve"]);
    assert_eq!(args(&[]), ["/bin/serve"]);
}

#[test]
fn hooks_are_appended_per_kind_in_plugin_order() {
    let f = host();
    let mut spec = f.spec().spec;
    for name in ["/h/one", "/h/two"] {
        let adjust = nri::ContainerAdjustment {
            hooks: Some(nri::Hooks {
                create_runtime: vec![nri::Hook {
                    path: name.to_owned(),
                    ..nri::Hook::default()
                }],
                ..nri::Hooks::default()
            }),
            ..Default::default()
        };
        apply_adjustment(&mut spec, &adjust, &context(&f)).expect("applied");
    }
    let hooks = spec.hooks().clone().expect("hooks");
    let paths: Vec<_> = hooks
        .create_runtime()
        .iter()
        .flatten()
        .map(|h| h.path().clone())
        .collect();
    assert_eq!(paths, [std::path::PathBuf::from("/h/one"), "/h/two".into()]);
    for (path, timeout) in [("relative", 5), ("/h", 0), ("/h", -1)] {
        let text = refused(&nri::ContainerAdjustment {
            hooks: Some(nri::Hooks {
                poststop: vec![nri::Hook {
                    path: path.to_owned(),
                    timeout: Some(nri::OptionalInt { value: timeout }),
                    ..nri::Hook::default()
                }],
                ..nri::Hooks::default()
            }),
            ..Default::default()
        });
        assert!(text.contains("adjust.hooks"), "{text}");
    }
}

struct Names(std::cell::RefCell<Vec<Vec<String>>>);

impl CdiResolver for Names {
    fn inject(&self, names: &[String], spec: &mut Spec) -> Result<(), SpecError> {
        self.0.borrow_mut().push(names.to_vec());
        spec.set_domainname(Some("touched".to_owned()));
        Ok(())
    }
}

#[test]
fn cdi_devices_go_to_the_resolver_in_one_call_and_are_refused_without_one() {
    let adjust = nri::ContainerAdjustment {
        cdi_devices: ["v/c=1", "v/c=2"]
            .map(|name| nri::CdiDevice {
                name: name.to_owned(),
            })
            .to_vec(),
        ..Default::default()
    };
    let text = refused(&adjust);
    assert!(text.contains("v/c=1, v/c=2"), "{text}");
    let f = host();
    let names = Names(std::cell::RefCell::default());
    let mut spec = f.spec().spec;
    let context = ApplyContext {
        cdi: Some(&names),
        ..context(&f)
    };
    apply_adjustment(&mut spec, &adjust, &context).expect("applied");
    assert_eq!(names.0.take(), [["v/c=1".to_owned(), "v/c=2".to_owned()]]);
    assert_eq!(spec.domainname().as_deref(), Some("touched"));
}

#[test]
fn a_device_comes_with_its_rule_and_goes_with_it() {
    let mut f = host();
    f.view.devices = vec![HostDevice {
        path: "/dev/fuse".into(),
        kind: 'c',
        major: 10,
        minor: 229,
        mode: 0o666,
        uid: 0,
        gid: 0,
    }];
    f.config.devices = vec![proto_cri::v1::Device {
        container_path: "/dev/fuse".to_owned(),
        host_path: "/dev/fuse".to_owned(),
        permissions: "rw".to_owned(),
    }];
    let devices = |list: Vec<nri::LinuxDevice>| {
        let adjust = of_linux(nri::LinuxContainerAdjustment {
            devices: list,
            ..Default::default()
        });
        let spec = apply(&f, &adjust).expect("applied");
        let linux = linux(&spec).clone();
        let rules = linux
            .resources()
            .as_ref()
            .and_then(|r| r.devices().clone())
            .unwrap_or_default();
        let rules: Vec<String> = rules
            .iter()
            .skip(default_rules().len())
            .map(ToString::to_string)
            .collect();
        let nodes: Vec<String> = linux
            .devices()
            .iter()
            .flatten()
            .map(|d| d.path().display().to_string())
            .collect();
        (nodes, rules)
    };
    let strings = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        devices(vec![]),
        (strings(&["/dev/fuse"]), strings(&["c 10:229 rw"]))
    );
    assert_eq!(
        devices(vec![
            device("/dev/x", "b", 8, 1),
            device("/dev/p", "p", 0, 0)
        ]),
        (
            strings(&["/dev/fuse", "/dev/x", "/dev/p"]),
            strings(&["c 10:229 rw", "b 8:1 rwm"])
        )
    );
    assert_eq!(
        devices(vec![device("-/dev//fuse", "", 0, 0)]),
        (vec![], vec![])
    );
    assert_eq!(
        devices(vec![device("/dev/fuse", "c", 1, 2)]),
        (strings(&["/dev/fuse"]), strings(&["c 1:2 rwm"]))
    );
    for bad in [
        device("dev/x", "c", 1, 1),
        device("/dev/x", "z", 1, 1),
        device("/dev/x", "", 1, 1),
        device("/dev/x", "c", -1, 1),
    ] {
        let text = refused(&of_linux(nri::LinuxContainerAdjustment {
            devices: vec![bad],
            ..Default::default()
        }));
        assert!(text.contains("adjust.linux.devices"), "{text}");
    }
    let text = refused(&of_linux(nri::LinuxContainerAdjustment {
        devices: vec![device("/opt/x", "c", 1, 1)],
        ..Default::default()
    }));
    assert!(text.contains("device node /opt/x"), "{text}");
}

#[test]
fn in_a_user_namespace_a_node_keeps_the_hosts_mode_and_owner() {
    let mut f = host();
    f.sandbox.user_mapping = Some(cairn::oci::IdMap {
        host_id: 100_000,
        container_id: 0,
        length: 65_536,
    });
    f.sandbox.namespaces.user = Some("/ns/user".into());
    f.view.devices = vec![HostDevice {
        path: "/dev/fuse".into(),
        kind: 'c',
        major: 10,
        minor: 229,
        mode: 0o600,
        uid: 0,
        gid: 7,
    }];
    let with = |change: fn(&mut nri::LinuxDevice)| {
        let mut asked = device("/dev/fuse", "c", 10, 229);
        change(&mut asked);
        apply(
            &f,
            &of_linux(nri::LinuxContainerAdjustment {
                devices: vec![asked],
                ..Default::default()
            }),
        )
    };
    with(|_| ()).expect("as it is");
    with(|d| d.gid = Some(nri::OptionalUInt32 { value: 7 })).expect("as it is");
    let changes: [fn(&mut nri::LinuxDevice); 3] = [
        |d| d.file_mode = Some(nri::OptionalFileMode { value: 0o666 }),
        |d| d.uid = Some(nri::OptionalUInt32 { value: 1 }),
        |d| d.gid = Some(nri::OptionalUInt32 { value: 1 }),
    ];
    for change in changes {
        let text = with(change).expect_err("refused").to_string();
        assert!(text.contains("adjust.linux.devices"), "{text}");
    }
}

#[test]
fn the_cgroup_can_move_within_the_hierarchy() {
    let path = |path: &str| {
        of_linux(nri::LinuxContainerAdjustment {
            cgroups_path: path.to_owned(),
            ..Default::default()
        })
    };
    let mut systemd = host();
    systemd.policy.cgroup_driver = CgroupDriver::Systemd;
    systemd.sandbox.cgroup_parent = "/a.slice".to_owned();
    for (f, good, bad) in [
        (&host(), "/a/b", "x.slice:cairn:c1"),
        (&systemd, "x.slice:cairn:c1", "/a/b"),
    ] {
        let spec = apply(f, &path(good)).expect("applied");
        assert_eq!(linux(&spec).cgroups_path().as_deref(), Some(good.as_ref()));
        assert!(apply(f, &path(bad)).is_err(), "{bad}: of the other driver");
    }
    for bad in ["a/b", "/a/../..", "a:b", "a/../b:c:d"] {
        assert!(refused(&path(bad)).contains("cgroups_path"), "{bad}");
    }
}

#[test]
fn the_score_is_checked_against_the_kernels_range() {
    let score = |value| {
        of_linux(nri::LinuxContainerAdjustment {
            oom_score_adj: Some(nri::OptionalInt { value }),
            ..Default::default()
        })
    };
    assert_eq!(
        process(&applied(&score(-1000))).oom_score_adj(),
        Some(-1000)
    );
    assert_eq!(process(&applied(&score(0))).oom_score_adj(), Some(0));
    for bad in [1001, -1001, i64::MAX] {
        assert!(refused(&score(bad)).contains("adjust.linux.oom_score_adj"));
    }
}

#[test]
fn class_none_removes_the_io_priority_and_policy_none_the_scheduler() {
    let f = host();
    let mut spec = applied(&everything());
    assert!(process(&spec).io_priority().is_some() && process(&spec).scheduler().is_some());
    let adjust = of_linux(nri::LinuxContainerAdjustment {
        io_priority: Some(nri::LinuxIoPriority::default()),
        scheduler: Some(nri::LinuxScheduler::default()),
        ..Default::default()
    });
    apply_adjustment(&mut spec, &adjust, &context(&f)).expect("applied");
    assert!(process(&spec).io_priority().is_none() && process(&spec).scheduler().is_none());
}

#[test]
fn priorities_that_the_kernel_would_refuse_are_refused_by_name() {
    for (class, priority) in [(2, 8), (2, -1), (9, 0)] {
        let text = refused(&of_linux(nri::LinuxContainerAdjustment {
            io_priority: Some(nri::LinuxIoPriority { class, priority }),
            ..Default::default()
        }));
        assert!(text.contains("adjust.linux.io_priority"), "{text}");
    }
    let fifo = nri::LinuxSchedulerPolicy::SchedFifo as i32;
    let other = nri::LinuxSchedulerPolicy::SchedOther as i32;
    let none = nri::LinuxScheduler::default;
    for bad in [
        nri::LinuxScheduler {
            policy: 99,
            ..none()
        },
        nri::LinuxScheduler {
            policy: fifo,
            priority: 0,
            ..none()
        },
        nri::LinuxScheduler {
            policy: fifo,
            priority: 100,
            ..none()
        },
        nri::LinuxScheduler {
            policy: other,
            priority: 1,
            ..none()
        },
        nri::LinuxScheduler {
            policy: other,
            nice: 20,
            ..none()
        },
        nri::LinuxScheduler {
            policy: other,
            runtime: 1,
            ..none()
        },
        nri::LinuxScheduler {
            policy: other,
            flags: vec![77],
            ..none()
        },
        nri::LinuxScheduler {
            policy: other,
            flags: vec![nri::LinuxSchedulerFlag::SchedFlagUtilClampMax as i32],
            ..none()
        },
        nri::LinuxScheduler {
            policy: other,
            flags: vec![nri::LinuxSchedulerFlag::SchedFlagReclaim as i32],
            ..none()
        },
        nri::LinuxScheduler {
            policy: nri::LinuxSchedulerPolicy::SchedIso as i32,
            ..none()
        },
        nri::LinuxScheduler {
            policy: nri::LinuxSchedulerPolicy::SchedDeadline as i32,
            runtime: 5000,
            deadline: 4000,
            ..none()
        },
    ] {
        let text = refused(&of_linux(nri::LinuxContainerAdjustment {
            scheduler: Some(bad),
            ..Default::default()
        }));
        assert!(text.contains("adjust.linux.scheduler"), "{text}");
    }
}

#[test]
fn a_seccomp_policy_that_cannot_be_had_is_refused() {
    let good = every_linux().seccomp_policy.expect("a policy");
    let mut listener = good.clone();
    listener.listener_path = "/run/l.sock".to_owned();
    let mut notify = good.clone();
    notify.syscalls[0].action = "SCMP_ACT_NOTIFY".to_owned();
    let mut action = good.clone();
    action.default_action = "SCMP_ACT_DANCE".to_owned();
    let mut arch = good.clone();
    arch.architectures = vec!["SCMP_ARCH_VAX".to_owned()];
    let mut flag = good.clone();
    flag.flags = vec!["FLAG".to_owned()];
    let mut op = good.clone();
    op.syscalls[0].args[0].op = "SCMP_CMP_ISH".to_owned();
    let mut index = good;
    index.syscalls[0].args[0].index = 6;
    let mut metadata = every_linux().seccomp_policy.expect("a policy");
    metadata.listener_metadata = "for nobody".to_owned();
    let mut waits = every_linux().seccomp_policy.expect("a policy");
    waits.flags = vec!["SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV".to_owned()];
    for bad in [
        listener, notify, action, arch, flag, op, index, metadata, waits,
    ] {
        let text = refused(&of_linux(nri::LinuxContainerAdjustment {
            seccomp_policy: Some(bad),
            ..Default::default()
        }));
        assert!(text.contains("adjust.linux.seccomp_policy"), "{text}");
    }
}

fn namespaces(list: &[(&str, &str)]) -> nri::ContainerAdjustment {
    of_linux(nri::LinuxContainerAdjustment {
        namespaces: list
            .iter()
            .map(|(kind, path)| nri::LinuxNamespace {
                r#type: (*kind).to_owned(),
                path: (*path).to_owned(),
            })
            .collect(),
        ..Default::default()
    })
}

#[test]
fn namespaces_are_added_replaced_and_removed_by_type() {
    let spec = applied(&namespaces(&[
        ("network", "/other/net"),
        ("-ipc", ""),
        ("-time", ""),
    ]));
    let list = linux(&spec).namespaces().clone().expect("list");
    let path = |kind| {
        list.iter()
            .find(|n| n.typ() == kind)
            .map(|n| n.path().clone())
    };
    assert_eq!(
        path(LinuxNamespaceType::Network),
        Some(Some("/other/net".into()))
    );
    assert_eq!(path(LinuxNamespaceType::Ipc), None);
    for bad in [
        ("net work", ""),
        ("-mount", ""),
        ("mount", "/ns/m"),
        ("user", "/ns/u"),
        ("user", ""),
        ("-user", ""),
        ("pid", "relative"),
    ] {
        assert!(
            refused(&namespaces(&[bad])).contains("adjust.linux.namespaces"),
            "{bad:?}"
        );
    }
}

#[test]
fn sysctls_must_be_of_a_namespace_that_is_not_the_hosts() {
    let sysctl = |list: &[(&str, &str)]| {
        of_linux(nri::LinuxContainerAdjustment {
            sysctl: list
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            ..Default::default()
        })
    };
    let f = host();
    let mut spec = applied(&sysctl(&[
        ("kernel.shmmax", "1"),
        ("net.core.somaxconn", "2"),
    ]));
    let again = sysctl(&[
        ("-kernel.shmmax", ""),
        ("net.core.somaxconn", "3"),
        ("-net.core.somaxconn", ""),
    ]);
    apply_adjustment(&mut spec, &again, &context(&f)).expect("applied");
    let found = linux(&spec).sysctl().clone().expect("sysctl");
    assert_eq!(found.len(), 1);
    assert_eq!(found["net.core.somaxconn"], "3");
    assert!(refused(&sysctl(&[("vm.swappiness", "1")])).contains("vm.swappiness"));
    let mut adjust = sysctl(&[("net.core.somaxconn", "2")]);
    adjust.linux.as_mut().expect("linux").namespaces = namespaces(&[("-network", "")])
        .linux
        .expect("linux")
        .namespaces;
    assert!(refused(&adjust).contains("host's network"));
}

#[test]
fn net_devices_need_a_network_of_their_own_and_a_sane_name() {
    let net = |list: &[(&str, &str)]| {
        of_linux(nri::LinuxContainerAdjustment {
            net_devices: list
                .iter()
                .map(|(k, v)| {
                    (
                        (*k).to_owned(),
                        nri::LinuxNetDevice {
                            name: (*v).to_owned(),
                        },
                    )
                })
                .collect(),
            ..Default::default()
        })
    };
    let f = host();
    let mut spec = applied(&net(&[("eth5", ""), ("eth6", "x")]));
    apply_adjustment(&mut spec, &net(&[("-eth5", "")]), &context(&f)).expect("applied");
    let found = linux(&spec).net_devices().clone().expect("devices");
    assert_eq!(found.len(), 1);
    assert_eq!(found["eth6"].name().as_deref(), Some("x"));
    for bad in [
        ("a/b", "x"),
        ("eth0", "a name"),
        ("0123456789abcdef", "x"),
        ("eth0", ".."),
    ] {
        assert!(
            refused(&net(&[bad])).contains("adjust.linux.net_devices"),
            "{bad:?}"
        );
    }
    let mut host_network = host();
    host_network.sandbox.namespaces.net = None;
    assert!(apply(&host_network, &net(&[("eth5", "")])).is_err());
}

#[test]
fn the_default_memory_policy_is_kept_as_a_mode() {
    let policy = |mode, nodes: &str, flags: &[i32]| {
        of_linux(nri::LinuxContainerAdjustment {
            memory_policy: Some(nri::LinuxMemoryPolicy {
                mode,
                nodes: nodes.to_owned(),
                flags: flags.to_vec(),
            }),
            ..Default::default()
        })
    };
    let spec = applied(&policy(0, "", &[]));
    let found = linux(&spec).memory_policy().clone().expect("a policy");
    assert_eq!(found.mode().to_string(), "MPOL_DEFAULT");
    let mode = |mode: nri::MpolMode| mode as i32;
    let flag = |flag: nri::MpolFlag| flag as i32;
    for bad in [
        policy(99, "", &[]),
        policy(2, "all", &[]),
        policy(2, "0", &[9]),
        policy(mode(nri::MpolMode::MpolBind), "", &[]),
        policy(mode(nri::MpolMode::MpolDefault), "0", &[]),
        policy(
            mode(nri::MpolMode::MpolInterleave),
            "0",
            &[flag(nri::MpolFlag::MpolFNumaBalancing)],
        ),
        policy(
            mode(nri::MpolMode::MpolBind),
            "0",
            &[
                flag(nri::MpolFlag::MpolFStaticNodes),
                flag(nri::MpolFlag::MpolFRelativeNodes),
            ],
        ),
    ] {
        assert!(refused(&bad).contains("adjust.linux.memory_policy"));
    }
}

fn memory(limit: i64, swap: Option<i64>) -> nri::ContainerAdjustment {
    of_resources(nri::LinuxResources {
        memory: Some(nri::LinuxMemory {
            limit: Some(nri::OptionalInt64 { value: limit }),
            swap: swap.map(|value| nri::OptionalInt64 { value }),
            ..nri::LinuxMemory::default()
        }),
        ..nri::LinuxResources::default()
    })
}

#[test]
fn swap_is_the_plugins_value_or_else_the_limit() {
    let mut f = host();
    f.resources().memory_limit_in_bytes = 1000;
    f.resources().memory_swap_limit_in_bytes = 9000;
    let found = |adjust: &nri::ContainerAdjustment| {
        let spec = apply(&f, adjust).expect("applied");
        let memory = (*linux(&spec)
            .resources()
            .as_ref()
            .expect("resources")
            .memory())
        .expect("memory");
        (memory.limit(), memory.swap())
    };
    assert_eq!(found(&memory(500, None)), (Some(500), Some(500)));
    assert_eq!(found(&memory(500, Some(700))), (Some(500), Some(700)));
    assert_eq!(
        found(&memory(0, None)),
        (Some(1000), Some(9000)),
        "a limit of 0 is ignored"
    );
    assert_eq!(found(&memory(-1, None)), (Some(-1), Some(-1)));
    assert!(refused(&memory(500, Some(100))).contains("memory.swap"));
    assert!(refused(&memory(-2, None)).contains("memory.limit"));
}

#[test]
fn a_negative_limit_of_processes_removes_it() {
    let f = host();
    let pids = |limit| {
        of_resources(nri::LinuxResources {
            pids: Some(nri::LinuxPids { limit }),
            ..Default::default()
        })
    };
    let mut spec = applied(&pids(5));
    let found = |spec: &Spec| {
        linux(spec)
            .resources()
            .as_ref()
            .and_then(|r| *r.pids())
            .map(|p| p.limit())
    };
    assert_eq!(found(&spec), Some(5));
    apply_adjustment(&mut spec, &pids(-1), &context(&f)).expect("applied");
    assert_eq!(found(&spec), None);
}

#[test]
fn the_resource_check_refuses_what_the_host_lacks() {
    let mut f = host();
    let huge = of_resources(nri::LinuxResources {
        hugepage_limits: every_resource().hugepage_limits,
        ..Default::default()
    });
    let unified = of_resources(nri::LinuxResources {
        unified: every_resource().unified,
        ..Default::default()
    });
    f.host.hugetlb = false;
    f.host.cgroup = CgroupMode::Hybrid;
    let error = apply(&f, &huge).expect_err("a plugin means what it asks for");
    assert!(
        error
            .to_string()
            .contains("adjust.linux.resources.hugepage_limits")
    );
    assert!(
        apply(&f, &unified)
            .expect_err("refused")
            .to_string()
            .contains("cgroup v2")
    );
    for bad in [("x", "rwm"), ("c", "rwx"), ("c", "")] {
        let text = refused(&of_resources(nri::LinuxResources {
            devices: vec![nri::LinuxDeviceCgroup {
                r#type: bad.0.to_owned(),
                access: bad.1.to_owned(),
                ..Default::default()
            }],
            ..Default::default()
        }));
        assert!(text.contains("resources.devices"), "{text}");
    }
}

/// Changes limits.
type Change = fn(&mut nri::LinuxResources);

#[test]
fn limits_of_one_kind_of_host_are_refused_by_name_on_the_other() {
    let mut v1 = host();
    v1.host.cgroup = CgroupMode::V1;
    v1.host.realtime = true;
    let mut v2 = host();
    v2.host.swap = false;
    let rows: [(&str, Change); 6] = [
        ("memory.swap", |r| memory_of(r).swap = int(2000)),
        ("memory.kernel_tcp", |r| memory_of(r).kernel_tcp = int(700)),
        ("memory.swappiness", |r| {
            memory_of(r).swappiness = Some(nri::OptionalUInt64 { value: 0 });
        }),
        ("memory.disable_oom_killer", |r| {
            memory_of(r).disable_oom_killer = Some(nri::OptionalBool { value: true });
        }),
        ("cpu.realtime_runtime", |r| {
            r.cpu.get_or_insert_default().realtime_runtime = int(10);
        }),
        ("cpu.realtime_period", |r| {
            let period = Some(nri::OptionalUInt64 { value: 20 });
            r.cpu.get_or_insert_default().realtime_period = period;
        }),
    ];
    for (field, change) in rows {
        let mut asked = nri::LinuxResources::default();
        change(&mut asked);
        let spec = apply(&v1, &of_resources(asked.clone())).expect(field);
        let found = linux(&spec).resources().clone().expect("resources");
        let told = cairn::oci::resources_to_nri(&found);
        let has = |all: &nri::LinuxResources| (all.memory, all.cpu.clone());
        assert_eq!(has(&told), has(&asked), "{field}");
        let error = apply(&v2, &of_resources(asked)).expect_err(field);
        let field = format!("adjust.linux.resources.{field}:");
        assert!(error.to_string().starts_with(&field), "{error}");
    }
    let nowhere: [(&str, Change); 2] = [
        ("memory.kernel", |r| memory_of(r).kernel = int(800)),
        ("memory.use_hierarchy", |r| {
            memory_of(r).use_hierarchy = Some(nri::OptionalBool { value: false });
        }),
    ];
    for (field, change) in nowhere {
        for f in [&v1, &v2] {
            let mut asked = nri::LinuxResources::default();
            change(&mut asked);
            let error = apply(f, &of_resources(asked)).expect_err(field);
            assert!(error.to_string().contains(field), "{error}");
        }
    }
}

fn int(value: i64) -> Option<nri::OptionalInt64> {
    Some(nri::OptionalInt64 { value })
}

fn memory_of(resources: &mut nri::LinuxResources) -> &mut nri::LinuxMemory {
    resources.memory.get_or_insert_default()
}

#[test]
fn realtime_needs_its_time_where_cgroups_share_it_out() {
    let mut f = host();
    f.host.cgroup = CgroupMode::V1;
    f.host.realtime = true;
    let mut adjust = of_linux(nri::LinuxContainerAdjustment {
        scheduler: Some(nri::LinuxScheduler {
            policy: nri::LinuxSchedulerPolicy::SchedRr as i32,
            priority: 1,
            ..nri::LinuxScheduler::default()
        }),
        ..Default::default()
    });
    let error = apply(&f, &adjust).expect_err("no time");
    assert!(error.to_string().contains("realtime_runtime"), "{error}");
    adjust.linux.as_mut().expect("set").resources = Some(nri::LinuxResources {
        cpu: Some(nri::LinuxCpu {
            realtime_runtime: int(1000),
            ..nri::LinuxCpu::default()
        }),
        ..nri::LinuxResources::default()
    });
    apply(&f, &adjust).expect("it has time");
}

struct Classes;

impl BlockIoClasses for Classes {
    fn blockio(&self, class: &str) -> Option<LinuxBlockIo> {
        let mut limits = LinuxBlockIo::default();
        limits.set_weight(Some(500));
        (class == "fast").then_some(limits)
    }
}

#[test]
fn classes_are_set_cleared_or_refused_by_name() {
    let class = |blockio: Option<&str>, rdt: Option<&str>| {
        of_resources(nri::LinuxResources {
            blockio_class: blockio.map(string),
            rdt_class: rdt.map(string),
            ..Default::default()
        })
    };
    let mut f = host();
    let mut spec = f.spec().spec;
    let with_classes = ApplyContext {
        blockio: Some(&Classes),
        ..context(&f)
    };
    apply_adjustment(&mut spec, &class(Some("fast"), Some("gold")), &with_classes)
        .expect("applied");
    let resources = linux(&spec).resources().as_ref().expect("resources");
    assert_eq!(
        resources.block_io().as_ref().and_then(|b| b.weight()),
        Some(500)
    );
    let rdt = linux(&spec).intel_rdt().clone().expect("rdt");
    assert_eq!(rdt.clos_id().as_deref(), Some("gold"));
    apply_adjustment(&mut spec, &class(None, None), &with_classes).expect("applied");
    assert!(linux(&spec).intel_rdt().is_some(), "absent leaves it");
    apply_adjustment(&mut spec, &class(Some(""), Some("")), &with_classes).expect("applied");
    assert!(linux(&spec).intel_rdt().is_none());
    assert_eq!(
        linux(&spec)
            .resources()
            .as_ref()
            .expect("resources")
            .block_io(),
        &None
    );
    assert!(refused(&class(Some("slow"), None)).contains("\"slow\""));
    assert!(refused(&class(None, Some(".."))).contains("rdt_class"));
    f.host.resctrl = false;
    assert!(
        apply(&f, &class(None, Some("gold")))
            .expect_err("refused")
            .to_string()
            .contains("resctrl")
    );
}

#[test]
fn rdt_wins_over_its_class_field_by_field_and_an_empty_message_does_nothing() {
    let rdt = |rdt: nri::LinuxRdt| {
        let mut adjust = of_resources(nri::LinuxResources {
            rdt_class: Some(string("gold")),
            ..Default::default()
        });
        adjust.linux.as_mut().expect("linux").rdt = Some(rdt);
        linux(&applied(&adjust)).intel_rdt().clone()
    };
    let kept = rdt(nri::LinuxRdt::default()).expect("rdt");
    assert_eq!(kept.clos_id().as_deref(), Some("gold"));
    let mixed = rdt(nri::LinuxRdt {
        enable_monitoring: Some(nri::OptionalBool { value: true }),
        ..Default::default()
    })
    .expect("rdt");
    assert_eq!(
        (mixed.clos_id().as_deref(), *mixed.enable_monitoring()),
        (Some("gold"), Some(true))
    );
    assert_eq!(
        rdt(nri::LinuxRdt {
            remove: true,
            ..Default::default()
        }),
        None
    );
}

fn mount(destination: &str, source: &str, options: &[&str]) -> nri::Mount {
    nri::Mount {
        destination: destination.to_owned(),
        r#type: "bind".to_owned(),
        source: source.to_owned(),
        options: options.iter().map(|o| (*o).to_owned()).collect(),
    }
}

fn mounts(list: Vec<nri::Mount>) -> nri::ContainerAdjustment {
    nri::ContainerAdjustment {
        mounts: list,
        ..Default::default()
    }
}

fn destinations(spec: &Spec) -> Vec<String> {
    spec.mounts()
        .iter()
        .flatten()
        .map(|m| m.destination().display().to_string())
        .collect()
}

#[test]
fn mounts_are_removed_replaced_and_sorted_so_that_parents_come_first() {
    let spec = applied(&mounts(vec![
        mount("/z/deep//", "/anything", &["bind"]),
        mount("-/dev/mqueue/", "", &[]),
        mount("/etc/hosts", "/anything", &["bind"]),
        mount("/a", "/anything", &["bind"]),
    ]));
    let list = destinations(&spec);
    assert!(!list.contains(&"/dev/mqueue".to_owned()));
    assert_eq!(list.iter().filter(|d| *d == "/etc/hosts").count(), 1);
    let mut sorted = list.clone();
    sorted.sort_by_key(|d| (d.matches('/').count(), d.clone()));
    assert_eq!(list, sorted);
    assert!(list.contains(&"/z/deep".to_owned()));
    for bad in ["relative", "/", "/a/..", "-relative", ""] {
        assert!(
            refused(&mounts(vec![mount(bad, "/x", &[])])).contains("adjust.mounts"),
            "{bad}"
        );
    }
}

#[test]
fn mount_options_that_the_create_helper_does_not_know_are_refused() {
    for option in ["tmpcopyup", "idmap", "ridmap"] {
        let text = refused(&mounts(vec![mount("/x", "/private/x", &["bind", option])]));
        assert!(text.contains(option), "{text}");
    }
}

#[test]
fn without_mounts_in_the_adjustment_their_order_stays() {
    let f = host();
    let adjust = nri::ContainerAdjustment {
        env: vec![variable("A", "1")],
        ..Default::default()
    };
    assert_eq!(
        destinations(&applied(&adjust)),
        destinations(&f.spec().spec)
    );
}

#[test]
fn each_mounts_propagation_is_judged_by_its_own_source() {
    let root = |list: Vec<nri::Mount>| linux(&applied(&mounts(list))).rootfs_propagation().clone();
    assert_eq!(
        root(vec![mount("/x", "/shared/x", &["rshared"])]).as_deref(),
        Some("shared")
    );
    assert_eq!(
        root(vec![mount("/x", "/slave/x", &["rslave"])]).as_deref(),
        Some("slave")
    );
    assert_eq!(root(vec![mount("/x", "/private/x", &["rprivate"])]), None);
    assert_eq!(
        root(vec![mount("/x", "/missing/x", &[])]),
        None,
        "a source is not looked at"
    );
    let shared_first = vec![
        mount("/x", "/shared/x", &["rshared"]),
        mount("/y", "/private/y", &["rbind"]),
        mount("/z", "/slave/z", &["rslave"]),
    ];
    assert_eq!(root(shared_first).as_deref(), Some("shared"));
    for (source, option) in [
        ("/private/x", "rshared"),
        ("/private/x", "rslave"),
        ("/slave/x", "rshared"),
    ] {
        assert!(refused(&mounts(vec![mount("/x", source, &[option])])).contains(source));
    }
    assert!(
        refused(&mounts(vec![mount("/x", "/missing/x", &["rslave"])])).contains("does not exist")
    );
}

#[test]
fn a_limit_of_a_type_is_replaced_under_either_name() {
    let mut f = host();
    f.policy.rlimits = vec![("nofile".to_owned(), 1, 2)];
    let adjust = nri::ContainerAdjustment {
        rlimits: vec![rlimit("RLIMIT_NOFILE", 5, 6), rlimit("core", 0, 0)],
        ..Default::default()
    };
    let spec = apply(&f, &adjust).expect("applied");
    let list = process(&spec).rlimits().clone().expect("limits");
    let text: Vec<_> = list
        .iter()
        .map(|l| format!("{} {} {}", l.typ(), l.soft(), l.hard()))
        .collect();
    assert_eq!(text, ["RLIMIT_NOFILE 5 6", "RLIMIT_CORE 0 0"]);
    for bad in [rlimit("files", 1, 1), rlimit("nofile", 2, 1)] {
        assert!(
            refused(&nri::ContainerAdjustment {
                rlimits: vec![bad],
                ..Default::default()
            })
            .contains("rlimits")
        );
    }
}

#[test]
fn a_spec_without_sections_gets_them() {
    let f = host();
    let mut spec = Spec::default();
    spec.set_linux(None);
    spec.set_process(None);
    spec.set_mounts(None);
    let mut adjust = everything();
    let linux_part = adjust.linux.as_mut().expect("linux");
    // These two need a namespace to act in, which a spec without sections has not.
    linux_part.sysctl.clear();
    linux_part.net_devices.clear();
    apply_adjustment(&mut spec, &adjust, &context(&f)).expect("applied");
    assert!(linux(&spec).seccomp().is_some());
    assert_eq!(process(&spec).args().clone().expect("args"), ["/bin/other"]);
}

#[test]
fn an_update_follows_swap_and_refuses_classes() {
    let mut f = host();
    f.resources().memory_limit_in_bytes = 1000;
    f.resources().memory_swap_limit_in_bytes = 9000;
    let mut spec = f.spec().spec;
    let update = |resources: nri::ContainerAdjustment| {
        resources.linux.and_then(|l| l.resources).expect("set")
    };
    apply_nri_update(&mut spec, &update(memory(2000, None)), &f.host, &f.policy).expect("applied");
    let found = (*linux(&spec)
        .resources()
        .as_ref()
        .expect("resources")
        .memory())
    .expect("memory");
    assert_eq!((found.limit(), found.swap()), (Some(2000), Some(9000)));
    let class = nri::LinuxResources {
        rdt_class: Some(string("gold")),
        ..Default::default()
    };
    let before = spec.clone();
    let error = apply_nri_update(&mut spec, &class, &f.host, &f.policy).expect_err("refused");
    assert!(error.to_string().contains("rdt_class"));
    assert_eq!(spec, before);
}

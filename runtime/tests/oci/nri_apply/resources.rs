//! Resources, block I/O and RDT classes; updates.

use cairn::oci::{apply_adjustment, apply_nri_update};
use oci_spec::runtime::Spec;
use proto_nri as nri;

use super::{
    applied, apply, context, every_resource, host, linux, of_linux, of_resources, refused, string,
};

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
    f.resources().memory_limit_in_bytes = 1000 << 20;
    f.resources().memory_swap_limit_in_bytes = 9000 << 20;
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
    assert_eq!(
        found(&memory(500 << 20, None)),
        (Some(500 << 20), Some(500 << 20))
    );
    assert_eq!(
        found(&memory(500 << 20, Some(700 << 20))),
        (Some(500 << 20), Some(700 << 20))
    );
    assert_eq!(
        found(&memory(0, None)),
        (Some(1000 << 20), Some(9000 << 20)),
        "a limit of 0 is ignored"
    );
    assert_eq!(found(&memory(-1, None)), (Some(-1), Some(-1)));
    assert!(refused(&memory(500 << 20, Some(100))).contains("memory.swap"));
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
    f.host.cgroup_v1 = true;
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
    v1.host.cgroup_v1 = true;
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
        let reported = cairn::oci::resources_to_nri(&found);
        let has = |all: &nri::LinuxResources| (all.memory, all.cpu.clone());
        assert_eq!(has(&reported), has(&asked), "{field}");
        let error = apply(&v2, &of_resources(asked)).expect_err(field);
        let field = format!("adjust.linux.resources.{field}:");
        assert!(error.to_string().starts_with(&field), "{error}");
    }
    let nowhere: [(&str, Change); 3] = [
        ("memory.swappiness", |r| {
            memory_of(r).swappiness = Some(nri::OptionalUInt64 { value: 201 });
        }),
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
    f.host.cgroup_v1 = true;
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
    let context = context(&f);
    apply_adjustment(&mut spec, &class(None, Some("gold")), &context).expect("applied");
    let rdt = linux(&spec).intel_rdt().clone().expect("rdt");
    assert_eq!(rdt.clos_id().as_deref(), Some("gold"));
    apply_adjustment(&mut spec, &class(None, None), &context).expect("applied");
    assert!(linux(&spec).intel_rdt().is_some(), "absent leaves it");
    apply_adjustment(&mut spec, &class(Some(""), Some("")), &context).expect("applied");
    assert!(linux(&spec).intel_rdt().is_none());
    assert!(refused(&class(Some("slow"), None)).contains("\"slow\""));
    assert!(refused(&class(None, Some(".."))).contains("rdt_class"));
    f.host.resctrl = false;
    assert!(
        apply(&f, &class(None, Some("gold")))
            .expect_err("refused")
            .to_string()
            .contains("resctrl")
    );
    let clos = nri::LinuxRdt {
        clos_id: Some(string("gold")),
        ..Default::default()
    };
    let schemata = nri::LinuxRdt {
        schemata: Some(nri::OptionalRepeatedString {
            value: vec!["L3:0=f".to_owned()],
        }),
        ..Default::default()
    };
    let monitoring = nri::LinuxRdt {
        enable_monitoring: Some(nri::OptionalBool { value: true }),
        ..Default::default()
    };
    for (field, rdt) in [
        ("clos_id", clos),
        ("schemata", schemata),
        ("enable_monitoring", monitoring),
    ] {
        let adjust = of_linux(nri::LinuxContainerAdjustment {
            rdt: Some(rdt),
            ..Default::default()
        });
        let error = apply(&f, &adjust).expect_err(field);
        let field = format!("adjust.linux.rdt.{field}: ");
        assert!(error.to_string().starts_with(&field), "{error}");
    }
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

#[test]
fn an_update_follows_swap_and_is_refused_by_the_name_of_its_field() {
    let mut f = host();
    f.resources().memory_limit_in_bytes = 1000 << 20;
    f.resources().memory_swap_limit_in_bytes = 9000 << 20;
    let mut spec = f.spec().spec;
    let update = |resources: nri::ContainerAdjustment| {
        resources.linux.and_then(|l| l.resources).expect("set")
    };
    apply_nri_update(&mut spec, &update(memory(2000 << 20, None)), &context(&f)).expect("applied");
    let found = (*linux(&spec)
        .resources()
        .as_ref()
        .expect("resources")
        .memory())
    .expect("memory");
    assert_eq!(
        (found.limit(), found.swap()),
        (Some(2000 << 20), Some(9000 << 20))
    );
    let class = nri::LinuxResources {
        rdt_class: Some(string("gold")),
        ..Default::default()
    };
    let quota = nri::LinuxResources {
        cpu: Some(nri::LinuxCpu {
            quota: Some(nri::OptionalInt64 { value: -2 }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let cpus = nri::LinuxResources {
        cpu: Some(nri::LinuxCpu {
            cpus: "64".to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let least = update(memory(1000, None));
    for (asked, field) in [
        (class, "rdt_class"),
        (quota, "cpu.quota"),
        (cpus, "cpu.cpus"),
        (least, "memory.limit"),
    ] {
        let before = spec.clone();
        let error = apply_nri_update(&mut spec, &asked, &context(&f)).expect_err("refused");
        let field = format!("update.linux.resources.{field}: ");
        assert!(error.to_string().starts_with(&field), "{error}");
        assert_eq!(spec, before);
    }
}

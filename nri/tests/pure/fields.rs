//! Fields that are copied unchanged: arguments, hooks, namespaces, limits, complete messages.

use nri::adjust::{Adjust, HookKind, SetResources, Strip};
use proto_nri::{
    ContainerAdjustment, Field, LinuxIoPriority, LinuxMemoryPolicy, LinuxRdt, LinuxResources,
    LinuxScheduler, LinuxSeccomp, OptionalBool, OptionalInt64, OptionalString,
};

use crate::support::*;

#[test]
fn arguments_are_replaced_as_a_whole() {
    let first = || adjust(|a| a.add_args(["a", "b"]));
    let merged = merge(vec![first()]).expect("one plugin");
    assert_eq!(merged.seen.args, ["a", "b"]);
    assert_eq!(merged.reply().args, ["a", "b"]);
    assert_eq!(merged.owner(Field::Args).as_deref(), Some("10-a"));
    assert_conflict(
        merge(vec![first(), first()]),
        "20-b",
        "10-a",
        Field::Args,
        None,
    );

    let over = adjust(|a| a.set_args(["c"]));
    let merged = merge(vec![first(), over]).expect("it says that it overwrites");
    assert_eq!(merged.reply().args, ["c"]);
    assert_eq!(merged.seen.args, ["c"]);
    assert_eq!(merged.owner(Field::Args).as_deref(), Some("20-b"));

    let nothing = adjust(|a| a.set_args(Vec::<String>::new()));
    let merged = merge(vec![first(), nothing]).expect("it says that it overwrites");
    assert_eq!(merged.reply().args, Vec::<String>::new());
    assert_eq!(
        merged.seen.args,
        ["sh", "-c"],
        "the original command line stands"
    );
}

#[test]
fn hooks_of_all_plugins_are_kept_in_plugin_order() {
    let kinds = [
        HookKind::Prestart,
        HookKind::CreateRuntime,
        HookKind::CreateContainer,
        HookKind::StartContainer,
        HookKind::Poststart,
        HookKind::Poststop,
    ];
    for kind in kinds {
        let add = |path: &str| {
            let hook = hook(path);
            adjust(move |a| a.add_hook(kind, hook))
        };
        let merged = merge(vec![add("/1"), add("/2"), add("/1")]).expect("never a conflict");
        let mut reply = merged.reply().hooks.clone().expect("always present");
        let paths: Vec<_> = kind
            .of(&mut reply)
            .iter()
            .map(|h| h.path.as_str())
            .collect();
        assert_eq!(paths, ["/1", "/2", "/1"]);
        let mut seen = merged.seen.hooks.clone().expect("always present");
        assert_eq!(kind.of(&mut seen).len(), 3);
        let owner = merged.owner(Field::OciHooks);
        assert_eq!(owner.as_deref(), Some("10-a,20-b,30-c"));
    }
}

#[test]
fn a_namespace_is_claimed_by_setting_and_by_removing() {
    let set = |path: &str| {
        let path = path.to_owned();
        adjust(move |a| a.add_namespace("network", path))
    };
    let remove = || adjust(|a| a.remove_namespace("network"));
    let merged = merge(vec![set("/x")]).expect("one plugin");
    let expected = [namespace("pid", ""), namespace("network", "/x")];
    assert_eq!(merged.seen_linux().namespaces, expected);
    assert_eq!(merged.linux().namespaces, [namespace("network", "/x")]);
    assert_eq!(
        merged.owner_of(Field::Namespace, "network").as_deref(),
        Some("10-a")
    );

    let merged = merge(vec![remove()]).expect("one plugin");
    assert_eq!(merged.seen_linux().namespaces, [namespace("pid", "")]);
    assert_eq!(merged.linux().namespaces, [namespace("-network", "")]);
    assert_eq!(
        merged.owner_of(Field::Namespace, "network").as_deref(),
        Some("10-a")
    );

    let both = adjust(|a| a.remove_namespace("network").add_namespace("network", "/x"));
    let conflict = |result, later, earlier| {
        assert_conflict(result, later, earlier, Field::Namespace, Some("network"))
    };
    conflict(merge(vec![both]), "10-a", "10-a");
    conflict(merge(vec![set("/x"), remove()]), "20-b", "10-a");
    conflict(merge(vec![remove(), set("/x")]), "20-b", "10-a");
}

#[test]
fn cdi_devices_are_shown_to_later_plugins_and_have_no_removal() {
    let add = |name: &str| {
        let name = name.to_owned();
        adjust(move |a| a.add_cdi_device(name))
    };
    let merged = merge(vec![add("v.com/c=x"), add("-v.com/c=x")]).expect("different names");
    let names: Vec<_> = merged
        .seen
        .cdi_devices
        .iter()
        .map(|d| d.name.as_str())
        .collect();
    assert_eq!(names, ["v.com/c=x", "-v.com/c=x"]);
    assert_eq!(merged.reply().cdi_devices, merged.seen.cdi_devices);
    let result = merge(vec![add("v.com/c=x"), add("v.com/c=x")]);
    assert_conflict(result, "20-b", "10-a", Field::CdiDevices, Some("v.com/c=x"));
}

#[test]
fn an_rlimit_is_one_key_however_it_is_spelt() {
    let add = |kind: &str| {
        let kind = kind.to_owned();
        adjust(move |a| a.add_rlimit(kind, 2, 1))
    };
    let merged = merge(vec![add("nofile"), add("RLIMIT_CORE")]).expect("different limits");
    let kinds: Vec<_> = merged
        .reply()
        .rlimits
        .iter()
        .map(|r| r.r#type.as_str())
        .collect();
    assert_eq!(
        kinds,
        ["nofile", "RLIMIT_CORE"],
        "the wire keeps the spelling"
    );
    assert_eq!(merged.seen.rlimits, merged.reply().rlimits);
    assert_eq!(
        merged.owner_of(Field::Rlimits, "nofile").as_deref(),
        Some("10-a")
    );
    let result = merge(vec![add("nofile"), add("RLIMIT_NOFILE")]);
    assert_conflict(result, "20-b", "10-a", Field::Rlimits, Some("nofile"));
}

type SetOne = fn(&mut LinuxResources) -> &mut LinuxResources;

fn resource_rows() -> Vec<(Field, Option<&'static str>, SetOne)> {
    fn row(field: Field, set: SetOne) -> (Field, Option<&'static str>, SetOne) {
        (field, None, set)
    }
    vec![
        row(Field::MemLimit, |r| r.memory_limit(0)),
        row(Field::MemReservation, |r| r.memory_reservation(0)),
        row(Field::MemSwapLimit, |r| r.memory_swap(0)),
        row(Field::MemKernelLimit, |r| r.memory_kernel(0)),
        row(Field::MemTcpLimit, |r| r.memory_kernel_tcp(0)),
        row(Field::MemSwappiness, |r| r.memory_swappiness(0)),
        row(Field::MemDisableOomKiller, |r| {
            r.memory_disable_oom_killer(false)
        }),
        row(Field::MemUseHierarchy, |r| r.memory_use_hierarchy(false)),
        row(Field::CpuShares, |r| r.cpu_shares(0)),
        row(Field::CpuQuota, |r| r.cpu_quota(0)),
        row(Field::CpuPeriod, |r| r.cpu_period(0)),
        row(Field::CpuRealtimeRuntime, |r| r.cpu_realtime_runtime(0)),
        row(Field::CpuRealtimePeriod, |r| r.cpu_realtime_period(0)),
        row(Field::CpuSetCpUs, |r| r.cpuset_cpus("0")),
        row(Field::CpuSetMems, |r| r.cpuset_mems("0")),
        row(Field::PidsLimit, |r| r.pids_limit(0)),
        row(Field::BlockioClass, |r| r.blockio_class("")),
        row(Field::RdtClass, |r| r.rdt_class("")),
        (Field::HugepageLimits, Some("2MB"), |r| {
            r.add_hugepage_limit("2MB", 1)
        }),
        (Field::CgroupsUnified, Some("-memory.high"), |r| {
            r.add_unified("-memory.high", "1")
        }),
    ]
}

#[test]
fn each_resource_is_owned_by_itself_also_at_its_zero() {
    let rows = resource_rows();
    let sets = |set: SetOne| {
        adjust(|a| {
            set(a.resources());
            a
        })
    };
    for (n, (field, key, set)) in rows.iter().enumerate() {
        let merged = merge(vec![sets(*set)]).expect("one plugin");
        let owner = match key {
            Some(key) => merged.owner_of(*field, key),
            None => merged.owner(*field),
        };
        assert_eq!(owner.as_deref(), Some("10-a"), "{field:?}");
        let mut wanted = LinuxResources::default();
        set(&mut wanted);
        let reply = merged.linux().resources.clone().and_then(Strip::strip);
        assert_eq!(reply.as_ref(), Some(&wanted), "{field:?}");
        let seen = merged.seen_linux().resources.clone().and_then(Strip::strip);
        assert_eq!(seen.as_ref(), Some(&wanted), "{field:?}");

        assert_conflict(
            merge(vec![sets(*set), sets(*set)]),
            "20-b",
            "10-a",
            *field,
            *key,
        );
        let (_, _, other) = rows[(n + 1) % rows.len()];
        merge(vec![sets(*set), sets(other)]).expect("different fields do not conflict");
    }
    let fields: std::collections::BTreeSet<_> = rows.iter().map(|(field, ..)| *field).collect();
    let all: std::collections::BTreeSet<_> = nri::mask::FieldMask::RESOURCES.iter().collect();
    assert_eq!(fields, all, "every resource has its row");
}

#[test]
fn device_rules_are_added_and_owned_by_nobody() {
    let rule = proto_nri::LinuxDeviceCgroup {
        allow: true,
        access: "r".into(),
        ..Default::default()
    };
    let add = || {
        let rule = rule.clone();
        adjust(move |a| {
            a.resources().devices.push(rule);
            a
        })
    };
    let merged = merge(vec![add(), add()]).expect("never a conflict");
    let reply = merged.linux().resources.as_ref().expect("always present");
    assert_eq!(reply.devices, [rule.clone(), rule]);
    assert!(merged.answer.owners.container("ctr").is_none());
}

#[test]
fn whole_messages_are_replaced_and_conflict() {
    type Write = fn(&mut ContainerAdjustment) -> &mut ContainerAdjustment;
    let rows: [(Field, Write); 6] = [
        (Field::CgroupsPath, |a| a.cgroups_path("/x")),
        (Field::OomScoreAdj, |a| a.oom_score_adj(0)),
        (Field::IoPriority, |a| {
            a.io_priority(LinuxIoPriority::default())
        }),
        (Field::SeccompPolicy, |a| {
            a.seccomp_policy(LinuxSeccomp::default())
        }),
        (Field::LinuxSched, |a| {
            a.scheduler(LinuxScheduler::default())
        }),
        (Field::MemoryPolicy, |a| {
            a.memory_policy(LinuxMemoryPolicy::default())
        }),
    ];
    for (field, write) in rows {
        let merged = merge(vec![adjust(write)]).expect("one plugin");
        assert_eq!(merged.owner(field).as_deref(), Some("10-a"));
        let mut wanted = ContainerAdjustment::default();
        write(&mut wanted);
        let reply = merged.reply().clone().strip();
        assert_eq!(reply, Some(wanted), "{field:?}");
        assert_conflict(
            merge(vec![adjust(write), adjust(write)]),
            "20-b",
            "10-a",
            field,
            None,
        );
    }
    let merged = merge(vec![adjust(|a| {
        a.cgroups_path("/x")
            .oom_score_adj(5)
            .io_priority(LinuxIoPriority::default());
        a.seccomp_policy(LinuxSeccomp::default())
            .scheduler(LinuxScheduler::default())
    })]);
    let merged = merged.expect("one plugin");
    let seen = merged.seen_linux();
    assert_eq!(seen.cgroups_path, "/x");
    assert_eq!(seen.oom_score_adj.as_ref().map(|o| o.value), Some(5));
    assert!(
        seen.io_priority.is_some() && seen.seccomp_policy.is_some() && seen.scheduler.is_some()
    );
}

fn rdt_of(clos: Option<&str>, monitoring: Option<bool>, remove: bool) -> LinuxRdt {
    LinuxRdt {
        clos_id: clos.map(|c| OptionalString { value: c.into() }),
        enable_monitoring: monitoring.map(|value| OptionalBool { value }),
        remove,
        ..Default::default()
    }
}

#[test]
fn rdt_fields_are_owned_one_by_one_and_removed_together() {
    let rdt = |clos, monitoring, remove| {
        adjust(move |a| {
            a.linux.get_or_insert_default().rdt = Some(rdt_of(clos, monitoring, remove));
            a
        })
    };
    let merged = merge(vec![
        rdt(Some("a"), None, false),
        rdt(None, Some(true), false),
    ]);
    let merged = merged.expect("different fields");
    let both = rdt_of(Some("a"), Some(true), false);
    assert_eq!(merged.linux().rdt.as_ref(), Some(&both));
    assert_eq!(merged.seen_linux().rdt.as_ref(), Some(&both), "NRI-520");
    assert_eq!(merged.owner(Field::RdtClosId).as_deref(), Some("10-a"));
    assert_eq!(
        merged.owner(Field::RdtEnableMonitoring).as_deref(),
        Some("20-b")
    );
    assert_eq!(merged.owner(Field::RdtSchemata), None);

    let result = merge(vec![
        rdt(Some("a"), None, false),
        rdt(Some("b"), None, false),
    ]);
    assert_conflict(result, "20-b", "10-a", Field::RdtClosId, None);

    let merged = merge(vec![
        rdt(Some("a"), Some(true), false),
        rdt(None, None, true),
    ]);
    let merged = merged.expect("it removes");
    assert_eq!(merged.linux().rdt, Some(rdt_of(None, None, true)));
    assert_eq!(merged.seen_linux().rdt, None);
    for field in [
        Field::RdtClosId,
        Field::RdtSchemata,
        Field::RdtEnableMonitoring,
    ] {
        assert_eq!(merged.owner(field).as_deref(), Some("-20-b"));
    }
    let result = merge(vec![rdt(None, None, true), rdt(Some("b"), None, false)]);
    assert_conflict(result, "20-b", "10-a", Field::RdtClosId, None);

    let merged = merge(vec![
        rdt(Some("a"), Some(true), false),
        rdt(Some("b"), None, true),
    ]);
    let merged = merged.expect("it removes and sets");
    assert_eq!(merged.linux().rdt, Some(rdt_of(Some("b"), None, false)));
    assert_eq!(merged.owner(Field::RdtClosId).as_deref(), Some("20-b"));
    assert_eq!(
        merged.owner(Field::RdtEnableMonitoring).as_deref(),
        Some("-20-b")
    );
}

#[test]
fn an_rdt_message_that_says_nothing_leaves_no_trace() {
    let merged = merge(vec![adjust(|a| {
        a.linux.get_or_insert_default().rdt = Some(LinuxRdt::default());
        a.oom_score_adj(1)
    })]);
    let merged = merged.expect("one plugin");
    assert_eq!(merged.linux().rdt, None, "NRI-515");
    assert_eq!(merged.seen_linux().rdt, None);
    assert_eq!(merged.owner(Field::RdtClosId), None);
}

#[test]
fn messages_that_are_always_on_the_wire_are_there_without_any_plugin() {
    let merged = merge(vec![]).expect("no plugin");
    let resources = merged.seen_linux().resources.as_ref().expect("NRI-407");
    assert!(merged.seen.hooks.is_some() && resources.memory.is_some() && resources.cpu.is_some());
    let resources = merged.linux().resources.as_ref().expect("table 5.2");
    assert!(merged.reply().hooks.is_some());
    assert!(resources.memory.is_some() && resources.cpu.is_some());
    assert_eq!(merged.answer.adjust.clone().strip(), None);
    assert!(merged.answer.owners.iter().next().is_none());
}

#[test]
fn the_pristine_container_is_what_the_first_plugin_saw() {
    let merged = merge(vec![adjust(|a| {
        a.add_env("NEW", "1").remove_mount("/old").memory_limit(5)
    })]);
    let merged = merged.expect("one plugin");
    assert_eq!(merged.answer.container.env, ["OLD=original", "ODD"]);
    assert_eq!(merged.answer.container.mounts.len(), 1);
    let limit = |c: &proto_nri::Container| {
        let resources = c.linux.clone().and_then(|l| l.resources);
        resources.and_then(|r| r.memory).and_then(|m| m.limit)
    };
    assert_eq!(limit(&merged.answer.container), None);
    assert_eq!(limit(&merged.seen), Some(OptionalInt64 { value: 5 }));
}

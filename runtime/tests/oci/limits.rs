//! Limits at the creation and in an update, and their values in the status.

use cairn::oci::{apply_update, resources_to_cri};
use oci_spec::runtime::{LinuxResources, Spec};
use proptest::prelude::*;
use proto_cri::v1::{HugepageLimit, LinuxContainerResources};

use crate::{nri_apply::context, support::Fixture};

fn full() -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        cpu_shares: 512,
        memory_limit_in_bytes: 64 << 20,
        memory_swap_limit_in_bytes: 128 << 20,
        oom_score_adj: 100,
        cpuset_cpus: "0-1,3".to_owned(),
        cpuset_mems: "0".to_owned(),
        hugepage_limits: vec![huge("2MB", 1 << 21)],
        unified: [("memory.high".to_owned(), "1000".to_owned())].into(),
    }
}

fn huge(page_size: &str, limit: u64) -> HugepageLimit {
    HugepageLimit {
        page_size: page_size.to_owned(),
        limit,
    }
}

fn with(resources: LinuxContainerResources) -> Fixture {
    let mut f = Fixture::default();
    *f.resources() = resources;
    f
}

fn unified(resources: &mut LinuxContainerResources, file: &str, value: &str) {
    resources.unified = [(file.to_owned(), value.to_owned())].into();
}

fn limits(spec: &Spec) -> LinuxResources {
    spec.linux()
        .as_ref()
        .and_then(|l| l.resources().clone())
        .expect("resources")
}

fn update(spec: &mut Spec, cri: &LinuxContainerResources) -> Result<(), cairn::oci::SpecError> {
    let f = Fixture::default();
    apply_update(spec, cri, &context(&f))
}

#[test]
fn status_shows_what_was_asked_for() {
    assert_eq!(with(full()).spec().resources, full());
}

#[test]
fn what_is_not_given_is_not_set() {
    let built = Fixture::default().spec();
    let limits = limits(&built.spec);
    assert_eq!((limits.cpu(), limits.memory()), (&None, &None));
    assert_eq!(built.resources, LinuxContainerResources::default());
}

#[test]
fn a_memory_limit_alone_means_no_swap() {
    let mut f = with(LinuxContainerResources {
        memory_limit_in_bytes: 64 << 20,
        ..Default::default()
    });
    assert_eq!(f.spec().resources.memory_swap_limit_in_bytes, 64 << 20);
    f.host.swap = false;
    assert_eq!(f.spec().resources.memory_swap_limit_in_bytes, 0);
    f.resources().memory_swap_limit_in_bytes = 10;
    assert!(f.refusal().contains("memory_swap_limit_in_bytes"));
}

#[test]
fn limits_of_huge_pages_are_ignored_without_the_controller() {
    let mut f = with(full());
    f.host.hugetlb = false;
    assert!(f.spec().resources.hugepage_limits.is_empty());
    f.host.hugetlb = true;
    f.resources().hugepage_limits = vec![huge("2 megs", 1)];
    assert!(f.refusal().contains("2 megs"));
}

#[test]
fn unified_values_need_v2_and_name_one_file() {
    let mut f = with(full());
    f.host.cgroup_v1 = true;
    assert!(f.refusal().contains("cgroup v2"));
    f.host.cgroup_v1 = false;
    for bad in [
        "../memory.max",
        "memory",
        "a/b.c",
        ".x",
        "cgroup.procs",
        "cgroup.kill",
        "",
    ] {
        f.resources().unified = [(bad.to_owned(), "1".to_owned())].into();
        assert!(f.refusal().contains("unified"), "{bad}");
    }
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    type Change = fn(&mut LinuxContainerResources);
    let cases: &[(&str, Change)] = &[
        ("cpu_period", |r| r.cpu_period = -1),
        ("cpu_period", |r| r.cpu_period = 999),
        ("cpu_period", |r| r.cpu_period = 1_000_001),
        ("cpu_quota", |r| r.cpu_quota = -2),
        ("cpu_quota", |r| r.cpu_quota = 999),
        ("cpu_shares", |r| r.cpu_shares = -1),
        ("memory_limit_in_bytes", |r| r.memory_limit_in_bytes = -2),
        ("memory_limit_in_bytes", |r| {
            r.memory_limit_in_bytes = (1 << 20) - 1
        }),
        ("memory_swap_limit_in_bytes", |r| {
            r.memory_swap_limit_in_bytes = -2
        }),
        ("oom_score_adj", |r| r.oom_score_adj = 1001),
        ("cpuset_cpus", |r| r.cpuset_cpus = "a".to_owned()),
        ("cpuset_cpus", |r| r.cpuset_cpus = "2-1".to_owned()),
        ("cpuset_cpus", |r| r.cpuset_cpus = "4".to_owned()),
        ("cpuset_cpus", |r| r.cpuset_cpus = "0,2-9".to_owned()),
        ("cpuset_mems", |r| r.cpuset_mems = "1-".to_owned()),
        ("cpuset_mems", |r| r.cpuset_mems = "0-2".to_owned()),
        ("unified", |r| unified(r, "cpuset.cpus", "4")),
        ("unified", |r| unified(r, "cpuset.mems", "2")),
        ("unified", |r| unified(r, "memory.max", "1000")),
        ("unified", |r| unified(r, "memory.max", "512K")),
        ("unified", |r| unified(r, "memory.max", "0x1000\n")),
        ("unified", |r| unified(r, "cpu.max", "999")),
        ("unified", |r| unified(r, "cpu.max", "999 100000")),
        ("unified", |r| unified(r, "cpu.max", "max 999")),
        ("unified", |r| unified(r, "cpu.max", "2000 1000001")),
    ];
    for (name, change) in cases {
        let mut f = Fixture::default();
        change(f.resources());
        assert!(f.refusal().contains(name), "{name}");
        let mut spec = Fixture::default().spec().spec;
        let before = spec.clone();
        let mut cri = full();
        change(&mut cri);
        assert!(update(&mut spec, &cri).is_err(), "{name}");
        assert_eq!(spec, before, "nothing of a refused update is kept: {name}");
    }
}

#[test]
fn files_of_the_cgroup_take_what_is_in_range() {
    for (file, value) in [
        ("memory.max", "max"),
        ("memory.max", "1M"),
        ("memory.max", "1024k"),
        ("memory.max", "1G"),
        ("cpu.max", "max"),
        ("cpu.max", "max 100000"),
        ("cpu.max", "1000 1000"),
        ("cpu.max", "50000"),
    ] {
        let mut f = Fixture::default();
        unified(f.resources(), file, value);
        let found = f.spec().resources.unified;
        assert_eq!(found.get(file).map(String::as_str), Some(value), "{file}");
    }
}

#[test]
fn a_cpu_or_node_that_is_missing_is_named_with_those_that_there_are() {
    let cpus = |list: &str| {
        with(LinuxContainerResources {
            cpuset_cpus: list.to_owned(),
            ..Default::default()
        })
    };
    assert_eq!(
        cpus("1,3-5").refusal(),
        "linux.resources.cpuset_cpus: \"1,3-5\": this host has no CPU 4 (online are 0-3)"
    );
    let long = "1,".repeat(3000) + "1";
    assert!(cpus(&long).refusal().contains("longer than 4096"));
    assert_eq!(cpus(" 0-3 ").spec().resources.cpuset_cpus, "0-3");
}

#[test]
fn an_update_changes_what_it_names_and_leaves_the_rest() {
    let mut spec = with(full()).spec().spec;
    let rules = limits(&spec).devices().clone();
    update(&mut spec, &LinuxContainerResources::default()).expect("valid");
    assert_eq!(resources_to_cri(&spec), full(), "zero means unchanged");
    update(
        &mut spec,
        &LinuxContainerResources {
            cpu_quota: -1,
            hugepage_limits: vec![huge("1GB", 0), huge("2MB", 7)],
            unified: [("memory.low".to_owned(), "5".to_owned())].into(),
            oom_score_adj: -5,
            ..Default::default()
        },
    )
    .expect("valid");
    let now = resources_to_cri(&spec);
    assert_eq!(now.cpu_quota, -1);
    assert_eq!(now.cpu_shares, 512);
    assert_eq!(now.oom_score_adj, -5);
    assert_eq!(now.hugepage_limits, [huge("2MB", 7), huge("1GB", 0)]);
    assert_eq!(now.unified.len(), 2);
    assert_eq!(limits(&spec).devices(), &rules);
}

#[test]
fn swap_follows_the_memory_limit_until_it_has_a_value_of_its_own() {
    let memory = |limit: i64, swap: i64| LinuxContainerResources {
        memory_limit_in_bytes: limit,
        memory_swap_limit_in_bytes: swap,
        ..Default::default()
    };
    let mut spec = with(memory(1 << 30, 0)).spec().spec;
    update(&mut spec, &memory(2 << 30, 0)).expect("valid");
    assert_eq!(resources_to_cri(&spec).memory_swap_limit_in_bytes, 2 << 30);
    update(&mut spec, &memory(0, 5 << 30)).expect("valid");
    update(&mut spec, &memory(3 << 30, 0)).expect("valid");
    assert_eq!(resources_to_cri(&spec).memory_swap_limit_in_bytes, 5 << 30);
    assert!(update(&mut spec, &memory(6 << 30, 0)).is_err());
    update(&mut spec, &memory(-1, -1)).expect("valid");
    assert_eq!(resources_to_cri(&spec).memory_limit_in_bytes, -1);
}

#[test]
fn the_score_is_never_inherited_from_the_daemon() {
    let mut f = Fixture::default();
    f.host.oom_score_adj = -999;
    f.linux().resources = None;
    let score = |f: &Fixture| {
        f.spec()
            .spec
            .process()
            .as_ref()
            .and_then(|p| p.oom_score_adj())
    };
    assert_eq!(score(&f), Some(0));
    f.resources().oom_score_adj = -997;
    assert_eq!(score(&f), Some(-997));
}

proptest! {
    #[test]
    fn what_an_update_sets_is_what_status_shows(
        period in 1_000i64..1_000_000, quota in 1_000i64..1_000_000, shares in 2i64..262_144,
        limit in 1i64 << 20..i64::MAX,
    ) {
        let cri = LinuxContainerResources {
            cpu_period: period,
            cpu_quota: quota,
            cpu_shares: shares,
            memory_limit_in_bytes: limit,
            ..Default::default()
        };
        let mut spec = Spec::default();
        update(&mut spec, &cri).expect("valid");
        let shown = resources_to_cri(&spec);
        prop_assert_eq!(shown.cpu_period, period);
        prop_assert_eq!(shown.cpu_quota, quota);
        prop_assert_eq!(shown.cpu_shares, shares);
        prop_assert_eq!(shown.memory_limit_in_bytes, limit);
        prop_assert_eq!(shown.memory_swap_limit_in_bytes, limit);
    }
}

//! Plans against a fake view: order, refusals, and a small model of the kernel's rules.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::path::Path;

#[derive(Default)]
struct Fake {
    v2: bool,
    missing: Vec<&'static str>,
    files: HashMap<&'static str, String>,
}

impl View for Fake {
    fn name(&self) -> &str {
        "/c"
    }

    fn place(&self, controller: &str) -> Option<Place<'_>> {
        let v1_only = ["cpuacct", "devices", "freezer"];
        let known = ["memory", "cpu", "cpuset", "pids", "hugetlb"].contains(&controller)
            || (!self.v2 && v1_only.contains(&controller))
            || (self.v2 && controller == "io");
        let there = known && !self.missing.contains(&controller);
        let kind = if self.v2 { Place::V2 } else { Place::V1 };
        there.then(|| kind(Path::new("")))
    }

    fn current(&self, _: &str, file: &str) -> Result<Option<String>> {
        Ok(self.files.get(file).cloned())
    }
}

fn v1(files: &[(&'static str, &str)]) -> Fake {
    let files = files.iter().map(|(k, v)| (*k, (*v).to_owned()));
    Fake {
        files: files.collect(),
        ..Fake::default()
    }
}

fn v2(files: &[(&'static str, &str)]) -> Fake {
    Fake {
        v2: true,
        ..v1(files)
    }
}

fn resources(json: serde_json::Value) -> LinuxResources {
    serde_json::from_value(json).unwrap()
}

fn lines(view: &Fake, json: serde_json::Value) -> Vec<String> {
    let changes = plan(view, &resources(json)).unwrap();
    let line = |c: &Change| format!("{} {}", c.file, c.value);
    changes.iter().map(line).collect()
}

fn refusal(view: &Fake, json: serde_json::Value) -> String {
    plan(view, &resources(json)).unwrap_err().to_string()
}

#[test]
fn nothing_given_means_nothing_written() {
    let nothing = serde_json::json!({"memory": {}, "cpu": {}, "unified": {}});
    assert_eq!(lines(&v1(&[]), nothing.clone()), [""; 0]);
    assert_eq!(lines(&v2(&[]), nothing), [""; 0]);
    let zeros = serde_json::json!({"cpu": {"shares": 0, "quota": 0, "period": 0, "cpus": ""}});
    assert_eq!(lines(&v1(&[]), zeros), [""; 0]);
}

#[test]
fn a_v1_limit_above_todays_swap_limit_is_raised_after_it() {
    let now = [
        ("memory.limit_in_bytes", "100"),
        ("memory.memsw.limit_in_bytes", "200"),
    ];
    let raise = serde_json::json!({"memory": {"limit": 300, "swap": 400}});
    assert_eq!(
        lines(&v1(&now), raise),
        [
            "memory.memsw.limit_in_bytes 400",
            "memory.limit_in_bytes 300"
        ]
    );
    let lower = serde_json::json!({"memory": {"limit": 50, "swap": 60}});
    assert_eq!(
        lines(&v1(&now), lower),
        ["memory.limit_in_bytes 50", "memory.memsw.limit_in_bytes 60"]
    );
}

#[test]
fn a_v1_container_without_swap_stays_without_when_only_its_limit_changes() {
    let now = [
        ("memory.limit_in_bytes", "100"),
        ("memory.memsw.limit_in_bytes", "100"),
    ];
    let lower = serde_json::json!({"memory": {"limit": 50}});
    assert_eq!(
        lines(&v1(&now), lower),
        ["memory.limit_in_bytes 50", "memory.memsw.limit_in_bytes 50"]
    );
}

#[test]
fn a_host_without_swap_accounting_gets_the_limit_alone() {
    let both = serde_json::json!({"memory": {"limit": 50, "swap": 50}});
    let now = [("memory.limit_in_bytes", "100")];
    assert_eq!(lines(&v1(&now), both.clone()), ["memory.limit_in_bytes 50"]);
    assert_eq!(lines(&v2(&[]), both), ["memory.max 50"]);
}

#[test]
fn v2_swap_is_what_exceeds_the_memory_limit() {
    let now = [("memory.swap.max", "max"), ("memory.max", "70")];
    let both = serde_json::json!({"memory": {"limit": 50, "swap": 80}});
    assert_eq!(
        lines(&v2(&now), both),
        ["memory.max 50", "memory.swap.max 30"]
    );
    let swap_only = serde_json::json!({"memory": {"swap": 80}});
    assert_eq!(lines(&v2(&now), swap_only), ["memory.swap.max 10"]);
    let open = serde_json::json!({"memory": {"limit": -1, "swap": -1}});
    assert_eq!(
        lines(&v2(&now), open),
        ["memory.max max", "memory.swap.max max"]
    );
    let senseless = serde_json::json!({"memory": {"limit": 50, "swap": 40}});
    assert!(refusal(&v2(&now), senseless).contains("below the memory limit"));
}

#[test]
fn a_period_alone_keeps_the_quota_on_v2() {
    let wanted = serde_json::json!({"cpu": {"period": 50000}});
    let now = [("cpu.max", "20000 100000")];
    assert_eq!(lines(&v2(&now), wanted), ["cpu.max 20000 50000"]);
}

#[test]
fn a_missing_hugetlb_controller_is_tolerated() {
    let wanted = serde_json::json!({"hugepageLimits": [{"pageSize": "2MB", "limit": 7}]});
    let view = Fake {
        missing: vec!["hugetlb"],
        ..v1(&[])
    };
    assert_eq!(lines(&view, wanted.clone()), [""; 0]);
    assert_eq!(lines(&v2(&[]), wanted), ["hugetlb.2MB.max 7"]);
    let path = serde_json::json!({"hugepageLimits": [{"pageSize": "../2MB", "limit": 7}]});
    assert!(refusal(&v2(&[]), path).contains("hugepage limit"));
}

#[test]
fn unified_entries_come_last_and_verbatim_and_only_on_v2() {
    let wanted = serde_json::json!({
        "memory": {"limit": 50}, "unified": {"memory.max": "60", "memory.high": "55"}
    });
    assert_eq!(
        lines(&v2(&[]), wanted.clone()),
        ["memory.max 50", "memory.high 55", "memory.max 60"]
    );
    assert!(refusal(&v1(&[]), wanted).contains("the controller is on cgroup v1"));
    for bad in [
        "cgroup.procs",
        "../memory.max",
        "memory/x",
        "memory",
        "",
        "x.y",
    ] {
        let wanted = serde_json::json!({"unified": {bad: "1"}});
        assert!(
            plan(&v2(&[]), &resources(wanted)).is_err(),
            "{bad:?} was accepted"
        );
    }
}

#[test]
fn what_v2_has_no_word_for_is_refused_by_name() {
    for (wanted, name) in [
        (
            serde_json::json!({"memory": {"swappiness": 10}}),
            "memory swappiness",
        ),
        (
            serde_json::json!({"memory": {"disableOOMKiller": true}}),
            "disabled OOM killer",
        ),
        (
            serde_json::json!({"cpu": {"realtimePeriod": 10}}),
            "realtime cpu limit",
        ),
    ] {
        let text = refusal(&v2(&[]), wanted);
        assert!(text.contains(name) && text.contains("/c"), "{text}");
    }
}

/// The kernel's rule for v1 bandwidth at each single write: never above the parent's ratio.
fn allowed(quota: i64, period: u64, parent: (u64, u64)) -> bool {
    quota < 0
        || u128::from(quota as u64) * u128::from(parent.1)
            <= u128::from(parent.0) * u128::from(period)
}

proptest! {
    #[test]
    fn no_step_of_a_v1_bandwidth_change_exceeds_the_parent(
        parent in (1_000_u64..100_000, 1_000_u64..100_000),
        old in (prop_oneof![Just(-1_i64), 1_000_i64..100_000], 1_000_u64..100_000),
        new in (prop_oneof![Just(-1_i64), 1_000_i64..100_000], 1_000_u64..100_000),
    ) {
        prop_assume!(allowed(old.0, old.1, parent) && allowed(new.0, new.1, parent));
        let quota = old.0.to_string();
        let period = old.1.to_string();
        let now = [("cpu.cfs_quota_us", quota.as_str()), ("cpu.cfs_period_us", period.as_str())];
        let wanted = serde_json::json!({"cpu": {"quota": new.0, "period": new.1}});
        let mut at = old;
        for change in plan(&v1(&now), &resources(wanted)).unwrap() {
            match change.file.as_str() {
                "cpu.cfs_quota_us" => at.0 = change.value.parse().unwrap(),
                "cpu.cfs_period_us" => at.1 = change.value.parse().unwrap(),
                other => prop_assert!(false, "{}", other),
            }
            prop_assert!(allowed(at.0, at.1, parent), "{:?} over {:?}", at, parent);
        }
        prop_assert_eq!(at, new);
    }

    #[test]
    fn no_step_of_a_v1_memory_change_has_less_swap_limit_than_limit(
        old in 1_i64..1000, old_more in 0_i64..1000,
        new in prop_oneof![Just(-1_i64), 1_i64..1000],
        more in proptest::option::of(0_i64..1000),
    ) {
        let (limit, memsw) = (old.to_string(), (old + old_more).to_string());
        let now = [
            ("memory.limit_in_bytes", limit.as_str()),
            ("memory.memsw.limit_in_bytes", memsw.as_str()),
        ];
        let mut memory = serde_json::json!({"limit": new});
        if let Some(more) = more {
            memory["swap"] = if new < 0 { (-1).into() } else { (new + more).into() };
        }
        let unlimited = |v: i64| if v < 0 { i64::MAX } else { v };
        let (mut limit, mut memsw) = (old, old + old_more);
        for change in plan(&v1(&now), &resources(serde_json::json!({"memory": memory}))).unwrap() {
            let value = unlimited(change.value.parse().unwrap());
            match change.file.as_str() {
                "memory.limit_in_bytes" => limit = value,
                _ => memsw = value,
            }
            prop_assert!(limit <= memsw, "{} > {}", limit, memsw);
        }
        prop_assert_eq!(limit, unlimited(new));
    }
}

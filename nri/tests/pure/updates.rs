//! Updates of existing containers and evictions: rules 540…548 and 570.

use nri::{
    adjust::{self, SetResources},
    merge::{MergeError, StopMerge, UpdateMerge},
};
use proto_nri::{
    Container, ContainerEviction, ContainerUpdate, CreateContainerResponse, Field, LinuxResources,
    UpdateContainerRequest, UpdateContainerResponse,
};

use crate::support::*;

fn update(
    id: &str,
    write: impl FnOnce(&mut ContainerUpdate) -> &mut ContainerUpdate,
) -> ContainerUpdate {
    let mut update = adjust::update(id, false);
    write(&mut update);
    update
}

fn lenient(
    id: &str,
    write: impl FnOnce(&mut ContainerUpdate) -> &mut ContainerUpdate,
) -> ContainerUpdate {
    ContainerUpdate {
        ignore_failure: true,
        ..update(id, write)
    }
}

fn resources_of(update: &ContainerUpdate) -> LinuxResources {
    let linux = update.linux.clone().expect("always present");
    linux.resources.expect("always present")
}

fn request(write: impl FnOnce(&mut LinuxResources) -> &mut LinuxResources) -> UpdateMerge {
    let mut resources = LinuxResources::default();
    write(&mut resources);
    UpdateMerge::new(UpdateContainerRequest {
        container: Some(Container {
            id: "ctr".into(),
            ..Default::default()
        }),
        linux_resources: Some(resources),
        ..Default::default()
    })
}

fn answer(update: Vec<ContainerUpdate>) -> UpdateContainerResponse {
    UpdateContainerResponse {
        update,
        ..Default::default()
    }
}

#[test]
fn a_container_cannot_be_updated_or_evicted_while_it_is_being_created() {
    let result = merge(vec![updates(vec![lenient("ctr", |u| u)])]);
    let error = result.expect_err("NRI-540");
    assert!(
        matches!(error, MergeError::UpdatesCreated { .. }),
        "{error}"
    );
    assert_eq!(
        error.to_string(),
        "plugin 10-a updates container ctr, which is still being created"
    );
    let evicts = CreateContainerResponse {
        evict: vec![ContainerEviction {
            container_id: "ctr".into(),
            reason: "because".into(),
        }],
        ..Default::default()
    };
    let error = merge(vec![evicts]).expect_err("NRI-570");
    assert!(matches!(error, MergeError::EvictsCreated { .. }), "{error}");
}

#[test]
fn updates_of_one_container_become_one_entry_in_order_of_first_mention() {
    let merged = merge(vec![
        updates(vec![
            update("z", |u| u.cpu_shares(1)),
            update("a", |u| u.memory_limit(2)),
        ]),
        updates(vec![update("a", |u| u.cpu_shares(3)), update("m", |u| u)]),
    ]);
    let merged = merged.expect("different fields").answer;
    let ids: Vec<_> = merged
        .update
        .iter()
        .map(|u| u.container_id.as_str())
        .collect();
    assert_eq!(ids, ["z", "a", "m"]);
    let a = resources_of(&merged.update[1]);
    assert_eq!(a.memory.and_then(|m| m.limit).map(|l| l.value), Some(2));
    assert_eq!(a.cpu.and_then(|c| c.shares).map(|s| s.value), Some(3));
    assert_eq!(
        resources_of(&merged.update[2]),
        LinuxResources::default(),
        "NRI-544"
    );
    let owners = merged.owners.container("a").expect("it was updated");
    assert_eq!(
        owners
            .owner(Field::MemLimit)
            .map(ToString::to_string)
            .as_deref(),
        Some("10-a")
    );
    assert_eq!(
        owners
            .owner(Field::CpuShares)
            .map(ToString::to_string)
            .as_deref(),
        Some("20-b")
    );
}

#[test]
fn a_conflict_in_an_update_names_the_container() {
    let twice = || updates(vec![update("other", |u| u.cpu_shares(1))]);
    let result = merge(vec![twice(), twice()]);
    let reported = result.as_ref().expect_err("a conflict").to_string();
    assert!(reported.contains("container other"), "{reported}");
    assert_conflict(result, "20-b", "10-a", Field::CpuShares, None);
}

#[test]
fn an_update_that_ignores_failure_is_left_out_as_a_whole_with_its_claims() {
    let merged = merge(vec![
        updates(vec![update("o", |u| u.cpu_shares(1))]),
        updates(vec![lenient("o", |u| {
            u.memory_limit(7).cpu_shares(2).pids_limit(9)
        })]),
        updates(vec![update("o", |u| u.memory_limit(8))]),
    ]);
    let merged = merged
        .expect("the conflict is swallowed, its claims are released")
        .answer;
    let o = resources_of(&merged.update[0]);
    assert_eq!(o.cpu.and_then(|c| c.shares).map(|s| s.value), Some(1));
    assert_eq!(o.memory.and_then(|m| m.limit).map(|l| l.value), Some(8));
    assert_eq!(o.pids, None);
    assert!(!merged.update[0].ignore_failure);
}

#[test]
fn an_entry_ignores_failure_only_if_all_its_plugins_do() {
    let merged = merge(vec![
        updates(vec![lenient("x", |u| u), lenient("y", |u| u)]),
        updates(vec![lenient("x", |u| u), update("y", |u| u)]),
    ]);
    let update = merged.expect("nothing is set").answer.update;
    assert!(update[0].ignore_failure);
    assert!(!update[1].ignore_failure);
}

#[test]
fn one_update_with_a_page_size_twice_conflicts_with_itself() {
    fn twice(u: &mut ContainerUpdate) -> &mut ContainerUpdate {
        u.add_hugepage_limit("2MB", 1).add_hugepage_limit("2MB", 2)
    }
    let result = merge(vec![updates(vec![update("x", twice)])]);
    assert_conflict(result, "10-a", "10-a", Field::HugepageLimits, Some("2MB"));
    let merged = merge(vec![updates(vec![lenient("x", twice)])]).expect("it is left out");
    assert_eq!(merged.answer.update, []);
}

#[test]
fn later_plugins_see_the_resources_that_earlier_ones_changed() {
    let mut merge = request(|r| r.cpu_shares(100).memory_limit(200).pids_limit(5));
    let first = vec![update("ctr", |u| u.cpu_shares(111))];
    merge
        .apply(&plugin("10-a"), answer(first))
        .expect("one plugin");
    let seen = merge.request().linux_resources.clone().expect("NRI-407");
    assert_eq!(seen.cpu.and_then(|c| c.shares).map(|s| s.value), Some(111));
    assert_eq!(
        seen.memory.and_then(|m| m.limit).map(|l| l.value),
        Some(200)
    );

    let second = vec![
        update("other", |u| u),
        update("ctr", |u| u.memory_limit(222)),
    ];
    merge
        .apply(&plugin("20-b"), answer(second))
        .expect("no pids of theirs, NRI-546");
    let merged = merge.finish();
    let target = merged.target.expect("it was touched");
    assert_eq!(
        target.cpu.and_then(|c| c.shares).map(|s| s.value),
        Some(111)
    );
    assert_eq!(
        target.memory.and_then(|m| m.limit).map(|l| l.value),
        Some(222)
    );
    assert_eq!(target.pids.map(|p| p.limit), Some(5));
    let others: Vec<_> = merged
        .others
        .iter()
        .map(|u| u.container_id.as_str())
        .collect();
    assert_eq!(others, ["other"]);
}

#[test]
fn an_untouched_target_is_none_and_always_present_messages_are_made() {
    let mut merge = UpdateMerge::new(UpdateContainerRequest::default());
    let seen = merge.request().linux_resources.clone().expect("NRI-407");
    assert!(seen.memory.is_some() && seen.cpu.is_some());
    let other = vec![update("other", |u| u.pids_limit(1))];
    merge
        .apply(&plugin("10-a"), answer(other))
        .expect("one plugin");
    let merged = merge.finish();
    assert_eq!(merged.target, None, "NRI-545");
    assert_eq!(merged.others.len(), 1);
}

#[test]
fn two_plugins_cannot_both_change_one_value_of_the_target() {
    let mut merge = request(|r| r.pids_limit(5));
    let pids = || answer(vec![update("ctr", |u| u.pids_limit(6))]);
    merge.apply(&plugin("10-a"), pids()).expect("one plugin");
    let error = merge
        .apply(&plugin("20-b"), pids())
        .expect_err("two plugins");
    assert!(
        error
            .to_string()
            .contains("linux.resources.pids.limit of container ctr"),
        "{error}"
    );
}

#[test]
fn hugepage_limits_of_the_target_are_replaced_by_page_size() {
    let mut merge = request(|r| r.add_hugepage_limit("2MB", 1).add_hugepage_limit("1GB", 2));
    let new = vec![update("ctr", |u| u.add_hugepage_limit("2MB", 9))];
    merge
        .apply(&plugin("10-a"), answer(new))
        .expect("one plugin");
    let pages = merge.finish().target.expect("touched").hugepage_limits;
    let pages: Vec<_> = pages
        .iter()
        .map(|p| (p.page_size.as_str(), p.limit))
        .collect();
    assert_eq!(pages, [("1GB", 2), ("2MB", 9)], "NRI-548");
}

#[test]
fn device_rules_cannot_be_updated() {
    let mut merge = request(|r| r);
    let rules = vec![update("ctr", |u| {
        u.resources().devices.push(Default::default());
        u
    })];
    merge
        .apply(&plugin("10-a"), answer(rules))
        .expect("ignored, NRI-547");
    assert_eq!(merge.finish().target.expect("touched").devices, []);
}

#[test]
fn a_conflict_cannot_fail_a_stop_and_the_first_wins() {
    let mut merge = StopMerge::new();
    let stop = |shares, id: &str| vec![update("o", |u| u.cpu_shares(shares)), update(id, |u| u)];
    assert_eq!(merge.apply(&plugin("10-a"), stop(1, "p")), []);
    let conflicts = merge.apply(&plugin("20-b"), stop(2, "q"));
    assert_eq!(conflicts.len(), 1, "NRI-410, NRI-317");
    assert_eq!(conflicts[0].earlier, plugin("10-a"));
    let merged = merge.finish();
    let ids: Vec<_> = merged
        .update
        .iter()
        .map(|u| u.container_id.as_str())
        .collect();
    assert_eq!(ids, ["o", "p", "q"], "the rest of the answer stands");
    let o = resources_of(&merged.update[0]);
    assert_eq!(o.cpu.and_then(|c| c.shares).map(|s| s.value), Some(1));
}

#[test]
fn evictions_of_one_container_are_joined_with_their_reasons() {
    let evict = |id: &str, reason: &str| ContainerEviction {
        container_id: id.into(),
        reason: reason.into(),
    };
    let answers = [
        ("10-a", vec![evict("x", "hot"), evict("y", "")]),
        (
            "20-b",
            vec![evict("x", "old"), evict("x", ""), evict("y", "late")],
        ),
    ];
    let mut merge = request(|r| r);
    for (id, evict) in answers {
        let answer = UpdateContainerResponse {
            evict,
            ..Default::default()
        };
        merge.apply(&plugin(id), answer).expect("never a conflict");
    }
    let expected = [evict("x", "hot; old"), evict("y", "late")];
    let merged = merge.finish();
    assert_eq!(merged.evict, expected);
    assert_eq!(
        merged.askers.of_eviction("x"),
        [plugin("10-a"), plugin("20-b")]
    );
}

#[test]
fn who_asked_is_known_also_of_a_wish_without_a_value() {
    let mut merge = request(|r| r);
    for (id, requests) in [
        ("20-b", vec![update("x", |u| u)]),
        (
            "10-a",
            vec![update("y", |u| u.cpu_shares(2)), lenient("x", |u| u)],
        ),
    ] {
        merge
            .apply(&plugin(id), answer(requests))
            .expect("no conflict");
    }
    let askers = merge.finish().askers;
    assert_eq!(askers.of_update("x"), [plugin("20-b"), plugin("10-a")]);
    assert_eq!(askers.of_update("y"), [plugin("10-a")]);
    assert_eq!(askers.of_update("z"), []);
}

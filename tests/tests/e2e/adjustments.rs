//! Every field of an adjustment: its effect inside a container of a real daemon, or its rejection
//! by name at the creation (NRI-700 to NRI-732). Values that are rejected are in
//! `runtime/tests/oci/nri_apply/`.
//!
//! The table at the end and [`ELSEWHERE`] are complete: each row is a test with the fields that it
//! covers. The tests of the table are generated from it, so that none can be left out. A field in no
//! row fails [`every_field_of_an_adjustment_is_in_the_table`]; a row fails if its test never sends
//! one of its fields.

mod cgroups;
mod devices;
mod fields;
mod hooks;
mod mounts;
mod namespaces;
mod process;
mod scheduling;
mod seccomp;
mod stage;

use std::collections::BTreeSet;

use cairn_tests::bins::repository;
use stage::Stage;

/// The expected effect of a field. A field may take effect with one value and be rejected with
/// another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The effect is read from inside the container.
    Seen,
    /// Unsupported by every kernel or by this runtime: the creation fails with the field's name.
    Refused,
    /// The effect is read from inside the container if this machine supports the field.
    ByMachine,
}

struct Row {
    test: &'static str,
    fate: Fate,
    fields: &'static [&'static str],
}

macro_rules! table {
    ($($module:ident :: $test:ident { $($fate:ident [ $($field:literal),+ $(,)? ])+ })+) => {
        const TABLE: &[Row] = &[$($(
            Row { test: stringify!($test), fate: Fate::$fate, fields: &[$($field),+] },
        )+)+];
        $(
            #[tokio::test]
            async fn $test() {
                let stage = Stage::new().await;
                $module::$test(&stage).await;
                let rows = TABLE.iter().filter(|r| r.test == stringify!($test) && r.fate != Fate::ByMachine);
                stage.has_sent(&rows.flat_map(|r| r.fields.iter().copied()).collect::<Vec<_>>());
            }
        )+
    };
}

const POINTS: &str = "nri/contract/src/points/fields.rs";
const RESOURCES: &str = "runtime/tests/oci/nri_apply/resources.rs";
const LINUX: &str = "runtime/tests/oci/nri_apply/linux.rs";

/// Fields covered by points of `nri/contract`, in a container as well, or rejected without one: the
/// file, the point or test, and its fields.
const ELSEWHERE: &[(&str, &str, &[&str])] = &[
    (POINTS, "C-04.6/env", &["env.key", "env.value"]),
    (POINTS, "C-04.6/args", &["args"]),
    (
        POINTS,
        "C-04.6/rlimits",
        &["rlimits.type", "rlimits.hard", "rlimits.soft"],
    ),
    (POINTS, "C-04.6/oom-score", &["linux.oom_score_adj"]),
    (
        RESOURCES,
        "limits_of_one_kind_of_host_are_refused_by_name_on_the_other",
        &["linux.resources.memory.kernel"],
    ),
    (
        RESOURCES,
        "classes_are_set_cleared_or_refused_by_name",
        &[
            "linux.resources.blockio_class",
            "linux.resources.rdt_class",
            "linux.rdt.clos_id",
            "linux.rdt.schemata",
            "linux.rdt.enable_monitoring",
        ],
    ),
    (
        RESOURCES,
        "rdt_wins_over_its_class_field_by_field_and_an_empty_message_does_nothing",
        &["linux.rdt.remove"],
    ),
    (
        LINUX,
        "a_seccomp_policy_that_cannot_be_had_is_refused",
        &[
            "linux.seccomp_policy.listener_path",
            "linux.seccomp_policy.listener_metadata",
        ],
    ),
];

#[test]
fn every_field_of_an_adjustment_is_in_the_table() {
    let known = fields::all();
    let mut listed = BTreeSet::new();
    for (file, name, fields) in ELSEWHERE {
        let source = std::fs::read_to_string(repository().join(file)).expect("a source");
        assert!(source.contains(name), "{file}: there is no {name}");
        listed.extend(fields.iter().map(|f| (*f).to_owned()));
    }
    for row in TABLE {
        listed.extend(row.fields.iter().map(|f| (*f).to_owned()));
    }
    let undecided: Vec<_> = known.difference(&listed).collect();
    assert!(
        undecided.is_empty(),
        "neither seen nor refused: {undecided:#?}"
    );
    let stale: Vec<_> = listed.difference(&known).collect();
    assert!(stale.is_empty(), "no such fields any more: {stale:#?}");
    for fate in [Fate::Seen, Fate::Refused, Fate::ByMachine] {
        assert!(
            TABLE.iter().any(|row| row.fate == fate),
            "a fate that nothing has: {fate:?}"
        );
    }
}

table! {
    process::annotations_are_set_replaced_and_removed { Seen["annotations"] }
    process::a_cdi_device_comes_with_all_its_file_says { Seen["CDI_devices.name"] }

    hooks::hooks_of_all_six_kinds_run_at_their_time_with_the_state_on_stdin {
        Seen[
            "hooks.prestart.path", "hooks.prestart.args", "hooks.prestart.env",
            "hooks.create_runtime.path", "hooks.create_runtime.args", "hooks.create_runtime.env",
            "hooks.create_container.path", "hooks.create_container.args", "hooks.create_container.env",
            "hooks.start_container.path", "hooks.start_container.args", "hooks.start_container.env",
            "hooks.poststart.path", "hooks.poststart.args", "hooks.poststart.env",
            "hooks.poststop.path", "hooks.poststop.args", "hooks.poststop.env",
        ]
    }
    hooks::a_create_container_hook_runs_in_a_user_namespace_too {
        Seen["hooks.create_container.path"]
    }
    hooks::a_hook_that_outlasts_its_timeout_is_ended {
        Seen[
            "hooks.prestart.timeout", "hooks.create_runtime.timeout", "hooks.create_container.timeout",
            "hooks.start_container.timeout", "hooks.poststart.timeout", "hooks.poststop.timeout",
        ]
    }

    mounts::mounts_are_added_replaced_and_removed {
        Seen["mounts.destination", "mounts.type", "mounts.source", "mounts.options"]
    }
    mounts::a_mount_propagates_as_its_options_say { Seen["mounts.options"] }

    mounts::a_source_that_is_not_there_fails_the_creation_and_the_start_by_mount_and_plugin {
        Refused["mounts.source"]
    }

    devices::devices_are_made_with_their_mode_and_owner_and_can_be_used {
        Seen[
            "linux.devices.path", "linux.devices.type", "linux.devices.major", "linux.devices.minor",
            "linux.devices.file_mode", "linux.devices.uid", "linux.devices.gid",
        ]
    }
    devices::a_device_is_removed_together_with_its_rule { Seen["linux.devices.path"] }
    devices::rules_allow_and_deny_devices {
        Seen[
            "linux.resources.devices.allow", "linux.resources.devices.type", "linux.resources.devices.major",
            "linux.resources.devices.minor", "linux.resources.devices.access",
        ]
    }

    namespaces::namespaces_of_another_container_are_joined_by_path {
        Seen["linux.namespaces.type", "linux.namespaces.path"]
    }
    namespaces::namespaces_are_the_hosts_once_removed { Seen["linux.namespaces.type"] }
    namespaces::namespaces_of_each_kind_are_made_new { Seen["linux.namespaces.type"] }
    namespaces::sysctls_are_set_and_those_of_an_earlier_plugin_removed { Seen["linux.sysctl"] }
    namespaces::a_network_device_moves_in_under_its_new_name {
        Seen["linux.net_devices", "linux.net_devices.name"]
    }

    scheduling::the_scheduler_is_set_for_init_and_exec {
        Seen["linux.scheduler.policy", "linux.scheduler.nice", "linux.scheduler.flags"]
    }
    scheduling::a_realtime_policy_has_its_priority_and_its_share_of_the_cpu {
        ByMachine[
            "linux.scheduler.policy", "linux.scheduler.priority",
            "linux.resources.cpu.realtime_runtime", "linux.resources.cpu.realtime_period",
        ]
    }
    scheduling::a_deadline_has_its_three_times {
        Seen["linux.scheduler.runtime", "linux.scheduler.deadline", "linux.scheduler.period"]
    }
    scheduling::the_io_priority_is_set_for_init_and_exec {
        Seen["linux.io_priority.class", "linux.io_priority.priority"]
    }
    scheduling::the_memory_policy_is_set_for_init_and_exec {
        Seen["linux.memory_policy.mode", "linux.memory_policy.nodes", "linux.memory_policy.flags"]
    }

    cgroups::limits_of_memory_are_in_the_cgroup {
        Seen[
            "linux.resources.memory.limit", "linux.resources.memory.reservation",
            "linux.resources.memory.use_hierarchy",
        ]
        ByMachine[
            "linux.resources.memory.swap", "linux.resources.memory.kernel_tcp",
            "linux.resources.memory.swappiness", "linux.resources.memory.disable_oom_killer",
        ]
    }
    cgroups::limits_of_the_cpu_are_in_the_cgroup {
        Seen[
            "linux.resources.cpu.shares", "linux.resources.cpu.quota", "linux.resources.cpu.period",
            "linux.resources.cpu.cpus", "linux.resources.cpu.mems",
        ]
    }
    cgroups::limits_of_processes_and_huge_pages_are_in_the_cgroup {
        Seen["linux.resources.pids.limit"]
        ByMachine[
            "linux.resources.hugepage_limits.page_size", "linux.resources.hugepage_limits.limit",
        ]
    }
    cgroups::unified_limits_are_in_the_cgroup_of_a_v2_host { ByMachine["linux.resources.unified"] }
    cgroups::the_cgroup_is_where_the_plugin_put_it_and_goes_with_the_container {
        Seen["linux.cgroups_path"]
    }

    seccomp::a_denied_call_fails_with_the_policys_error_with_and_without_new_privileges {
        Seen[
            "linux.seccomp_policy.default_action", "linux.seccomp_policy.syscalls.names",
            "linux.seccomp_policy.syscalls.action", "linux.seccomp_policy.syscalls.errno_ret",
            "linux.seccomp_policy.syscalls.args.index", "linux.seccomp_policy.syscalls.args.value",
            "linux.seccomp_policy.syscalls.args.value_two", "linux.seccomp_policy.syscalls.args.op",
        ]
    }
    seccomp::a_call_that_no_rule_names_fails_with_the_default_error {
        Seen["linux.seccomp_policy.default_errno"]
    }
    seccomp::denied_calls_are_logged_where_the_flag_says_so { Seen["linux.seccomp_policy.flags"] }
    seccomp::only_the_architectures_of_the_policy_may_run { Seen["linux.seccomp_policy.architectures"] }
}

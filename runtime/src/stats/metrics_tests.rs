//! Descriptors and samples as critest checks them.

use super::*;
use crate::cgroup::{Cpu, HugePages, IoDevice, Limits, Memory, Pids, Pressure, Psi, Stats, Swap};
use crate::stats::machine::{Filesystem, Processes};
use crate::stats::{Interface, LayerUsage};
use std::collections::{BTreeMap, BTreeSet};

fn full() -> Stats {
    Stats {
        cpu: Some(Cpu {
            usage_ns: 3_900_000_000,
            ..Cpu::default()
        }),
        memory: Some(Memory {
            usage: 50,
            limit: Some(64 << 20),
            pgfault: 9,
            ..Memory::default()
        }),
        swap: Some(Swap {
            usage: 0,
            limit: Some(0),
        }),
        pids: Some(Pids {
            current: 4,
            limit: None,
        }),
        psi: Pressure {
            cpu: Some(Psi::default()),
            memory: Some(Psi::default()),
            io: Some(Psi::default()),
        },
        hugepages: vec![HugePages {
            page_size: "2MB".to_owned(),
            usage: 0,
            max_usage: None,
        }],
        io: vec![IoDevice {
            major: 8,
            minor: 1,
            write_bytes: 512,
            ..IoDevice::default()
        }],
        limits: Limits {
            cpu_quota_us: Some(20_000),
            cpu_period_us: Some(100_000),
            cpu_shares: None,
            memory_reservation: Some(1),
        },
    }
}

fn with(stats: &Stats, check: impl FnOnce(cri::PodSandboxMetrics)) {
    let layer = LayerUsage::default();
    let filesystem = Filesystem {
        device: "/dev/x".to_owned(),
        ..Filesystem::default()
    };
    let resources = cri::LinuxContainerResources {
        cpu_shares: 1024,
        ..cri::LinuxContainerResources::default()
    };
    let interfaces = ["lo", "eth0"].map(|name| Interface {
        name: name.to_owned(),
        ..Interface::default()
    });
    let container = Container {
        id: "c1",
        name: "app",
        image: "img",
        stats,
        processes: Processes {
            max_open_files: Some(1024),
            ..Processes::default()
        },
        layer: Some(&layer),
        filesystem: Some(&filesystem),
        resources: Some(&resources),
        started_ns: 7_000_000_000,
        now_ns: 9_999_999_999,
        device_name: |major, minor| format!("dev{major}-{minor}"),
    };
    check(pod(&Pod {
        id: "p1",
        name: "web",
        namespace: "default",
        interfaces: &interfaces,
        containers: vec![container],
    }));
}

fn all(metrics: &cri::PodSandboxMetrics) -> Vec<&cri::Metric> {
    let containers = metrics.container_metrics.iter().flat_map(|c| &c.metrics);
    metrics.metrics.iter().chain(containers).collect()
}

#[test]
fn everything_advertised_has_a_sample_with_as_many_labels() {
    with(&full(), |metrics| {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        for metric in all(&metrics) {
            let labels = metric.label_values.len();
            assert_eq!(*seen.entry(&metric.name).or_insert(labels), labels);
            assert!(metric.value.is_some() && metric.timestamp == 0);
        }
        let descriptors = descriptors();
        for descriptor in &descriptors {
            let keys = descriptor.label_keys.len();
            assert_eq!(
                seen.get(descriptor.name.as_str()),
                Some(&keys),
                "{}",
                descriptor.name
            );
            assert!(!descriptor.help.is_empty());
        }
        assert_eq!(seen.len(), descriptors.len());
    });
}

/// CRI-158, by group.
#[test]
fn all_names_of_the_list_are_advertised_once() {
    let groups = [
        (
            "cpu",
            "usage_seconds_total user_seconds_total system_seconds_total cfs_periods_total cfs_throttled_periods_total cfs_throttled_seconds_total",
        ),
        (
            "memory",
            "cache rss kernel_usage mapped_file swap failcnt usage_bytes max_usage_bytes working_set_bytes failures_total",
        ),
        (
            "fs",
            "inodes_free inodes_total limit_bytes usage_bytes reads_bytes_total reads_total writes_bytes_total writes_total",
        ),
        (
            "network",
            "receive_bytes_total receive_packets_total receive_packets_dropped_total receive_errors_total transmit_bytes_total transmit_packets_total transmit_packets_dropped_total transmit_errors_total",
        ),
        (
            "spec",
            "cpu_period cpu_shares cpu_quota memory_limit_bytes memory_reservation_limit_bytes memory_swap_limit_bytes",
        ),
        ("hugetlb", "usage_bytes max_usage_bytes"),
        (
            "pressure",
            "cpu_waiting_seconds_total cpu_stalled_seconds_total memory_waiting_seconds_total memory_stalled_seconds_total io_waiting_seconds_total io_stalled_seconds_total",
        ),
    ];
    let alone = "blkio_device_usage_total oom_events_total processes file_descriptors sockets threads threads_max ulimits_soft last_seen start_time_seconds";
    let mut wanted: BTreeSet<String> = alone.split(' ').map(|n| format!("container_{n}")).collect();
    for (group, names) in groups {
        wanted.extend(names.split(' ').map(|n| format!("container_{group}_{n}")));
    }
    let advertised: Vec<String> = descriptors().into_iter().map(|d| d.name).collect();
    assert_eq!(advertised.len(), wanted.len());
    assert_eq!(advertised.into_iter().collect::<BTreeSet<_>>(), wanted);
}

#[test]
fn values_are_in_the_units_of_their_names() {
    with(&full(), |metrics| {
        let value = |name: &str| {
            let metrics = all(&metrics);
            let found = metrics
                .iter()
                .find(|m| m.name == format!("container_{name}"));
            found.unwrap().value.unwrap().value
        };
        assert_eq!(value("cpu_usage_seconds_total"), 3);
        assert_eq!(value("spec_cpu_quota"), 20_000);
        assert_eq!(value("spec_cpu_shares"), 1024);
        assert_eq!(value("spec_memory_swap_limit_bytes"), 64 << 20);
        assert_eq!((value("start_time_seconds"), value("last_seen")), (7, 9));
        assert_eq!(value("threads"), 4);
    });
}

#[test]
fn labels_name_the_pod_its_container_and_the_device() {
    with(&full(), |metrics| {
        let find = |name: &str| {
            let metrics = all(&metrics);
            let found = metrics.into_iter().find(|m| m.name == name);
            found.unwrap().label_values.clone()
        };
        let written = find("container_fs_writes_bytes_total");
        assert_eq!(written, ["web", "default", "app", "c1", "img", "dev8-1"]);
        let received = find("container_network_receive_bytes_total");
        assert_eq!(received, ["web", "default", "", "p1", "", "eth0"]);
    });
}

#[test]
fn a_kernel_with_few_counters_still_gives_what_critest_requires() {
    let tolerated = [
        "hugetlb",
        "pressure",
        "spec_cpu_quota",
        "reservation",
        "fs_reads",
        "fs_writes",
        "blkio",
    ];
    let stats = Stats {
        cpu: Some(Cpu::default()),
        memory: Some(Memory::default()),
        ..Stats::default()
    };
    with(&stats, |metrics| {
        let seen: BTreeSet<String> = all(&metrics).iter().map(|m| m.name.clone()).collect();
        for descriptor in descriptors() {
            let may_miss = tolerated.iter().any(|t| descriptor.name.contains(t));
            assert!(
                may_miss || seen.contains(&descriptor.name),
                "{}",
                descriptor.name
            );
        }
    });
}

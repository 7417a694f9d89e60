//! The fields of a sample that kubelet and crictl read.

use super::*;
use crate::cgroup::{Cpu, Memory, Pids, Pressure, Stats, Swap};
use cni_shim::Counters;

fn sample() -> Sample {
    let line = PressureLine {
        avg10: 1.5,
        total_ns: 7000,
        ..PressureLine::default()
    };
    let psi = Psi {
        some: line,
        full: PressureLine::default(),
    };
    Sample {
        at_ns: 99,
        nano_cores: None,
        stats: Stats {
            cpu: Some(Cpu {
                usage_ns: 5_000_000_000,
                ..Cpu::default()
            }),
            memory: Some(Memory {
                usage: 100,
                inactive_file: 30,
                anon: 50,
                limit: Some(200),
                pgfault: 7,
                pgmajfault: 1,
                ..Memory::default()
            }),
            swap: Some(Swap {
                usage: 10,
                limit: Some(4),
            }),
            pids: Some(Pids {
                current: 3,
                limit: None,
            }),
            psi: Pressure {
                cpu: Some(psi),
                ..Pressure::default()
            },
            ..Stats::default()
        },
    }
}

fn number(value: Option<cri::UInt64Value>) -> Option<u64> {
    value.map(|v| v.value)
}

#[test]
fn a_running_container_reports_its_use_at_the_time_of_sampling() {
    let stats = container(cri::ContainerAttributes::default(), Some(&sample()), None);
    let cpu = stats.cpu.unwrap();
    assert_eq!(
        (cpu.timestamp, number(cpu.usage_core_nano_seconds)),
        (99, Some(5_000_000_000))
    );
    assert_eq!(cpu.psi.unwrap().some.unwrap().total, 7000);
    let memory = stats.memory.unwrap();
    assert_eq!(number(memory.working_set_bytes), Some(70));
    assert_eq!(number(memory.available_bytes), Some(130));
    assert_eq!(number(memory.rss_bytes), Some(50));
    assert_eq!(number(memory.major_page_faults), Some(1));
    let swap = stats.swap.unwrap();
    assert_eq!(number(swap.swap_usage_bytes), Some(10));
    assert_eq!(number(swap.swap_available_bytes), Some(0));
    assert!(stats.io.is_none(), "no io.pressure was read");
}

#[test]
fn an_unknown_rate_is_absent_and_never_zero() {
    let mut sample = sample();
    let rate = |s: &Sample| number(cpu(s).unwrap().usage_nano_cores);
    assert_eq!(rate(&sample), None);
    sample.nano_cores = Some(0);
    assert_eq!(rate(&sample), Some(0));
}

#[test]
fn without_a_limit_nothing_is_reported_as_available() {
    let mut sample = sample();
    sample.stats.memory.as_mut().unwrap().limit = None;
    assert_eq!(memory(&sample).unwrap().available_bytes, None);
    let over = &mut sample.stats.memory.as_mut().unwrap();
    (over.limit, over.inactive_file) = (Some(50), 500);
    let usage = memory(&sample).unwrap();
    assert_eq!(number(usage.working_set_bytes), Some(0));
    assert_eq!(number(usage.available_bytes), Some(50));
}

#[test]
fn a_stopped_container_has_attributes_and_layer_only() {
    let layer = LayerUsage {
        at_ns: 5,
        mountpoint: "/snapshots".to_owned(),
        used_bytes: 11,
        inodes_used: 2,
        is_whole: true,
    };
    let attributes = cri::ContainerAttributes {
        id: "c".to_owned(),
        ..cri::ContainerAttributes::default()
    };
    let stats = container(attributes.clone(), None, Some(&layer));
    let only = cri::ContainerStats {
        attributes: Some(attributes),
        writable_layer: stats.writable_layer.clone(),
        ..cri::ContainerStats::default()
    };
    assert_eq!(stats, only);
    let layer = stats.writable_layer.unwrap();
    assert_eq!(layer.fs_id.unwrap().mountpoint, "/snapshots");
    assert_eq!(number(layer.inodes_used), Some(2));
}

#[test]
fn a_pods_own_interface_is_apart_from_the_others_and_lo_is_left_out() {
    let interface = |name: &str, bytes| Interface {
        name: name.to_owned(),
        counters: Counters {
            rx_bytes: bytes,
            ..Counters::default()
        },
    };
    let all = [
        interface("lo", 1),
        interface("net1", 2),
        interface("eth0", 3),
    ];
    let attributes = cri::PodSandboxAttributes::default;
    let linux = pod(attributes(), &sample(), Some(&all), Vec::new())
        .linux
        .unwrap();
    let network = linux.network.unwrap();
    assert_eq!(number(network.default_interface.unwrap().rx_bytes), Some(3));
    let others: Vec<String> = network.interfaces.into_iter().map(|i| i.name).collect();
    assert_eq!(others, ["net1"]);
    assert_eq!(number(linux.process.unwrap().process_count), Some(3));
    let host = pod(attributes(), &sample(), None, Vec::new())
        .linux
        .unwrap();
    assert_eq!(host.network, None);
}

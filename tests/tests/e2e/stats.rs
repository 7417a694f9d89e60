//! Statistics and metrics: CRI-120, CRI-150…158.

use std::collections::BTreeMap;

use cairn_tests::{
    Daemon,
    client::Cri,
    cri::{self, ContainerState},
    pod::host_network,
    until,
};
use tonic::Code;

/// Uses some CPU, writes some files, prints a line and continues.
const WORK: &str = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; \
                    dd if=/dev/zero of=/written bs=1k count=64 2>/dev/null; echo done; \
                    exec sleep 1000";

async fn stats(cri: &Cri, id: &str) -> Result<cri::ContainerStats, tonic::Status> {
    let request = cri::ContainerStatsRequest {
        container_id: id.to_owned(),
    };
    let answer = cri.client.runtime.clone().container_stats(request).await?;
    Ok(answer.into_inner().stats.expect("an answer holds stats"))
}

async fn list(cri: &Cri, filter: cri::ContainerStatsFilter) -> Vec<cri::ContainerStats> {
    let request = cri::ListContainerStatsRequest {
        filter: Some(filter),
    };
    let mut runtime = cri.client.runtime.clone();
    let answer = runtime.list_container_stats(request).await;
    answer.expect("ListContainerStats").into_inner().stats
}

fn ids(stats: &[cri::ContainerStats]) -> Vec<&str> {
    let attributes = stats.iter().map(|stats| stats.attributes.as_ref());
    attributes
        .map(|attributes| {
            attributes
                .expect("attributes are always present")
                .id
                .as_str()
        })
        .collect()
}

fn value(value: &Option<cri::UInt64Value>) -> u64 {
    value.as_ref().expect("the value is known").value
}

#[tokio::test]
async fn a_running_container_tells_what_it_uses_and_time_goes_on_between_two_samples() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("uses").await;
    let container = pod.run("c", &["sh", "-c", WORK]).await;
    container.says("done").await;
    let one = stats(&pod.cri, &container.id).await.expect("stats");
    let two = stats(&pod.cri, &container.id).await.expect("stats");
    let attributes = one.attributes.clone().expect("attributes");
    assert_eq!(attributes.metadata.map(|m| m.name), Some("c".to_owned()));
    let (cpu, later) = (one.cpu.expect("cpu"), two.cpu.expect("cpu"));
    assert!(cpu.timestamp > 0 && later.timestamp > cpu.timestamp);
    assert!(value(&cpu.usage_core_nano_seconds) > 0);
    assert!(value(&later.usage_core_nano_seconds) >= value(&cpu.usage_core_nano_seconds));
    let memory = one.memory.expect("memory");
    let (working_set, usage) = (value(&memory.working_set_bytes), value(&memory.usage_bytes));
    assert!(0 < working_set && working_set <= usage);
    let layer = until("the layer is counted", || async {
        stats(&pod.cri, &container.id).await.ok()?.writable_layer
    })
    .await;
    assert!(value(&layer.used_bytes) >= 64 << 10, "{layer:?}");
    assert!(value(&layer.inodes_used) >= 1, "{layer:?}");
    let mountpoint = layer.fs_id.expect("a file system").mountpoint;
    assert!(daemon.yard.inside(&mountpoint).is_dir(), "{mountpoint}");
    // Rates are unknown at first, and must not be reported as 0 then.
    until("a rate is known", || async {
        let cpu = stats(&pod.cri, &container.id).await.ok()?.cpu?;
        cpu.usage_nano_cores
    })
    .await;
    pod.end().await;
}

#[tokio::test]
async fn a_list_holds_containers_in_every_state_and_filters_narrow_it() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let (one, two) = (cri.pod("one").await, cri.pod("two").await);
    let created = one.create("created", &["sleep", "1000"]).await;
    let running = one.sleeper("running").await;
    let exited = two.run("exited", &["true"]).await;
    exited.exited().await;
    let all = list(&cri, cri::ContainerStatsFilter::default()).await;
    assert_eq!(ids(&all), [&*created.id, &running.id, &exited.id]);
    let reported: Vec<_> = all
        .iter()
        .map(|s| (s.cpu.is_some(), s.memory.is_some()))
        .collect();
    assert_eq!(reported, [(false, false), (true, true), (false, false)]);
    until("a stopped one still has its layer", || async {
        stats(&cri, &exited.id).await.ok()?.writable_layer
    })
    .await;
    let of_pod = |id: &str| cri::ContainerStatsFilter {
        pod_sandbox_id: id.to_owned(),
        ..Default::default()
    };
    assert_eq!(ids(&list(&cri, of_pod(&two.id)).await), [&exited.id]);
    let mut both = of_pod(&one.id);
    both.id = running.id[..13].to_owned();
    assert_eq!(ids(&list(&cri, both.clone()).await), [&running.id]);
    both.pod_sandbox_id.clone_from(&two.id);
    assert!(
        list(&cri, both).await.is_empty(),
        "both conditions must hold"
    );
    let missing = stats(&cri, &"0".repeat(64)).await;
    assert_eq!(missing.expect_err("there is none").code(), Code::NotFound);
    one.end().await;
    two.end().await;
}

#[tokio::test]
async fn a_pod_tells_its_network_and_processes_while_it_is_ready() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let pod = cri.pod("pod").await;
    let container = pod.sleeper("c").await;
    let mut runtime = cri.client.runtime.clone();
    let request = cri::PodSandboxStatsRequest {
        pod_sandbox_id: pod.id.clone(),
    };
    let answer = runtime.pod_sandbox_stats(request.clone()).await;
    let stats = answer.expect("PodSandboxStats").into_inner().stats;
    let linux = stats.expect("stats").linux.expect("linux");
    let network = linux.network.expect("a pod network");
    let eth0 = network.default_interface.expect("eth0");
    assert!(eth0.name == "eth0" && eth0.tx_bytes.is_some());
    assert!(network.interfaces.iter().all(|i| i.name != "lo"));
    assert!(value(&linux.process.expect("processes").process_count) >= 1);
    assert!(linux.cpu.is_some() && linux.memory.is_some());
    assert_eq!(ids(&linux.containers), [&container.id]);
    let all = || async {
        let request = cri::ListPodSandboxStatsRequest { filter: None };
        let answer = cri
            .client
            .runtime
            .clone()
            .list_pod_sandbox_stats(request)
            .await;
        answer
            .expect("ListPodSandboxStats")
            .into_inner()
            .stats
            .len()
    };
    assert_eq!(all().await, 1);
    pod.stop().await.expect("StopPodSandbox");
    assert_eq!(all().await, 0, "a pod that is not ready is left out");
    let stopped = runtime.pod_sandbox_stats(request).await;
    let code = stopped.expect_err("it is not ready").code();
    assert_eq!(code, Code::FailedPrecondition);
    let request = cri::PodSandboxStatsRequest {
        pod_sandbox_id: "0".repeat(64),
    };
    let missing = runtime.pod_sandbox_stats(request).await;
    assert_eq!(missing.expect_err("there is none").code(), Code::NotFound);
    pod.end().await;
}

#[tokio::test]
async fn a_pod_in_the_hosts_network_has_statistics_and_no_network() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut config = cri.pod_config("host");
    host_network(&mut config);
    let pod = cri.try_pod(config).await.expect("RunPodSandbox");
    let request = cri::PodSandboxStatsRequest {
        pod_sandbox_id: pod.id.clone(),
    };
    let answer = cri.client.runtime.clone().pod_sandbox_stats(request).await;
    let stats = answer.expect("PodSandboxStats").into_inner().stats;
    assert_eq!(stats.expect("stats").linux.expect("linux").network, None);
    pod.end().await;
}

/// Metrics that critest permits without a sample: this kernel or this container may not have them.
const OPTIONAL: [&str; 9] = [
    "hugetlb",
    "pressure",
    "ulimits",
    "quota",
    "reservation",
    "fs_reads",
    "fs_writes",
    "blkio",
    "max_open",
];

#[tokio::test]
async fn every_advertised_metric_has_a_sample_with_its_descriptors_labels() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let pod = cri.pod("metrics").await;
    let mut config = cri.container_config("c", &["sleep", "1000"]);
    config.linux.as_mut().expect("set").resources = Some(cri::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 20_000,
        cpu_shares: 1024,
        memory_limit_in_bytes: 64 << 20,
        memory_swap_limit_in_bytes: 64 << 20,
        ..Default::default()
    });
    let container = pod.started(config).await;
    until("its layer is counted", || async {
        stats(&cri, &container.id).await.ok()?.writable_layer
    })
    .await;
    let mut runtime = cri.client.runtime.clone();
    let answer = runtime
        .list_metric_descriptors(cri::ListMetricDescriptorsRequest {})
        .await;
    let descriptors = answer
        .expect("ListMetricDescriptors")
        .into_inner()
        .descriptors;
    let labels: BTreeMap<_, _> = descriptors
        .iter()
        .map(|d| (d.name.as_str(), d.label_keys.len()))
        .collect();
    let answer = runtime
        .list_pod_sandbox_metrics(cri::ListPodSandboxMetricsRequest {})
        .await;
    let pods = answer
        .expect("ListPodSandboxMetrics")
        .into_inner()
        .pod_metrics;
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0].container_metrics.len(), 1);
    assert_eq!(pods[0].container_metrics[0].container_id, container.id);
    let samples: Vec<_> = pods[0]
        .metrics
        .iter()
        .chain(&pods[0].container_metrics[0].metrics)
        .collect();
    for sample in &samples {
        assert_eq!(
            labels.get(sample.name.as_str()),
            Some(&sample.label_values.len()),
            "{sample:?}"
        );
    }
    for name in labels.keys() {
        let optional = OPTIONAL.iter().any(|part| name.contains(part));
        assert!(
            optional || samples.iter().any(|s| s.name == *name),
            "{name}"
        );
    }
    pod.end().await;
}

#[tokio::test]
async fn a_streamed_list_of_statistics_holds_what_the_list_holds() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let mut newer = cri.client.newer.clone();
    let answer = newer
        .stream_container_stats(proto_cri::v1::StreamContainerStatsRequest::default())
        .await;
    let mut empty = answer.expect("StreamContainerStats").into_inner();
    assert!(empty.message().await.expect("a good end").is_none());
    let pod = cri.pod("streamed").await;
    let container = pod.sleeper("c").await;
    assert_eq!(container.state().await, ContainerState::ContainerRunning);
    let answer = newer
        .stream_container_stats(proto_cri::v1::StreamContainerStatsRequest::default())
        .await;
    let mut stream = answer.expect("StreamContainerStats").into_inner();
    let mut found = Vec::new();
    while let Some(message) = stream.message().await.expect("a good end") {
        assert!(!message.container_stats.is_empty());
        found.extend(message.container_stats);
    }
    let attributes = found.iter().filter_map(|stats| stats.attributes.as_ref());
    assert_eq!(
        attributes.map(|a| &a.id).collect::<Vec<_>>(),
        [&container.id]
    );
    let answer = newer
        .stream_pod_sandbox_metrics(proto_cri::v1::StreamPodSandboxMetricsRequest {})
        .await;
    let mut stream = answer.expect("StreamPodSandboxMetrics").into_inner();
    let message = stream.message().await.expect("a message").expect("one pod");
    assert_eq!(message.pod_sandbox_metrics[0].pod_sandbox_id, pod.id);
    pod.end().await;
}

//! The networks of pods, for `cairn network`: recorded ones, and those without a pod.

use std::collections::HashSet;

use cni_shim::{Attached, Leftover};
use proto_cairn::v1::{CollectedNetwork, HostPort, PodNetwork};

use crate::pod::{
    error::{AtStep as _, Result},
    pods::Pods,
    record::PodPhase,
    registry::Registry,
};

/// Sorted by the pods' names; includes pods on the node's network.
///
/// # Errors
/// Only that the daemon is shutting down.
pub(super) async fn list(cx: &Pods) -> Result<Vec<PodNetwork>> {
    let attached = cx.node.network.list().await.step("list networks")?;
    let mut listed: Vec<_> = attached
        .into_iter()
        .map(|one| describe(&cx.registry, one))
        .collect();
    let pods = cx.registry.pods();
    let on_host = pods
        .iter()
        .map(|pod| pod.cell.get())
        .filter(|record| record.host_network() && record.phase == PodPhase::Ready);
    listed.extend(on_host.map(|record| PodNetwork {
        pod: record.id.clone(),
        name: name(&cx.registry, &record.id),
        kind: "host".to_owned(),
        ..PodNetwork::default()
    }));
    listed.sort_by(|a, b| (&a.name, &a.pod).cmp(&(&b.name, &b.pod)));
    Ok(listed)
}

/// Networks without a pod, and, except with `look`, whether they were removed now.
pub(super) async fn collect(cx: &Pods, look: bool) -> Vec<CollectedNetwork> {
    let left = cx.node.network.collect(|| owners(&cx.registry), look).await;
    left.into_iter().map(collected).collect()
}

/// Ids of pods that may have a network, including unfinished and unreadable ones.
fn owners(registry: &Registry) -> HashSet<String> {
    let held = registry.held();
    let of_held = held.containers.values().filter_map(|one| one.pod.clone());
    let pods = registry.all().into_iter().map(|pod| pod.id.clone());
    pods.chain(held.pods.keys().cloned())
        .chain(of_held)
        .collect()
}

fn describe(registry: &Registry, attached: Attached) -> PodNetwork {
    let ports = attached.ports.iter().map(|port| HostPort {
        host_port: port.host_port.into(),
        container_port: port.container_port.into(),
        protocol: port.protocol.to_string(),
        host_ip: port.host_ip.map_or_else(String::new, |ip| ip.to_string()),
    });
    PodNetwork {
        name: name(registry, &attached.sandbox_id),
        kind: if attached.by_cni { "cni" } else { "bridge" }.to_owned(),
        host_ports: ports.collect(),
        pod: attached.sandbox_id,
        network: attached.network,
        interface: attached.interface,
        addresses: attached.addresses,
        netns: attached.netns.display().to_string(),
        problem: attached.problem.unwrap_or_default(),
    }
}

/// `namespace/name`, if known.
fn name(registry: &Registry, id: &str) -> String {
    let held = registry.held();
    let metadata = match registry.any(id) {
        Some(pod) => Some(pod.cell.get().metadata()),
        None => held
            .pods
            .get(id)
            .and_then(|pod| pod.config.metadata.clone()),
    };
    metadata.map_or_else(String::new, |m| format!("{}/{}", m.namespace, m.name))
}

fn collected(left: Leftover) -> CollectedNetwork {
    CollectedNetwork {
        what: left.what.to_owned(),
        pod: left.sandbox_id,
        network: left.network,
        problem: left
            .outcome
            .err()
            .map_or_else(String::new, |error| error.to_string()),
    }
}

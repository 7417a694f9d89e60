//! Whether a pod on the bridge still has what it was given: links, addresses, routes, rules, limits.

use std::net::IpAddr;
use std::path::Path;

use super::limits::ifb_name;
use super::{Bridge, BridgeError};
use crate::addr::Mac;
use crate::link;
use crate::namespaces::{in_netns, is_namespace};
use crate::netlink::{Family, Socket};
use crate::record::OnBridge;
use crate::route;
use crate::tc;
use crate::types::INTERFACE;

impl Bridge {
    /// What differs, a line each; empty if nothing does.
    pub(crate) fn check(
        &self,
        netns: &Path,
        endpoint: &OnBridge,
    ) -> Result<Vec<String>, BridgeError> {
        let (mut differs, gateways) = {
            let mut state = self.state();
            let gateways = state.gateways();
            let mut differs = check_node(&mut state.route, &self.config.name, endpoint)?;
            differs.extend(state.firewall.missing(endpoint)?);
            (differs, gateways)
        };
        if is_namespace(netns) {
            differs.extend(in_netns(netns, || check_pod(endpoint, &gateways))??);
        } else {
            differs.push(format!("{} is no network namespace", netns.display()));
        }
        Ok(differs)
    }
}

fn check_node(
    socket: &mut Socket,
    bridge: &str,
    endpoint: &OnBridge,
) -> Result<Vec<String>, BridgeError> {
    let mut differs = Vec::new();
    let bridge_index = match link::find(socket, bridge)? {
        None => {
            differs.push(format!("bridge {bridge} is missing"));
            None
        }
        Some(link) => {
            if !link.up {
                differs.push(format!("bridge {bridge} is down"));
            }
            Some(link.index)
        }
    };
    let veth = &endpoint.veth;
    let Some(link) = link::find(socket, veth)? else {
        differs.push(format!("link {veth} is missing"));
        return Ok(differs);
    };
    if !link.up {
        differs.push(format!("link {veth} is down"));
    }
    if bridge_index.is_some_and(|index| index != link.master) {
        differs.push(format!("link {veth} is not on bridge {bridge}"));
    }
    if let Some(limits) = endpoint.limits {
        let queues = tc::queues(socket, link.index)?;
        let has = |kind: &str| queues.iter().any(|queue| queue == kind);
        if limits.ingress_rate > 0 && !has("tbf") {
            differs.push(format!("link {veth} has no limit of what the pod receives"));
        }
        let ifb = ifb_name(veth);
        let through = link::find(socket, &ifb)?;
        if limits.egress_rate > 0 && (!has("ingress") || through.is_none()) {
            differs.push(format!("link {veth} has no limit of what the pod sends"));
        }
    }
    Ok(differs)
}

/// On a thread inside the pod's network namespace.
fn check_pod(endpoint: &OnBridge, gateways: &[IpAddr]) -> Result<Vec<String>, BridgeError> {
    let mut socket = Socket::open(Family::Route)?;
    let Some(link) = link::find(&mut socket, INTERFACE)? else {
        return Ok(vec![format!("the pod has no {INTERFACE}")]);
    };
    let mut differs = Vec::new();
    if !link.up {
        differs.push(format!("{INTERFACE} of the pod is down"));
    }
    if let Some(mac) = endpoint.ips().next().map(Mac::of)
        && link.address != mac.0
    {
        differs.push(format!(
            "{INTERFACE} of the pod has not hardware address {mac}"
        ));
    }
    let addresses = link::addresses(&mut socket, link.index)?;
    for address in endpoint
        .addresses
        .iter()
        .filter(|one| !addresses.contains(one))
    {
        differs.push(format!("{INTERFACE} of the pod lacks address {address}"));
    }
    let ways_out = route::default_gateways(&mut socket, link.index)?;
    for gateway in gateways.iter().filter(|one| !ways_out.contains(one)) {
        differs.push(format!("the pod has no default route via {gateway}"));
    }
    Ok(differs)
}

//! The tables `ip` and `ip6`: masquerading, host ports, and the guard of the node's loopback.

use std::net::{IpAddr, Ipv6Addr};

use super::expr::{Field, Rule};
use super::family::Ip;
use super::table::{Element, Hook, Table, Type};
use crate::addr::{Cidr, ip_bytes};
use crate::netlink::Message;
use crate::record::OnBridge;
use crate::types::{BridgeConfig, PortMapping};

const BY_PORT: &str = "hostports";
const BY_ADDRESS: &str = "hostipports";

const PREROUTING: Hook = nat(0, -100);
const OUTPUT: Hook = nat(3, -100);
const POSTROUTING: Hook = nat(4, 100);
const GUARD: Hook = Hook {
    kind: "filter",
    number: 0,
    priority: -300,
};

const fn nat(number: u32, priority: i32) -> Hook {
    Hook {
        kind: "nat",
        number,
        priority,
    }
}

/// Empties and fills the table of one subnet's family, without the elements.
pub(crate) fn steps(
    table: &Table,
    config: &BridgeConfig,
    subnet: Cidr,
    serve_loopback: bool,
    steps: &mut Vec<Message>,
) {
    let ip = Ip::of(subnet.ip);
    let family = ip as u8;
    let chain = |chain, hook| table.chain(family, chain, hook);
    let rule = |chain, rule| table.rule(family, chain, rule);
    let any = Rule::default;

    steps.extend(table.renew(family));
    let address = match ip {
        Ip::V4 => Type::IpAddr,
        Ip::V6 => Type::Ip6Addr,
    };
    let to = [address, Type::InetService];
    let port = [Type::InetProto, Type::InetService];
    let port_at = [address, Type::InetProto, Type::InetService];
    steps.push(table.set(family, BY_PORT, 1, &port, &to));
    steps.push(table.set(family, BY_ADDRESS, 2, &port_at, &to));

    steps.push(chain("hostports", None));
    steps.push(chain("prerouting", Some(PREROUTING)));
    steps.push(chain("output", Some(OUTPUT)));
    steps.push(chain("postrouting", Some(POSTROUTING)));
    steps.push(rule("hostports", any().dnat_by_map(ip, BY_ADDRESS, true)));
    steps.push(rule("hostports", any().dnat_by_map(ip, BY_PORT, false)));
    let (loopback, prefix) = match ip {
        Ip::V4 => (vec![127, 0, 0, 0], 8),
        Ip::V6 => (ip_bytes(Ipv6Addr::LOCALHOST.into()), 128),
    };
    let loopback = |rule: Rule, field, is| rule.address(field, is, &loopback, prefix);
    for name in ["prerouting", "output"] {
        let all = if serve_loopback {
            any()
        } else {
            // Refused at once, so that a client of "localhost" continues with 127.0.0.1.
            loopback(any(), Field::Destination(ip), false)
        };
        steps.push(rule(name, all.towards_node().jump("hostports")));
    }
    // Pods are reachable from the loopback address only by host ports.
    let from_node = any().goes_out_by(true, &config.name);
    let from_node = loopback(from_node, Field::Source(ip), true);
    steps.push(rule("postrouting", from_node.masquerade()));
    steps.push(chain("guard", Some(GUARD)));
    let from_pod = any().came_in_by(&config.name);
    let from_pod = loopback(from_pod, Field::Destination(ip), true);
    steps.push(rule("guard", from_pod.drop_packet()));
    let network = ip_bytes(subnet.network());
    let of_pods = |rule: Rule, field, is| rule.address(field, is, &network, subnet.prefix);
    let from_pods = || of_pods(any(), Field::Source(ip), true);
    let among_pods = of_pods(from_pods(), Field::Destination(ip), true);
    steps.push(rule("postrouting", among_pods.was_dnated().masquerade()));
    if config.masquerade {
        // Accepting ends this chain only: others still see these packets.
        let not_hidden = config.non_masquerade_cidrs.iter();
        for cidr in not_hidden.filter(|cidr| cidr.ip.is_ipv4() == subnet.ip.is_ipv4()) {
            let network = ip_bytes(cidr.network());
            let known = from_pods().address(Field::Destination(ip), true, &network, cidr.prefix);
            steps.push(rule("postrouting", known.accept()));
        }
        let outwards = of_pods(from_pods(), Field::Destination(ip), false);
        let outwards = outwards.goes_out_by(false, &config.name);
        steps.push(rule("postrouting", outwards.masquerade()));
    }
}

/// The map entries of a pod: one per host port and family of both the pod and the host address.
pub(crate) fn elements(endpoint: &OnBridge) -> impl Iterator<Item = Element> {
    let ports = endpoint.ports.iter();
    ports.flat_map(|port| endpoint.ips().filter_map(|pod| element(*port, pod)))
}

pub(crate) fn element(port: PortMapping, pod: IpAddr) -> Option<Element> {
    if port
        .host_ip
        .is_some_and(|host| host.is_ipv4() != pod.is_ipv4())
    {
        return None;
    }
    let word = |port: u16| [port.to_be_bytes().as_slice(), &[0, 0]].concat();
    let host = port.host_ip.filter(|host| !host.is_unspecified());
    let mut key = host.map(ip_bytes).unwrap_or_default();
    key.extend([port.protocol as u8, 0, 0, 0]);
    key.extend(word(port.host_port));
    let mut data = ip_bytes(pod);
    data.extend(word(port.container_port));
    Some(Element {
        family: Ip::of(pod) as u8,
        set: if host.is_some() { BY_ADDRESS } else { BY_PORT },
        key,
        data: Some(data),
    })
}

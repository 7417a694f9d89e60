//! The table of the family `bridge`: a pod sends only with its own addresses, and no router
//! advertisements. Otherwise it could receive the traffic of other pods, or, by a route that it
//! advertises, that of the node.
//!
//! A frame received by a port of `ports` passes if it is IP or ARP, and its hardware and IP source
//! addresses are the port's own. Frames with a VLAN tag are dropped: they could hide their content.

use super::expr::{Field, Rule};
use super::family::{BRIDGE, Ip};
use super::table::{Element, Hook, Table, Type};
use crate::addr::{Mac, ip_bytes};
use crate::netlink::Message;
use crate::record::OnBridge;

const PORTS: &str = "ports";
const MACS: &str = "macs";
const V4: &str = "addresses4";
const V6: &str = "addresses6";

const CHAIN: &str = "spoof_check";
const HOOK: Hook = Hook {
    kind: "filter",
    number: 0,
    priority: -300,
};

const ETHER_IP: [u8; 2] = [0x08, 0x00];
const ETHER_ARP: [u8; 2] = [0x08, 0x06];
const ETHER_IP6: [u8; 2] = [0x86, 0xdd];
const MLD_REPORT: u8 = 131;
const MLD2_REPORT: u8 = 143;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// Empties and fills the table, without the elements.
pub(crate) fn steps(table: &Table, steps: &mut Vec<Message>) {
    use Type::{EtherAddr, InterfaceName, Ip6Addr, IpAddr};
    steps.extend(table.renew(BRIDGE));
    for (id, (set, key)) in (1..).zip([
        (PORTS, &[InterfaceName][..]),
        (MACS, &[InterfaceName, EtherAddr]),
        (V4, &[InterfaceName, IpAddr]),
        (V6, &[InterfaceName, Ip6Addr]),
    ]) {
        steps.push(table.set(BRIDGE, set, id, key, &[]));
    }
    steps.push(table.chain(BRIDGE, CHAIN, Some(HOOK)));

    let kind = |ether: [u8; 2]| Rule::default().field(Field::EtherType, &ether);
    let unspecified = || kind(ETHER_IP6).field(Field::Source(Ip::V6), &[0; 16]);
    for rule in [
        Rule::default().came_in_by_one_of(false, PORTS).accept(),
        Rule::default()
            .interface_and(Field::EtherSource, false, MACS)
            .drop_packet(),
        kind(ETHER_IP)
            .interface_and(Field::Source(Ip::V4), true, V4)
            .accept(),
        kind(ETHER_ARP)
            .interface_and(Field::ArpSource, true, V4)
            .interface_and(Field::ArpHardware, true, MACS)
            .accept(),
        kind(ETHER_IP6).icmpv6(ROUTER_ADVERTISEMENT).drop_packet(),
        kind(ETHER_IP6).icmpv6(REDIRECT).drop_packet(),
        kind(ETHER_IP6)
            .icmpv6(NEIGHBOUR_ADVERTISEMENT)
            .interface_and(Field::NeighbourTarget, false, V6)
            .drop_packet(),
        kind(ETHER_IP6)
            .interface_and(Field::Source(Ip::V6), true, V6)
            .accept(),
        // Sent by a host before it has an address; receivers learn no address from it.
        unspecified().icmpv6(NEIGHBOUR_SOLICITATION).accept(),
        unspecified().icmpv6(MLD_REPORT).accept(),
        unspecified().icmpv6(MLD2_REPORT).accept(),
        Rule::default().drop_packet(),
    ] {
        steps.push(table.rule(BRIDGE, CHAIN, rule));
    }
}

/// The set entries of a pod: its port and its addresses.
pub(crate) fn elements(endpoint: &OnBridge) -> Vec<Element> {
    let port = super::expr::interface_name(&endpoint.veth);
    let element = |set, rest: &[u8]| Element {
        family: BRIDGE,
        set,
        key: [&port, rest].concat(),
        data: None,
    };
    let mac = Mac::of(endpoint.addresses[0].ip);
    let mut elements = vec![
        element(PORTS, &[]),
        element(MACS, &[&mac.0[..], &[0, 0]].concat()),
        element(V6, &mac.link_local().octets()),
    ];
    for address in &endpoint.addresses {
        let set = if address.ip.is_ipv4() { V4 } else { V6 };
        elements.push(element(set, &ip_bytes(address.ip)));
    }
    elements
}

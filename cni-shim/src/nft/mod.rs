//! The rules of the built-in network: masquerading, host ports, and the guard of the node's loopback.
//!
//! ```text
//! table ip <name> {                                     (and ip6, without the loopback's rules)
//!   map hostports   { type inet_proto . inet_service : ipv4_addr . inet_service }
//!   map hostipports { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }
//!   chain hostports   { dnat by hostipports; dnat by hostports }
//!   chain prerouting  { nat, dstnat;  to an address of this node: jump hostports }
//!   chain output      { nat, dstnat;  to an address of this node: jump hostports }
//!   chain postrouting { nat, srcnat;  from 127/8 out by the bridge: masquerade
//!                                     pod to pod after a dnat: masquerade
//!                                     pod to elsewhere: masquerade }
//!   chain guard       { filter, raw;  in by the bridge to 127/8: drop }
//! }
//! ```
//! The tables are replaced as a whole, atomically, once a run; a pod with host ports adds and removes map elements, a
//! pod without them touches nothing here. The guard is what makes `route_localnet` safe: a genuine answer to the
//! loopback is addressed to the gateway when it comes in.

mod conntrack;
mod expr;

use std::net::IpAddr;

use rustix::io::Errno;

use crate::addr::{Cidr, ip_bytes};
use crate::netlink::{Attrs, Family, Message, NLM_F_APPEND, NLM_F_CREATE, NetlinkError, Socket};
use crate::record::OnBridge;
use crate::types::{BridgeConfig, PortMapping, Protocol};
use expr::{End, Interface, Ip, Rule};

const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFNL_MSG_BATCH_BEGIN: u16 = 16;
const NFNL_MSG_BATCH_END: u16 = 17;
const NFT_MSG_NEWTABLE: u16 = 0;
const NFT_MSG_GETTABLE: u16 = 1;
const NFT_MSG_DELTABLE: u16 = 2;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_NEWRULE: u16 = 6;
const NFT_MSG_NEWSET: u16 = 9;
const NFT_MSG_NEWSETELEM: u16 = 12;
const NFT_MSG_DELSETELEM: u16 = 14;

const HOOK_PREROUTING: u32 = 0;
const HOOK_OUTPUT: u32 = 3;
const HOOK_POSTROUTING: u32 = 4;
const PRIORITY_RAW: i32 = -300;
const PRIORITY_DSTNAT: i32 = -100;
const PRIORITY_SRCNAT: i32 = 100;

const NFT_SET_MAP: u32 = 8;
/// `nft`'s own numbers of data types: they only tell `nft list` how to print. A concatenation is six bits each.
const TYPE_IPADDR: u32 = 7;
const TYPE_IP6ADDR: u32 = 8;
const TYPE_INET_PROTO: u32 = 12;
const TYPE_INET_SERVICE: u32 = 13;

/// Elements in one transaction: as many as surely fit a socket's send buffer.
const TRANSACTION_MAX: usize = 500;

const BY_PORT: &str = "hostports";
const BY_ADDRESS: &str = "hostipports";

/// The tables of one bridge and the socket they are changed through.
#[derive(Debug)]
pub struct Firewall {
    socket: Socket,
    table: String,
    bridge: String,
    subnets: Vec<Cidr>,
    masquerade: bool,
    /// Every element that is to be in the maps.
    elements: Vec<Element>,
}

/// One entry of a map: key and data as the kernel compares them, each part padded to 32 bits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Element {
    ip: Ip,
    map: &'static str,
    key: Vec<u8>,
    data: Vec<u8>,
}

impl Firewall {
    pub fn open(config: &BridgeConfig) -> Result<Self, NetlinkError> {
        Ok(Self {
            socket: Socket::open(Family::Netfilter)?,
            table: config.table.clone(),
            bridge: config.name.clone(),
            subnets: config.subnets.clone(),
            masquerade: config.masquerade,
            elements: Vec::new(),
        })
    }

    /// Counts a pod of an earlier run in, for the next [`Firewall::install`].
    pub fn remember(&mut self, held: &OnBridge) {
        self.elements.extend(elements(held));
    }

    /// Replaces the tables by what they should be, with all known elements, in one transaction (the elements that a
    /// datagram does not hold follow in further ones).
    pub fn install(&mut self) -> Result<(), NetlinkError> {
        let mut steps = Vec::new();
        for subnet in &self.subnets {
            self.table_steps(*subnet, &mut steps);
        }
        let fill = |element| self.element_step(NFT_MSG_NEWSETELEM, element);
        let mut elements = self
            .elements
            .iter()
            .map(fill)
            .collect::<Vec<_>>()
            .into_iter();
        loop {
            steps.extend(elements.by_ref().take(TRANSACTION_MAX));
            if steps.is_empty() {
                return Ok(());
            }
            self.transact(&steps)?;
            steps.clear();
        }
    }

    /// Puts the tables back when somebody has removed them (`nft flush ruleset` does).
    pub fn heal(&mut self) -> Result<(), NetlinkError> {
        for subnet in self.subnets.clone() {
            let ask = self.message(
                family_of(subnet.ip),
                NFT_MSG_GETTABLE,
                0,
                "look it up",
                |a| {
                    a.put_str(1, &self.table);
                },
            );
            match self.socket.ask(&ask) {
                Ok(_) => {}
                Err(error) if error.errno == Errno::NOENT => {
                    tracing::warn!(
                        table = self.table,
                        "an nftables table was removed; putting it back"
                    );
                    return self.install();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes the tables, with all host ports.
    pub fn uninstall(&mut self) -> Result<(), NetlinkError> {
        let table = |subnet: &Cidr, kind| {
            self.message(family_of(subnet.ip), kind, NLM_F_CREATE, "table", |a| {
                a.put_str(1, &self.table);
            })
        };
        // Created first so that the deletion of a missing one cannot fail.
        let steps: Vec<Message> = self
            .subnets
            .iter()
            .flat_map(|subnet| [NFT_MSG_NEWTABLE, NFT_MSG_DELTABLE].map(|kind| table(subnet, kind)))
            .collect();
        self.transact(&steps)
    }

    /// Opens a pod's host ports. On failure the caller closes those that were opened.
    pub fn add_ports(&mut self, held: &OnBridge) -> Result<(), NetlinkError> {
        let added = elements(held);
        match self.change(NFT_MSG_NEWSETELEM, &added) {
            Err(error) if error.errno == Errno::NOENT => {
                self.heal()?;
                self.change(NFT_MSG_NEWSETELEM, &added)?;
            }
            other => other?,
        }
        self.elements.extend(added);
        conntrack::forget_udp(&mut self.socket, held)
    }

    /// Closes a pod's host ports. Those that are closed already are skipped.
    pub fn remove_ports(&mut self, held: &OnBridge) -> Result<(), NetlinkError> {
        let removed = elements(held);
        if let Err(error) = self.change(NFT_MSG_DELSETELEM, &removed) {
            if error.errno != Errno::NOENT {
                return Err(error);
            }
            // One that is missing undid the others: now one by one.
            for element in &removed {
                let step = self.element_step(NFT_MSG_DELSETELEM, element);
                self.transact(&[step.tolerate(Errno::NOENT)])?;
            }
        }
        self.elements.retain(|known| !removed.contains(known));
        conntrack::forget_udp(&mut self.socket, held)
    }

    /// Adds or deletes elements, as many at a time as a datagram holds.
    fn change(&mut self, kind: u16, elements: &[Element]) -> Result<(), NetlinkError> {
        elements.chunks(TRANSACTION_MAX).try_for_each(|chunk| {
            let steps: Vec<Message> = chunk
                .iter()
                .map(|element| self.element_step(kind, element))
                .collect();
            self.transact(&steps)
        })
    }

    fn transact(&mut self, steps: &[Message]) -> Result<(), NetlinkError> {
        let frame = |kind| {
            let fixed = nfgenmsg(0, NFNL_SUBSYS_NFTABLES);
            let step = format!("change nftables table {}", self.table);
            Message::new(kind, 0, step, &fixed, |_| {})
        };
        let (begin, end) = (frame(NFNL_MSG_BATCH_BEGIN), frame(NFNL_MSG_BATCH_END));
        self.socket.transact(&begin, steps, &end)
    }

    fn table_steps(&self, subnet: Cidr, steps: &mut Vec<Message>) {
        let ip = family_of(subnet.ip);
        let table = |kind| {
            self.message(ip, kind, NLM_F_CREATE, "table", |a| {
                a.put_str(1, &self.table);
            })
        };
        // Created first so that the deletion of an old one cannot fail.
        steps.extend([NFT_MSG_NEWTABLE, NFT_MSG_DELTABLE, NFT_MSG_NEWTABLE].map(table));
        steps.push(self.map_step(ip, BY_PORT, 1));
        steps.push(self.map_step(ip, BY_ADDRESS, 2));

        let nat = |hook, priority| Some(("nat", hook, priority));
        steps.push(self.chain_step(ip, "hostports", None));
        steps.push(self.chain_step(ip, "prerouting", nat(HOOK_PREROUTING, PRIORITY_DSTNAT)));
        steps.push(self.chain_step(ip, "output", nat(HOOK_OUTPUT, PRIORITY_DSTNAT)));
        steps.push(self.chain_step(ip, "postrouting", nat(HOOK_POSTROUTING, PRIORITY_SRCNAT)));
        let rule = || Rule::new(ip);
        steps.push(self.rule_step("hostports", rule().dnat_by_map(BY_ADDRESS, true)));
        steps.push(self.rule_step("hostports", rule().dnat_by_map(BY_PORT, false)));
        for chain in ["prerouting", "output"] {
            steps.push(self.rule_step(chain, rule().towards_node().jump("hostports")));
        }
        if ip == Ip::V4 {
            self.loopback_steps(steps);
        }
        let network = ip_bytes(subnet.network());
        let at = |rule: Rule, end, is| rule.address(end, is, &network, subnet.prefix);
        let among_pods = at(at(rule(), End::Source, true), End::Destination, true);
        steps.push(self.rule_step("postrouting", among_pods.was_dnated().masquerade()));
        if self.masquerade {
            let outwards = at(at(rule(), End::Source, true), End::Destination, false);
            let outwards = outwards.interface(Interface::Out, false, &self.bridge);
            steps.push(self.rule_step("postrouting", outwards.masquerade()));
        }
    }

    /// Host ports at 127.0.0.1, and nothing else of 127/8 for pods.
    fn loopback_steps(&self, steps: &mut Vec<Message>) {
        let loopback = [127, 0, 0, 0];
        let rule = || Rule::new(Ip::V4);
        let from_node = rule().interface(Interface::Out, true, &self.bridge);
        let from_node = from_node.address(End::Source, true, &loopback, 8);
        steps.push(self.rule_step("postrouting", from_node.masquerade()));
        steps.push(self.chain_step(
            Ip::V4,
            "guard",
            Some(("filter", HOOK_PREROUTING, PRIORITY_RAW)),
        ));
        let from_pod = rule().interface(Interface::In, true, &self.bridge);
        let from_pod = from_pod.address(End::Destination, true, &loopback, 8);
        steps.push(self.rule_step("guard", from_pod.drop_packet()));
    }

    fn chain_step(&self, ip: Ip, chain: &str, base: Option<(&str, u32, i32)>) -> Message {
        self.message(ip, NFT_MSG_NEWCHAIN, NLM_F_CREATE, chain, |a| {
            a.put_str(1, &self.table).put_str(3, chain);
            if let Some((kind, hook, priority)) = base {
                a.nest(4, |h| {
                    h.put_be32(1, hook).put(2, &priority.to_be_bytes());
                });
                a.put_str(7, kind);
            }
        })
    }

    fn rule_step(&self, chain: &str, rule: Rule) -> Message {
        let ip = rule.ip();
        self.message(
            ip,
            NFT_MSG_NEWRULE,
            NLM_F_CREATE | NLM_F_APPEND,
            chain,
            |a| {
                a.put_str(1, &self.table).put_str(2, chain);
                a.nest(4, |list| *list = rule.into_expressions());
            },
        )
    }

    fn map_step(&self, ip: Ip, map: &str, id: u32) -> Message {
        let address = if ip == Ip::V4 {
            TYPE_IPADDR
        } else {
            TYPE_IP6ADDR
        };
        let by_address = map == BY_ADDRESS;
        let port_key = (TYPE_INET_PROTO << 6) | TYPE_INET_SERVICE;
        let (key_type, key_length) = if by_address {
            ((address << 12) | port_key, ip.length() + 8)
        } else {
            (port_key, 8)
        };
        self.message(ip, NFT_MSG_NEWSET, NLM_F_CREATE, map, |a| {
            a.put_str(1, &self.table)
                .put_str(2, map)
                .put_be32(3, NFT_SET_MAP);
            a.put_be32(4, key_type).put_be32(5, key_length);
            a.put_be32(6, (address << 6) | TYPE_INET_SERVICE)
                .put_be32(7, ip.length() + 4);
            a.put_be32(10, id);
        })
    }

    fn element_step(&self, kind: u16, element: &Element) -> Message {
        self.message(element.ip, kind, NLM_F_CREATE, element.map, |a| {
            a.put_str(1, &self.table).put_str(2, element.map);
            a.nest(3, |list| {
                list.nest(1, |entry| {
                    entry.nest(1, |key| {
                        key.put(1, &element.key);
                    });
                    if kind == NFT_MSG_NEWSETELEM {
                        entry.nest(2, |data| {
                            data.put(1, &element.data);
                        });
                    }
                });
            });
        })
    }

    fn message(
        &self,
        ip: Ip,
        kind: u16,
        flags: u16,
        what: &str,
        fill: impl FnOnce(&mut Attrs),
    ) -> Message {
        let verb = match kind {
            NFT_MSG_DELTABLE | NFT_MSG_DELSETELEM => "remove from",
            NFT_MSG_GETTABLE => "see",
            _ => "add to",
        };
        let step = format!("{verb} nftables table {}: {what}", self.table);
        Message::new(
            (NFNL_SUBSYS_NFTABLES << 8) | kind,
            flags,
            step,
            &nfgenmsg(ip.nfproto(), 0),
            fill,
        )
    }
}

/// The map entries of a pod: one per host port and family that both the pod and the port's host address have.
fn elements(held: &OnBridge) -> Vec<Element> {
    let each = |port: &PortMapping| {
        held.addresses
            .iter()
            .filter_map(move |address| element(*port, address.ip))
            .collect::<Vec<_>>()
    };
    held.ports.iter().flat_map(each).collect()
}

fn element(port: PortMapping, pod: IpAddr) -> Option<Element> {
    if port
        .host_ip
        .is_some_and(|host| host.is_ipv4() != pod.is_ipv4())
    {
        return None;
    }
    let word = |port: u16| [port.to_be_bytes().as_slice(), &[0, 0]].concat();
    let host = port.host_ip.filter(|host| !host.is_unspecified());
    let mut key = host.map(ip_bytes).unwrap_or_default();
    key.extend([protocol_number(port.protocol), 0, 0, 0]);
    key.extend(word(port.host_port));
    let mut data = ip_bytes(pod);
    data.extend(word(port.container_port));
    Some(Element {
        ip: family_of(pod),
        map: if host.is_some() { BY_ADDRESS } else { BY_PORT },
        key,
        data,
    })
}

fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

fn family_of(ip: IpAddr) -> Ip {
    if ip.is_ipv4() { Ip::V4 } else { Ip::V6 }
}

/// `struct nfgenmsg`: family, version, and a number in network order.
fn nfgenmsg(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

//! The rules of the built-in network.
//!
//! ```text
//! table ip <name> {                                     (and ip6, with ::1 for 127/8)
//!   map hostports   { type inet_proto . inet_service : ipv4_addr . inet_service }
//!   map hostipports { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }
//!   chain hostports   { dnat by hostipports; dnat by hostports }
//!   chain prerouting  { nat, dstnat;  to an address of this node: jump hostports }
//!   chain output      { nat, dstnat;  to an address of this node: jump hostports }
//!   chain postrouting { nat, srcnat;  from 127/8 out by the bridge: masquerade
//!                                     pod to pod after a dnat: masquerade
//!                                     pod to subnets of non_masquerade_cidrs: accept
//!                                     pod to elsewhere: masquerade }
//!   chain guard       { filter, raw;  in by the bridge to 127/8: drop }
//! }
//! table bridge <name> {                                 (where the spoof check is on)
//!   set ports { type ifname }                 set macs { type ifname . ether_addr }
//!   set addresses4 { type ifname . ipv4_addr }    set addresses6 { type ifname . ipv6_addr }
//!   chain spoof_check { filter, prerouting;  by a pod's port, and not with the pod's own addresses: drop }
//! }
//! ```
//! The answers to host ports at `::1` need a route besides, see [`crate::route::add_loopback6_route`].
//!
//! The tables are replaced as a whole, atomically, once a run; a pod adds and removes elements of sets and maps. The
//! guard is what makes `route_localnet` safe: a genuine answer to the loopback is addressed to the gateway when it
//! comes in.

mod conntrack;
mod expr;
mod family;
mod nat;
mod spoof_check;
mod table;

use std::fs;

use rustix::io::Errno;

use crate::netlink::{Family, Message, NetlinkError, Socket};
use crate::record::OnBridge;
use crate::types::BridgeConfig;
use family::{BRIDGE, Ip};
use table::{Change, Element, Table};

/// Elements in one transaction: as many as surely fit a socket's send buffer.
const TRANSACTION_MAX: usize = 500;

/// Whether host ports at `::1` can be served: with this set, bridges show frames to the rules of `ip6` before the kernel
/// sees them, where answers become ones to `::1` too early, and are dropped as if they had come so by the wire.
pub(crate) fn serves_loopback6() -> bool {
    let shown = fs::read_to_string("/proc/sys/net/bridge/bridge-nf-call-ip6tables");
    shown.map_or(true, |text| text.trim() == "0")
}

/// Whether the kernel has nftables and lets us see them.
pub fn probe() -> Result<(), NetlinkError> {
    let mut socket = Socket::open(Family::Netfilter)?;
    socket.ask(&table::generation()).map(drop)
}

/// The tables of one bridge and the socket they are changed through.
#[derive(Debug)]
pub(crate) struct Firewall {
    socket: Socket,
    table: Table,
    config: BridgeConfig,
    /// Whether the rules serve host ports at `::1`.
    loopback6: bool,
    /// Every element that is to be in the sets and maps.
    elements: Vec<Element>,
}

impl Firewall {
    pub(crate) fn open(config: &BridgeConfig) -> Result<Self, NetlinkError> {
        Ok(Self {
            socket: Socket::open(Family::Netfilter)?,
            table: Table(config.table.clone()),
            config: config.clone(),
            loopback6: serves_loopback6(),
            elements: Vec::new(),
        })
    }

    /// Counts a pod of an earlier run in, for the next [`Firewall::install`].
    pub(crate) fn remember(&mut self, endpoint: &OnBridge) {
        self.elements.extend(nat::elements(endpoint));
        self.elements.extend(self.sources(endpoint));
    }

    /// Replaces the tables by what they should be, with all known elements, in one transaction (the elements that a
    /// datagram does not hold follow in further ones).
    pub(crate) fn install(&mut self) -> Result<(), NetlinkError> {
        let mut steps = Vec::new();
        self.loopback6 = serves_loopback6();
        for subnet in &self.config.subnets {
            let loopback = self.loopback6 || subnet.ip.is_ipv4();
            nat::steps(&self.table, &self.config, *subnet, loopback, &mut steps);
        }
        if self.config.spoof_check {
            spoof_check::steps(&self.table, &mut steps);
        } else {
            steps.extend(self.table.remove(BRIDGE));
        }
        let fitting = self.elements.len().min(TRANSACTION_MAX);
        let (first, rest) = self.elements.split_at(fitting);
        let rest = rest.to_vec();
        steps.extend(
            first
                .iter()
                .map(|element| self.table.element(Change::Add, element)),
        );
        self.transact(&steps)?;
        self.change(Change::Add, &rest)
    }

    /// Puts the tables back when somebody has removed them (`nft flush ruleset` does), or set the node otherwise.
    pub(crate) fn heal(&mut self) -> Result<(), NetlinkError> {
        if self.loopback6 != serves_loopback6() {
            return self.install();
        }
        for family in self.families() {
            let request = self.table.look_up(family).tolerate(Errno::NOENT);
            if self.socket.ask(&request)?.is_empty() {
                tracing::warn!(
                    table = self.table.0,
                    "an nftables table was removed; restoring it"
                );
                return self.install();
            }
        }
        Ok(())
    }

    /// Lets a pod send under its own addresses, and no others: before its link exists, so that it never can.
    pub(crate) fn add_sources(&mut self, endpoint: &OnBridge) -> Result<(), NetlinkError> {
        let added = self.sources(endpoint);
        self.add(added)
    }

    /// Forgets a pod's addresses: once its link is gone, for a port that is not in the set is not looked at.
    pub(crate) fn remove_sources(&mut self, endpoint: &OnBridge) -> Result<(), NetlinkError> {
        let removed = self.sources(endpoint);
        self.remove(&removed)
    }

    /// Opens a pod's host ports. On failure the caller closes those that were opened.
    pub(crate) fn add_ports(&mut self, endpoint: &OnBridge) -> Result<(), NetlinkError> {
        self.add(nat::elements(endpoint).collect())?;
        conntrack::forget_udp(&mut self.socket, endpoint)
    }

    /// Closes a pod's host ports. Those that are closed already are skipped.
    pub(crate) fn remove_ports(&mut self, endpoint: &OnBridge) -> Result<(), NetlinkError> {
        let removed: Vec<Element> = nat::elements(endpoint).collect();
        self.remove(&removed)?;
        conntrack::forget_udp(&mut self.socket, endpoint)
    }

    fn sources(&self, endpoint: &OnBridge) -> Vec<Element> {
        if self.config.spoof_check {
            spoof_check::elements(endpoint)
        } else {
            Vec::new()
        }
    }

    /// The families in which there is a table of ours.
    fn families(&self) -> Vec<u8> {
        let subnets = self.config.subnets.iter();
        let ip = subnets.map(|subnet| Ip::of(subnet.ip) as u8);
        ip.chain(self.config.spoof_check.then_some(BRIDGE))
            .collect()
    }

    fn add(&mut self, added: Vec<Element>) -> Result<(), NetlinkError> {
        match self.change(Change::Add, &added) {
            Err(error) if error.errno == Errno::NOENT => {
                self.heal()?;
                self.change(Change::Add, &added)?;
            }
            other => other?,
        }
        self.elements.extend(added);
        Ok(())
    }

    fn remove(&mut self, removed: &[Element]) -> Result<(), NetlinkError> {
        if let Err(error) = self.change(Change::Remove, removed) {
            if error.errno != Errno::NOENT {
                return Err(error);
            }
            // One that is missing undid the others: now one by one.
            for element in removed {
                let step = self.table.element(Change::Remove, element);
                self.transact(&[step.tolerate(Errno::NOENT)])?;
            }
        }
        self.elements.retain(|known| !removed.contains(known));
        Ok(())
    }

    /// Adds or removes elements, as many at a time as a datagram holds.
    fn change(&mut self, change: Change, elements: &[Element]) -> Result<(), NetlinkError> {
        elements.chunks(TRANSACTION_MAX).try_for_each(|chunk| {
            let steps: Vec<Message> = chunk
                .iter()
                .map(|element| self.table.element(change, element))
                .collect();
            self.transact(&steps)
        })
    }

    fn transact(&mut self, steps: &[Message]) -> Result<(), NetlinkError> {
        let [begin, end] = self.table.frame();
        self.socket.transact(&begin, steps, &end)
    }
}

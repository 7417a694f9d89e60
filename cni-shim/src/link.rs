//! Links and addresses: the few rtnetlink messages a pod's network is made of.
//!
//! Functions here only build messages or read answers; who sends them, and in which network namespace, is the
//! caller's business.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::addr::{Cidr, Mac, ip_bytes, ip_from};
use crate::netlink::{
    self, Message, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NetlinkError, Socket,
};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;

const IFLA_ADDRESS: u16 = 1;
pub(crate) const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
pub(crate) const IFLA_LINKINFO: u16 = 18;
const IFLA_STATS64: u16 = 23;
const IFLA_NET_NS_FD: u16 = 28;
pub(crate) const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_INFO_SLAVE_DATA: u16 = 5;
const IFLA_BRPORT_MODE: u16 = 4;
const VETH_INFO_PEER: u16 = 1;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_BROADCAST: u16 = 4;
const IFA_FLAGS: u16 = 8;
const IFA_F_NODAD: u32 = 0x2;

const AF_UNSPEC: u8 = 0;
pub(crate) const AF_INET: u8 = 2;
/// Multicast group of link changes.
pub(crate) const RTMGRP_LINK: u32 = 1;
pub(crate) const AF_INET6: u8 = 10;
const IFF_UP: u32 = 1;
const IFINFO: usize = 16;
const IFADDR: usize = 8;
/// The loopback device has this index in every network namespace.
const LOOPBACK: u32 = 1;

/// A link as the kernel reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// `bridge`, `veth`…; empty for a physical device.
    pub kind: String,
    pub up: bool,
    pub counters: Counters,
    /// Index of the bridge it is a port of, or 0.
    pub(crate) master: u32,
    /// Its hardware address.
    pub(crate) address: Vec<u8>,
}

/// A link's traffic since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_dropped: u64,
    pub tx_dropped: u64,
}

impl Counters {
    fn parse(stats64: &[u8]) -> Self {
        let at = |position: usize| {
            let bytes = stats64.get(position * 8..position * 8 + 8);
            bytes
                .and_then(|b| b.try_into().ok())
                .map_or(0, u64::from_ne_bytes)
        };
        Self {
            rx_packets: at(0),
            tx_packets: at(1),
            rx_bytes: at(2),
            tx_bytes: at(3),
            rx_errors: at(4),
            tx_errors: at(5),
            rx_dropped: at(6),
            tx_dropped: at(7),
        }
    }
}

/// Asks for a link by name; `None` when there is none.
pub(crate) fn find(socket: &mut Socket, name: &str) -> Result<Option<Link>, NetlinkError> {
    let request = by_name(RTM_GETLINK, 0, format!("look up link {name}"), name);
    match socket.ask(&request) {
        Ok(replies) => Ok(links(&replies).next()),
        Err(error) if error.errno == Errno::NODEV => Ok(None),
        Err(error) => Err(error),
    }
}

/// Every link of the socket's network namespace.
pub(crate) fn list(socket: &mut Socket) -> Result<Vec<Link>, NetlinkError> {
    let request = Message::new(RTM_GETLINK, NLM_F_DUMP, "list links", &ifinfo(0, 0), |a| a);
    Ok(links(&socket.ask(&request)?).collect())
}

/// The addresses of one link.
pub(crate) fn addresses(socket: &mut Socket, index: u32) -> Result<Vec<Cidr>, NetlinkError> {
    let request = Message::new(
        RTM_GETADDR,
        NLM_F_DUMP,
        "list addresses",
        &[0u8; IFADDR],
        |a| a,
    );
    let replies = socket.ask(&request)?;
    let of_link = replies.iter().filter(|reply| {
        reply.kind == RTM_NEWADDR && reply.body.get(4..8) == Some(&index.to_ne_bytes()[..])
    });
    let parse = |reply: &netlink::Reply| {
        let prefix = *reply.body.get(1)?;
        let address = |kind| reply.attribute(IFADDR, kind);
        let bytes = address(IFA_LOCAL).or_else(|| address(IFA_ADDRESS))?;
        Cidr::new(ip_from(bytes)?, prefix)
    };
    Ok(of_link.filter_map(parse).collect())
}

/// Makes a link of the kind that `fill` says, up.
pub(crate) fn new_link(
    step: String,
    fill: impl FnOnce(&mut netlink::Attrs) -> &mut netlink::Attrs,
) -> Message {
    let flags = NLM_F_CREATE | NLM_F_EXCL;
    Message::new(RTM_NEWLINK, flags, step, &ifinfo(0, IFF_UP), fill)
}

/// Makes a bridge, up, with a hardware address of its own (it would else follow its ports').
pub(crate) fn add_bridge(name: &str, mac: Mac, mtu: Option<u32>) -> Message {
    new_link(format!("create bridge {name}"), |a| {
        a.put_str(IFLA_IFNAME, name).put(IFLA_ADDRESS, &mac.0);
        if let Some(mtu) = mtu {
            a.put_u32(IFLA_MTU, mtu);
        }
        a.nest(IFLA_LINKINFO, |info| info.put(IFLA_INFO_KIND, b"bridge"))
    })
}

/// Parameters of a veth pair between a bridge and a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VethPair<'a> {
    pub(crate) host_name: &'a str,
    /// Index of the bridge the host's end joins.
    pub(crate) bridge: u32,
    pub(crate) pod_name: &'a str,
    pub(crate) pod_mac: Mac,
    /// The pod's network namespace: its end is made there, never seen by the host.
    pub(crate) netns: BorrowedFd<'a>,
    pub(crate) mtu: Option<u32>,
}

/// Makes the pair, the host's end up.
pub(crate) fn add_veth(pair: &VethPair<'_>) -> Message {
    new_link(format!("create veth pair {}", pair.host_name), |a| {
        a.put_str(IFLA_IFNAME, pair.host_name)
            .put_u32(IFLA_MASTER, pair.bridge);
        if let Some(mtu) = pair.mtu {
            a.put_u32(IFLA_MTU, mtu);
        }
        a.nest(IFLA_LINKINFO, |info| {
            info.put(IFLA_INFO_KIND, b"veth");
            info.nest(IFLA_INFO_DATA, |data| {
                // Not up yet: while the pair is made, its ends do not know each other and the kernel answers ENOTCONN.
                data.nest_after(VETH_INFO_PEER, &ifinfo(0, 0), |peer| {
                    peer.put_str(IFLA_IFNAME, pair.pod_name)
                        .put(IFLA_ADDRESS, &pair.pod_mac.0)
                        .put(IFLA_NET_NS_FD, &pair.netns.as_raw_fd().to_ne_bytes());
                    if let Some(mtu) = pair.mtu {
                        peer.put_u32(IFLA_MTU, mtu);
                    }
                    peer
                })
            })
        })
    })
}

/// Lets a bridge port send back what came in by it: a pod that reaches itself through its own host port (CRI-538).
pub(crate) fn set_hairpin(port: &str) -> Message {
    let step = format!("set hairpin mode of {port}");
    Message::new(RTM_NEWLINK, 0, step, &ifinfo(0, 0), |a| {
        a.put_str(IFLA_IFNAME, port).nest(IFLA_LINKINFO, |info| {
            info.put(IFLA_INFO_SLAVE_KIND, b"bridge");
            info.nest(IFLA_INFO_SLAVE_DATA, |data| {
                data.put(IFLA_BRPORT_MODE, &[1])
            })
        })
    })
}

/// Brings the loopback device up; the kernel gives it its addresses (CRI-535).
pub(crate) fn loopback_up() -> Message {
    Message::new(
        RTM_NEWLINK,
        0,
        "bring lo up",
        &ifinfo(LOOPBACK, IFF_UP),
        |a| a,
    )
}

/// Brings a link up by name.
pub(crate) fn set_up(name: &str) -> Message {
    by_name(RTM_NEWLINK, IFF_UP, format!("bring {name} up"), name)
}

/// Deletes a link by name; one that is gone already counts as deleted.
pub(crate) fn delete(name: &str) -> Message {
    by_name(RTM_DELLINK, 0, format!("delete link {name}"), name).tolerate(Errno::NODEV)
}

/// Whether an event says that the link `name` is gone. The same type with a bridge's family only says that a port left.
pub(crate) fn is_gone(event: &netlink::Reply, name: &str) -> bool {
    event.kind == RTM_DELLINK
        && event.body.first() == Some(&AF_UNSPEC)
        && event.attribute(IFINFO, IFLA_IFNAME).map(text).as_deref() == Some(name)
}

/// Gives a link an address. IPv6 skips duplicate detection: addresses here are handed out once.
pub(crate) fn add_address(index: u32, address: Cidr) -> Message {
    let v4 = address.ip.is_ipv4();
    let mut fixed = [0u8; IFADDR];
    fixed[0] = if v4 { AF_INET } else { AF_INET6 };
    fixed[1] = address.prefix;
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    let step = format!("add address {address}");
    Message::new(
        RTM_NEWADDR,
        NLM_F_CREATE | NLM_F_REPLACE,
        step,
        &fixed,
        |a| {
            let bytes = ip_bytes(address.ip);
            a.put(IFA_LOCAL, &bytes).put(IFA_ADDRESS, &bytes);
            if let (IpAddr::V4(network), true) = (address.network(), address.prefix < 31) {
                let broadcast = u32::from(network) | (u32::MAX >> address.prefix);
                a.put(IFA_BROADCAST, &broadcast.to_be_bytes());
            }
            if !v4 {
                a.put_u32(IFA_FLAGS, IFA_F_NODAD);
            }
            a
        },
    )
}

/// About the link of this name, and with `flags` to set.
fn by_name(kind: u16, flags: u32, step: String, name: &str) -> Message {
    let fixed = ifinfo(0, flags);
    Message::new(kind, 0, step, &fixed, |a| a.put_str(IFLA_IFNAME, name))
}

fn links(replies: &[netlink::Reply]) -> impl Iterator<Item = Link> {
    replies
        .iter()
        .filter(|reply| reply.kind == RTM_NEWLINK && reply.body.len() >= IFINFO)
        .map(|reply| {
            let word = |at: usize| {
                u32::from_ne_bytes([
                    reply.body[at],
                    reply.body[at + 1],
                    reply.body[at + 2],
                    reply.body[at + 3],
                ])
            };
            let mut link = Link {
                index: word(4),
                up: word(8) & IFF_UP != 0,
                ..Link::default()
            };
            for (kind, value) in reply.attributes(IFINFO) {
                match kind {
                    IFLA_IFNAME => link.name = text(value),
                    IFLA_ADDRESS => link.address = value.to_vec(),
                    IFLA_MASTER => {
                        link.master = value.try_into().map_or(0, u32::from_ne_bytes);
                    }
                    IFLA_STATS64 => link.counters = Counters::parse(value),
                    IFLA_LINKINFO => {
                        let kind = netlink::attribute(value, IFLA_INFO_KIND);
                        link.kind = kind.map(text).unwrap_or_default();
                    }
                    _ => {}
                }
            }
            link
        })
}

/// `struct ifinfomsg` with `flags` to set (and nothing to clear).
fn ifinfo(index: u32, flags: u32) -> [u8; IFINFO] {
    let mut fixed = [0u8; IFINFO];
    fixed[4..8].copy_from_slice(&index.to_ne_bytes());
    fixed[8..12].copy_from_slice(&flags.to_ne_bytes());
    fixed[12..16].copy_from_slice(&flags.to_ne_bytes());
    fixed
}

pub(crate) fn text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

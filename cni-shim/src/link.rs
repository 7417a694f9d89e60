//! Links and addresses: the rtnetlink messages of a pod's network.
//!
//! Functions only build messages or parse answers. The caller sends them, and chooses the
//! namespace.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::addr::{Cidr, Mac, ip_bytes, ip_from};
use crate::netlink::{
    self, Attrs, Message, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NetlinkError, Reply, Socket,
};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWSTATS: u16 = 92;
const RTM_GETSTATS: u16 = 94;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_STATS_LINK_64: u16 = 1;
const IFLA_INFO_KIND: u16 = 1;
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
/// Of `struct if_stats_msg`: family and padding, index, filter.
const IFSTATS: usize = 12;
/// Its index in every network namespace.
const LOOPBACK: u32 = 1;

/// A link, as reported by the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// `bridge`, `veth`…; empty for a physical device.
    pub kind: String,
    pub up: bool,
}

/// A link's traffic since its creation.
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
        let (numbers, _) = stats64.as_chunks();
        let at = |position: usize| numbers.get(position).copied().map_or(0, u64::from_ne_bytes);
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

/// Looks up a link by name.
pub(crate) fn find(socket: &mut Socket, name: &str) -> Result<Option<Link>, NetlinkError> {
    let step = format!("look up link {name}");
    let request = Message::new(RTM_GETLINK, 0, step, named(name, 0)).tolerate(Errno::NODEV);
    Ok(links(&socket.ask(&request)?).next())
}

/// Every link of the socket's network namespace by name, with its traffic.
///
/// Not by RTM_GETLINK: its answers contain the alternative names, of which a link has up to 64 KiB.
/// Such a link does not fit a dump, and the kernel ends the list before it without an error: a pod
/// would hide its traffic.
pub(crate) fn traffic(socket: &mut Socket) -> Result<Vec<(String, Counters)>, NetlinkError> {
    let filter: u32 = 1 << (IFLA_STATS_LINK_64 - 1);
    let words = [0, 0, filter].map(u32::to_ne_bytes);
    let body = Attrs::after(words.as_flattened());
    let replies = socket.dump(RTM_GETSTATS, "list the traffic of links", body)?;
    let replies = replies.iter().filter(|reply| reply.kind == RTM_NEWSTATS);
    let links = replies.filter_map(|reply| {
        let counters = Counters::parse(reply.attribute(IFSTATS, IFLA_STATS_LINK_64)?);
        // A link that was removed meanwhile has no name.
        let name = rustix::net::netdevice::index_to_name(&*socket, reply.word(4)).ok()?;
        Some((name, counters))
    });
    Ok(links.collect())
}

pub(crate) fn addresses(socket: &mut Socket, index: u32) -> Result<Vec<Cidr>, NetlinkError> {
    let replies = socket.dump(RTM_GETADDR, "list addresses", ifaddr(0, 0, 0))?;
    let is_of_link = |reply: &&Reply| reply.kind == RTM_NEWADDR && reply.word(4) == index;
    let parse = |reply: &Reply| {
        let prefix = *reply.body.get(1)?;
        let address = |kind| reply.attribute(IFADDR, kind);
        let bytes = address(IFA_LOCAL).or_else(|| address(IFA_ADDRESS))?;
        Cidr::new(ip_from(bytes)?, prefix)
    };
    Ok(replies
        .iter()
        .filter(is_of_link)
        .filter_map(parse)
        .collect())
}

/// Makes a bridge, up, with a fixed hardware address; otherwise it would follow its ports'.
pub(crate) fn add_bridge(name: &str, mac: Mac, mtu: Option<u32>) -> Message {
    let kind = Attrs::default().put(IFLA_INFO_KIND, b"bridge");
    let body = put_mtu(named(name, IFF_UP).put(IFLA_ADDRESS, &mac.0), mtu);
    let step = format!("create bridge {name}");
    new_link(step, body.nest(IFLA_LINKINFO, kind))
}

pub(crate) fn add_ifb(name: &str) -> Message {
    let kind = Attrs::default().put(IFLA_INFO_KIND, b"ifb");
    let step = format!("create ifb device {name}");
    new_link(step, named(name, IFF_UP).nest(IFLA_LINKINFO, kind))
}

/// Parameters of a veth pair between a bridge and a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VethPair<'a> {
    pub(crate) host_name: &'a str,
    /// Index of the bridge for the host's end.
    pub(crate) bridge: u32,
    pub(crate) pod_name: &'a str,
    pub(crate) pod_mac: Mac,
    /// The pod's network namespace: its end is made there, and never visible on the host.
    pub(crate) netns: BorrowedFd<'a>,
    pub(crate) mtu: Option<u32>,
}

/// Makes the pair, with the host's end up.
pub(crate) fn add_veth(pair: &VethPair<'_>) -> Message {
    // Not up yet: during creation the ends do not know each other, and the kernel returns ENOTCONN.
    let peer = named(pair.pod_name, 0)
        .put(IFLA_ADDRESS, &pair.pod_mac.0)
        .put(IFLA_NET_NS_FD, &pair.netns.as_raw_fd().to_ne_bytes());
    let data = Attrs::default().nest(VETH_INFO_PEER, put_mtu(peer, pair.mtu));
    let kind = Attrs::default().put(IFLA_INFO_KIND, b"veth");
    let body = named(pair.host_name, IFF_UP).put_u32(IFLA_MASTER, pair.bridge);
    new_link(
        format!("create veth pair {}", pair.host_name),
        put_mtu(body, pair.mtu).nest(IFLA_LINKINFO, kind.nest(IFLA_INFO_DATA, data)),
    )
}

fn new_link(step: String, body: Attrs) -> Message {
    Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, step, body)
}

/// `None` leaves the kernel's default.
fn put_mtu(body: Attrs, mtu: Option<u32>) -> Attrs {
    match mtu {
        Some(mtu) => body.put_u32(IFLA_MTU, mtu),
        None => body,
    }
}

/// Lets a bridge port send packets back, for a pod that uses its own host port (CRI-538).
pub(crate) fn set_hairpin(port: &str) -> Message {
    let mode = Attrs::default().put(IFLA_BRPORT_MODE, &[1]);
    let info = Attrs::default().put(IFLA_INFO_SLAVE_KIND, b"bridge");
    let body = named(port, 0).nest(IFLA_LINKINFO, info.nest(IFLA_INFO_SLAVE_DATA, mode));
    Message::new(RTM_NEWLINK, 0, format!("set hairpin mode of {port}"), body)
}

/// Brings the loopback device up; the kernel assigns its addresses (CRI-535).
pub(crate) fn loopback_up() -> Message {
    Message::new(RTM_NEWLINK, 0, "bring lo up", ifinfo(LOOPBACK, IFF_UP))
}

pub(crate) fn set_up(name: &str) -> Message {
    let step = format!("bring {name} up");
    Message::new(RTM_NEWLINK, 0, step, named(name, IFF_UP))
}

/// Deletes a link by name; a missing one is fine.
pub(crate) fn delete(name: &str) -> Message {
    let step = format!("delete link {name}");
    Message::new(RTM_DELLINK, 0, step, named(name, 0)).tolerate(Errno::NODEV)
}

/// Whether link `name` was removed. With a bridge's family the event means that a port left.
pub(crate) fn is_gone(event: &Reply, name: &str) -> bool {
    event.kind == RTM_DELLINK
        && event.body.first() == Some(&AF_UNSPEC)
        && event.attribute(IFINFO, IFLA_IFNAME).map(text).as_deref() == Some(name)
}

/// Adds an address to a link. IPv6 skips duplicate detection: addresses here are unique.
pub(crate) fn add_address(index: u32, address: Cidr) -> Message {
    let (bytes, v4) = (ip_bytes(address.ip), address.ip.is_ipv4());
    let mut body = ifaddr(if v4 { AF_INET } else { AF_INET6 }, address.prefix, index)
        .put(IFA_LOCAL, &bytes)
        .put(IFA_ADDRESS, &bytes);
    if let (IpAddr::V4(network), true) = (address.network(), address.prefix < 31) {
        let broadcast = u32::from(network) | (u32::MAX >> address.prefix);
        body = body.put_be32(IFA_BROADCAST, broadcast);
    }
    if !v4 {
        body = body.put_u32(IFA_FLAGS, IFA_F_NODAD);
    }
    let step = format!("add address {address}");
    Message::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, step, body)
}

fn links(replies: &[Reply]) -> impl Iterator<Item = Link> {
    replies
        .iter()
        .filter(|reply| reply.kind == RTM_NEWLINK && reply.body.len() >= IFINFO)
        .map(|reply| {
            let mut link = Link {
                index: reply.word(4),
                up: reply.word(8) & IFF_UP != 0,
                ..Link::default()
            };
            for (kind, value) in reply.attributes(IFINFO) {
                match kind {
                    IFLA_IFNAME => link.name = text(value),
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

/// For the link of this name, with `flags` to set.
fn named(name: &str, flags: u32) -> Attrs {
    ifinfo(0, flags).put_str(IFLA_IFNAME, name)
}

/// `struct ifinfomsg` with `flags` to set.
fn ifinfo(index: u32, flags: u32) -> Attrs {
    let words = [0, index, flags, flags].map(u32::to_ne_bytes);
    Attrs::after(words.as_flattened())
}

/// `struct ifaddrmsg`.
fn ifaddr(family: u8, prefix: u8, index: u32) -> Attrs {
    let [a, b, c, d] = index.to_ne_bytes();
    Attrs::after(&[family, prefix, 0, 0, a, b, c, d])
}

pub(crate) fn text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

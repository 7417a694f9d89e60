//! Messages and answers for routes. The caller sends them, in the network namespace of its choice.

use std::net::{IpAddr, Ipv6Addr};

use rustix::io::Errno;

use crate::addr::ip_bytes;
use crate::link::{AF_INET, AF_INET6};
use crate::netlink::{Attrs, Message, NLM_F_CREATE, NLM_F_REPLACE};

const RTM_NEWROUTE: u16 = 24;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RT_TABLE_MAIN: u8 = 254;
const RT_TABLE_LOCAL: u8 = 255;
const RTPROT_STATIC: u8 = 4;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTMSG: usize = 12;
/// Lower priority than the loopback device's own route, which serves sending.
const AFTER_LOOPBACK: u32 = 4096;

/// The default route through `gateway` on a link.
pub(crate) fn add_default_route(index: u32, gateway: IpAddr) -> Message {
    let family = if gateway.is_ipv4() { AF_INET } else { AF_INET6 };
    let body = rtmsg(family, 0, RT_TABLE_MAIN, RTN_UNICAST)
        .put(RTA_GATEWAY, &ip_bytes(gateway))
        .put_u32(RTA_OIF, index);
    let step = format!("add default route via {gateway}");
    Message::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, step, body)
}

/// Lets a link receive answers to `::1`, which connection tracking has restored: the kernel
/// requires a route on the link. Packets with this address on the wire are dropped before.
pub(crate) fn add_loopback6_route(index: u32) -> Message {
    let loopback = Ipv6Addr::LOCALHOST;
    let body = rtmsg(AF_INET6, 128, RT_TABLE_LOCAL, RTN_LOCAL)
        .put(RTA_DST, &loopback.octets())
        .put_u32(RTA_OIF, index)
        .put_u32(RTA_PRIORITY, AFTER_LOOPBACK);
    let step = format!("add local route of {loopback}");
    Message::new(RTM_NEWROUTE, NLM_F_CREATE, step, body).tolerate(Errno::EXIST)
}

/// `struct rtmsg`, for a destination with this prefix length.
fn rtmsg(family: u8, prefix: u8, table: u8, kind: u8) -> Attrs {
    let mut fixed = [0u8; RTMSG];
    fixed[..8].copy_from_slice(&[family, prefix, 0, 0, table, RTPROT_STATIC, 0, kind]);
    Attrs::after(&fixed)
}

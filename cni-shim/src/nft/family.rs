//! Netfilter's address families, and the header of its messages.

use std::net::IpAddr;

use crate::netlink::Attrs;

/// An address family, by its netfilter number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Ip {
    V4 = 2,
    V6 = 10,
}

impl Ip {
    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Ip::V4 } else { Ip::V6 }
    }
}

/// The bridge family: Ethernet frames received by a bridge's ports.
pub(crate) const BRIDGE: u8 = 7;

/// `struct nfgenmsg`: family, version, and a number in network order.
pub(crate) fn nfgenmsg(family: u8, resource: u16) -> Attrs {
    let [high, low] = resource.to_be_bytes();
    Attrs::after(&[family, 0, high, low])
}

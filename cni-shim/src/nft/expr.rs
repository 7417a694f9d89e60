//! An nftables rule as expressions in the kernel's wire format: only the kinds our tables need.
//!
//! Registers: values are loaded into the 32-bit registers from [`R0`] on. A match uses and frees
//! the first ones; a map's key takes several in a row, and its data overwrites them.

use super::family::Ip;
use crate::netlink::Attrs;

const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;
const NFT_REG_VERDICT: u32 = 0;
const NFT_JUMP: i32 = -3;
const NF_DROP: i32 = 0;
const NF_ACCEPT: i32 = 1;
const NFT_LOOKUP_F_INV: u32 = 1;
const IPPROTO_ICMPV6: u8 = 58;
const NFT_CMP_EQ: u32 = 0;
const NFT_CMP_NEQ: u32 = 1;
const NFT_PAYLOAD_LINK_HEADER: u32 = 0;
const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;
const NFT_META_IIFNAME: u32 = 6;
const NFT_META_OIFNAME: u32 = 7;
const NFT_META_L4PROTO: u32 = 16;
const NFT_CT_STATUS: u32 = 2;
const IPS_DST_NAT: u32 = 1 << 5;
const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
const NFTA_FIB_F_DADDR: u32 = 1 << 1;
const RTN_LOCAL: u32 = 2;
const NFT_NAT_DNAT: u32 = 1;
const IFNAMSIZ: usize = 16;

const R0: u32 = 8;

/// A part of a packet.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Field {
    EtherType,
    EtherSource,
    ArpHardware,
    ArpSource,
    Source(Ip),
    Destination(Ip),
    IcmpType,
    /// The address of a neighbour advertisement.
    NeighbourTarget,
    /// For TCP, UDP and SCTP.
    DestinationPort,
}

impl Field {
    /// Header, offset and length in bytes.
    fn place(self) -> (u32, u32, u32) {
        match self {
            Field::EtherType => (NFT_PAYLOAD_LINK_HEADER, 12, 2),
            Field::EtherSource => (NFT_PAYLOAD_LINK_HEADER, 6, 6),
            Field::ArpHardware => (NFT_PAYLOAD_NETWORK_HEADER, 8, 6),
            Field::ArpSource => (NFT_PAYLOAD_NETWORK_HEADER, 14, 4),
            Field::Source(Ip::V4) => (NFT_PAYLOAD_NETWORK_HEADER, 12, 4),
            Field::Source(Ip::V6) => (NFT_PAYLOAD_NETWORK_HEADER, 8, 16),
            Field::Destination(Ip::V4) => (NFT_PAYLOAD_NETWORK_HEADER, 16, 4),
            Field::Destination(Ip::V6) => (NFT_PAYLOAD_NETWORK_HEADER, 24, 16),
            Field::IcmpType => (NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1),
            Field::NeighbourTarget => (NFT_PAYLOAD_TRANSPORT_HEADER, 8, 16),
            Field::DestinationPort => (NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2),
        }
    }
}

/// An interface's name in the form that the kernel compares.
pub(crate) fn interface_name(name: &str) -> [u8; IFNAMSIZ] {
    let mut padded = [0u8; IFNAMSIZ];
    let length = name.len().min(IFNAMSIZ - 1);
    padded[..length].copy_from_slice(&name.as_bytes()[..length]);
    padded
}

/// A rule under construction: matches first, a verdict last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rule(Attrs);

impl Rule {
    pub(crate) fn into_expressions(self) -> Attrs {
        self.0
    }

    /// Matches packets received by an interface.
    pub(crate) fn came_in_by(self, name: &str) -> Self {
        self.load_meta(NFT_META_IIFNAME, R0)
            .compare(true, &interface_name(name))
    }

    /// Matches packets sent by an interface, or with `!is` by any other.
    pub(crate) fn goes_out_by(self, is: bool, name: &str) -> Self {
        self.load_meta(NFT_META_OIFNAME, R0)
            .compare(is, &interface_name(name))
    }

    /// Matches packets whose `field` is in a network of the family's length, or with `!is` is not.
    pub(crate) fn address(self, field: Field, is: bool, network: &[u8], prefix: u8) -> Self {
        let mask: Vec<u8> = (0..network.len() as u32)
            .map(|byte| mask_byte(u32::from(prefix).saturating_sub(byte * 8)))
            .collect();
        self.load(field, R0).mask(&mask).compare(is, network)
    }

    /// Matches packets to an address of this node.
    pub(crate) fn towards_node(self) -> Self {
        let result = [(1, R0), (2, NFT_FIB_RESULT_ADDRTYPE), (3, NFTA_FIB_F_DADDR)];
        self.expression("fib", numbers(&result))
            .compare(true, &RTN_LOCAL.to_ne_bytes())
    }

    /// Matches packets of connections with a rewritten destination.
    pub(crate) fn was_dnated(self) -> Self {
        self.expression("ct", numbers(&[(1, R0), (2, NFT_CT_STATUS)]))
            .mask(&IPS_DST_NAT.to_ne_bytes())
            .compare(false, &[0u8; 4])
    }

    pub(crate) fn masquerade(self) -> Self {
        self.expression("masq", Attrs::default())
    }

    pub(crate) fn drop_packet(self) -> Self {
        self.verdict(NF_DROP, None)
    }

    pub(crate) fn accept(self) -> Self {
        self.verdict(NF_ACCEPT, None)
    }

    /// Matches packets received by an interface in a set, or with `!is` by another.
    pub(crate) fn came_in_by_one_of(self, is: bool, set: &str) -> Self {
        self.load_meta(NFT_META_IIFNAME, R0).look_up(is, set)
    }

    /// Matches packets whose incoming interface and `field` are in a set, or with `!is` are not.
    pub(crate) fn interface_and(self, field: Field, is: bool, set: &str) -> Self {
        self.load_meta(NFT_META_IIFNAME, R0)
            .load(field, R0 + IFNAMSIZ as u32 / 4)
            .look_up(is, set)
    }

    /// Matches packets whose `field` has a value, in wire format.
    pub(crate) fn field(self, field: Field, value: &[u8]) -> Self {
        self.load(field, R0).compare(true, value)
    }

    /// Matches ICMPv6 messages of a type.
    pub(crate) fn icmpv6(self, kind: u8) -> Self {
        self.load_meta(NFT_META_L4PROTO, R0)
            .compare(true, &[IPPROTO_ICMPV6])
            .field(Field::IcmpType, &[kind])
    }

    pub(crate) fn jump(self, chain: &str) -> Self {
        self.verdict(NFT_JUMP, Some(chain))
    }

    /// Rewrites the destination by `map`, keyed by (destination address, if `by_address`,) protocol
    /// and port; a packet without an entry continues at the next rule. See
    /// [`super::table::Element`] for key and data.
    pub(crate) fn dnat_by_map(self, ip: Ip, map: &str, by_address: bool) -> Self {
        let words = match ip {
            Ip::V4 => 1,
            Ip::V6 => 4,
        };
        let (rule, key) = if by_address {
            (self.load(Field::Destination(ip), R0), R0 + words)
        } else {
            (self, R0)
        };
        let by_map = Attrs::default().put_str(1, map);
        let by_map = by_map.put_be32(2, R0).put_be32(3, R0);
        let family = ip as u32;
        let nat = [(1, NFT_NAT_DNAT), (2, family), (3, R0), (5, R0 + words)];
        rule.load_meta(NFT_META_L4PROTO, key)
            .load(Field::DestinationPort, key + 1)
            .expression("lookup", by_map)
            .expression("nat", numbers(&nat))
    }

    fn load_meta(self, key: u32, register: u32) -> Self {
        self.expression("meta", numbers(&[(1, register), (2, key)]))
    }

    fn load(self, field: Field, register: u32) -> Self {
        let (base, offset, length) = field.place();
        let place = [(1, register), (2, base), (3, offset), (4, length)];
        self.expression("payload", numbers(&place))
    }

    /// Masks the loaded value; the mask has its length.
    fn mask(self, mask: &[u8]) -> Self {
        let value = |bytes: &[u8]| Attrs::default().put(NFTA_DATA_VALUE, bytes);
        let data = numbers(&[(1, R0), (2, R0), (3, mask.len() as u32)])
            .nest(4, value(mask))
            .nest(5, value(&vec![0u8; mask.len()]));
        self.expression("bitwise", data)
    }

    fn look_up(self, is: bool, set: &str) -> Self {
        let flags = if is { 0 } else { NFT_LOOKUP_F_INV };
        let data = Attrs::default().put_str(1, set).put_be32(2, R0);
        self.expression("lookup", data.put_be32(5, flags))
    }

    fn compare(self, equal: bool, value: &[u8]) -> Self {
        let operator = if equal { NFT_CMP_EQ } else { NFT_CMP_NEQ };
        let value = Attrs::default().put(NFTA_DATA_VALUE, value);
        self.expression("cmp", numbers(&[(1, R0), (2, operator)]).nest(3, value))
    }

    fn verdict(self, code: i32, chain: Option<&str>) -> Self {
        let mut verdict = Attrs::default().put(NFTA_VERDICT_CODE, &code.to_be_bytes());
        if let Some(chain) = chain {
            verdict = verdict.put_str(NFTA_VERDICT_CHAIN, chain);
        }
        let data = Attrs::default().nest(NFTA_DATA_VERDICT, verdict);
        self.expression("immediate", numbers(&[(1, NFT_REG_VERDICT)]).nest(2, data))
    }

    fn expression(self, name: &str, data: Attrs) -> Self {
        let element = Attrs::default()
            .put_str(NFTA_EXPR_NAME, name)
            .nest(NFTA_EXPR_DATA, data);
        Self(self.0.nest(NFTA_LIST_ELEM, element))
    }
}

/// Numeric attributes, each with its number.
fn numbers(attributes: &[(u16, u32)]) -> Attrs {
    let put = |attrs: Attrs, (kind, number): &(u16, u32)| attrs.put_be32(*kind, *number);
    attributes.iter().fold(Attrs::default(), put)
}

/// The mask of one byte with `bits` leading ones.
fn mask_byte(bits: u32) -> u8 {
    u8::MAX.checked_shl(8 - bits.min(8)).unwrap_or(0)
}

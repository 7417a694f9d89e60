//! One nftables rule as a list of expressions, in the kernel's wire format: only the kinds our tables need.
//!
//! Registers: values are loaded into the 32-bit registers from [`R0`] on; a match uses the first ones and frees them,
//! a map's key is laid over several in a row, and its data overwrites them.

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

/// The first 32-bit register.
const R0: u32 = 8;

/// Which interface of a packet a rule looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Interface {
    In,
    Out,
}

/// Source or destination address of a packet.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Source,
    Destination,
}

/// A part of a packet by which it says whose it is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Field {
    EtherType,
    EtherSource,
    ArpHardware,
    ArpSource,
    Source(Ip),
    /// The address that a neighbour advertisement speaks for.
    NeighbourTarget,
}

impl Field {
    /// Header, offset and length in bytes.
    fn place(self) -> (u32, u32, u32) {
        match self {
            Field::EtherType => (NFT_PAYLOAD_LINK_HEADER, 12, 2),
            Field::EtherSource => (NFT_PAYLOAD_LINK_HEADER, 6, 6),
            Field::ArpHardware => (NFT_PAYLOAD_NETWORK_HEADER, 8, 6),
            Field::ArpSource => (NFT_PAYLOAD_NETWORK_HEADER, 14, 4),
            Field::Source(ip) => (NFT_PAYLOAD_NETWORK_HEADER, ip.source(), ip.length()),
            Field::NeighbourTarget => (NFT_PAYLOAD_TRANSPORT_HEADER, 8, 16),
        }
    }
}

/// An interface's name as the kernel compares it.
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

    /// Only packets that came in by, or go out by, an interface; or, with `!is`, by any other.
    pub(crate) fn interface(self, which: Interface, is: bool, name: &str) -> Self {
        let key = match which {
            Interface::In => NFT_META_IIFNAME,
            Interface::Out => NFT_META_OIFNAME,
        };
        self.load_meta(key, R0).compare(is, &interface_name(name))
    }

    /// Only packets one of whose addresses is in a network; or, with `!is`, is not. `network` has the family's length.
    pub(crate) fn address(self, ip: Ip, end: End, is: bool, network: &[u8], prefix: u8) -> Self {
        let offset = match end {
            End::Source => ip.source(),
            End::Destination => ip.destination(),
        };
        let length = ip.length();
        let mask: Vec<u8> = (0..length)
            .map(|byte| mask_byte(u32::from(prefix).saturating_sub(byte * 8)))
            .collect();
        self.load_payload(NFT_PAYLOAD_NETWORK_HEADER, offset, length, R0)
            .mask(&mask)
            .compare(is, network)
    }

    /// Only packets to an address of this node.
    pub(crate) fn towards_node(self) -> Self {
        self.expression("fib", |a| {
            a.put_be32(1, R0)
                .put_be32(2, NFT_FIB_RESULT_ADDRTYPE)
                .put_be32(3, NFTA_FIB_F_DADDR)
        })
        .compare(true, &RTN_LOCAL.to_ne_bytes())
    }

    /// Only packets of connections whose destination was rewritten.
    pub(crate) fn was_dnated(self) -> Self {
        self.expression("ct", |a| a.put_be32(1, R0).put_be32(2, NFT_CT_STATUS))
            .mask(&IPS_DST_NAT.to_ne_bytes())
            .compare(false, &[0u8; 4])
    }

    pub(crate) fn masquerade(self) -> Self {
        self.expression("masq", |a| a)
    }

    pub(crate) fn drop_packet(self) -> Self {
        self.verdict(NF_DROP, None)
    }

    pub(crate) fn accept(self) -> Self {
        self.verdict(NF_ACCEPT, None)
    }

    /// Only packets that came in by an interface of a set; or, with `!is`, by none of it.
    pub(crate) fn came_in_by_one_of(self, is: bool, set: &str) -> Self {
        self.load_meta(NFT_META_IIFNAME, R0).look_up(is, set)
    }

    /// Only packets whose incoming interface and `field` are together in a set; or, with `!is`, are not.
    pub(crate) fn interface_and(self, field: Field, is: bool, set: &str) -> Self {
        let (base, offset, length) = field.place();
        self.load_meta(NFT_META_IIFNAME, R0)
            .load_payload(base, offset, length, R0 + IFNAMSIZ as u32 / 4)
            .look_up(is, set)
    }

    /// Only packets whose `field` has a value, given as on the wire.
    pub(crate) fn field(self, field: Field, value: &[u8]) -> Self {
        let (base, offset, length) = field.place();
        self.load_payload(base, offset, length, R0)
            .compare(true, value)
    }

    /// Only ICMPv6 messages of a type.
    pub(crate) fn icmpv6(self, kind: u8) -> Self {
        self.load_meta(NFT_META_L4PROTO, R0)
            .compare(true, &[IPPROTO_ICMPV6])
            .load_payload(NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1, R0)
            .compare(true, &[kind])
    }

    pub(crate) fn jump(self, chain: &str) -> Self {
        self.verdict(NFT_JUMP, Some(chain))
    }

    /// Rewrites the destination to what `map` holds for (destination address, if `by_address`,) protocol and port; a
    /// packet without an entry goes on to the next rule. See [`super::table::Element`] for key and data.
    pub(crate) fn dnat_by_map(self, ip: Ip, map: &str, by_address: bool) -> Self {
        let (family, length) = (ip.nfproto(), ip.length());
        let words = length / 4;
        let (rule, key) = if by_address {
            let offset = ip.destination();
            (
                self.load_payload(NFT_PAYLOAD_NETWORK_HEADER, offset, length, R0),
                R0 + words,
            )
        } else {
            (self, R0)
        };
        rule.load_meta(NFT_META_L4PROTO, key)
            .load_payload(NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, key + 1)
            .expression("lookup", |a| {
                a.put_str(1, map).put_be32(2, R0).put_be32(3, R0)
            })
            .expression("nat", |a| {
                a.put_be32(1, NFT_NAT_DNAT).put_be32(2, u32::from(family));
                a.put_be32(3, R0).put_be32(5, R0 + words)
            })
    }

    fn load_meta(self, key: u32, register: u32) -> Self {
        self.expression("meta", |a| a.put_be32(1, register).put_be32(2, key))
    }

    fn load_payload(self, base: u32, offset: u32, length: u32, register: u32) -> Self {
        self.expression("payload", |a| {
            a.put_be32(1, register)
                .put_be32(2, base)
                .put_be32(3, offset)
                .put_be32(4, length)
        })
    }

    /// Leaves of what was loaded the bits of a mask of its length.
    fn mask(self, mask: &[u8]) -> Self {
        self.expression("bitwise", |a| {
            a.put_be32(1, R0).put_be32(2, R0);
            a.put_be32(3, mask.len() as u32);
            a.nest(4, |kept| kept.put(NFTA_DATA_VALUE, mask));
            a.nest(5, |xor| xor.put(NFTA_DATA_VALUE, &vec![0u8; mask.len()]))
        })
    }

    fn look_up(self, is: bool, set: &str) -> Self {
        self.expression("lookup", |a| {
            a.put_str(1, set).put_be32(2, R0);
            a.put_be32(5, if is { 0 } else { NFT_LOOKUP_F_INV })
        })
    }

    fn compare(self, equal: bool, value: &[u8]) -> Self {
        let operator = if equal { NFT_CMP_EQ } else { NFT_CMP_NEQ };
        self.expression("cmp", |a| {
            a.put_be32(1, R0).put_be32(2, operator);
            a.nest(3, |data| data.put(NFTA_DATA_VALUE, value))
        })
    }

    fn verdict(self, code: i32, chain: Option<&str>) -> Self {
        self.expression("immediate", |a| {
            a.put_be32(1, NFT_REG_VERDICT).nest(2, |data| {
                data.nest(NFTA_DATA_VERDICT, |verdict| {
                    verdict.put(NFTA_VERDICT_CODE, &code.to_be_bytes());
                    if let Some(chain) = chain {
                        verdict.put_str(NFTA_VERDICT_CHAIN, chain);
                    }
                    verdict
                })
            })
        })
    }

    fn expression(mut self, name: &str, fill: impl FnOnce(&mut Attrs) -> &mut Attrs) -> Self {
        self.0.nest(NFTA_LIST_ELEM, |element| {
            element
                .put_str(NFTA_EXPR_NAME, name)
                .nest(NFTA_EXPR_DATA, fill)
        });
        self
    }
}

/// The mask of one byte of which `bits` lead to the prefix.
fn mask_byte(bits: u32) -> u8 {
    u8::MAX.checked_shl(8 - bits.min(8)).unwrap_or(0)
}

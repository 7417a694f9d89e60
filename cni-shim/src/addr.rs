//! Hardware addresses and IP networks: values and texts. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mac(pub(crate) [u8; 6]);

impl Mac {
    /// The fixed hardware address of an IP, so that neighbours' caches stay right when another pod
    /// gets the IP. Locally administered; IPv6 keeps its last four bytes.
    pub(crate) fn of(ip: IpAddr) -> Self {
        let [a, b, c, d] = match ip {
            IpAddr::V4(v4) => v4.octets(),
            IpAddr::V6(v6) => {
                let o = v6.octets();
                [o[12], o[13], o[14], o[15]]
            }
        };
        Self([0x0a, 0x58, a, b, c, d])
    }

    /// The kernel's link-local address for this hardware address (RFC 4291, appendix A).
    pub(crate) fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        let word = |high, low| u16::from_be_bytes([high, low]);
        let (one, two) = (word(a ^ 2, b), word(c, 0xff));
        let (three, four) = (word(0xfe, d), word(e, f));
        Ipv6Addr::new(0xfe80, 0, 0, 0, one, two, three, four)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// An IP network: an address and a prefix length. Written `10.88.0.0/16`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    pub ip: IpAddr,
    pub prefix: u8,
}

impl Cidr {
    /// `None` for a prefix longer than the address.
    pub fn new(ip: IpAddr, prefix: u8) -> Option<Self> {
        let most = if ip.is_ipv4() { 32 } else { 128 };
        (prefix <= most).then_some(Self { ip, prefix })
    }

    /// The first address.
    pub fn network(self) -> IpAddr {
        match self.ip {
            IpAddr::V4(ip) => {
                let mask = u32::MAX
                    .checked_shl(32 - u32::from(self.prefix))
                    .unwrap_or(0);
                Ipv4Addr::from(u32::from(ip) & mask).into()
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(self.prefix))
                    .unwrap_or(0);
                Ipv6Addr::from(u128::from(ip) & mask).into()
            }
        }
    }

    pub fn contains(self, ip: IpAddr) -> bool {
        let beside = Cidr::new(ip, self.prefix);
        beside.is_some_and(|beside| beside.network() == self.network())
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

impl FromStr for Cidr {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not an address with a prefix length");
        let (ip, prefix) = text.split_once('/').ok_or_else(bad)?;
        let ip = ip.parse().map_err(|_| bad())?;
        let prefix = prefix.parse().map_err(|_| bad())?;
        Cidr::new(ip, prefix).ok_or_else(bad)
    }
}

impl TryFrom<String> for Cidr {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The bytes of an address in network order.
pub(crate) fn ip_bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The reverse of [`ip_bytes`].
pub(crate) fn ip_from(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(v4));
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_network_survives_being_written_and_contains_its_addresses(v6: bool, bits: u128, prefix in 0u8..=128) {
            let ip: IpAddr =
                if v6 { Ipv6Addr::from(bits).into() } else { Ipv4Addr::from(bits as u32).into() };
            match Cidr::new(ip, prefix) {
                None => prop_assert!(!v6 && prefix > 32),
                Some(cidr) => {
                    prop_assert_eq!(cidr.to_string().parse::<Cidr>(), Ok(cidr));
                    prop_assert!(cidr.contains(ip) && cidr.contains(cidr.network()));
                    prop_assert_eq!(ip_from(&ip_bytes(ip)), Some(ip));
                }
            }
        }

        #[test]
        fn no_text_panics_the_parser(text in "\\PC{0,50}") {
            let _ = text.parse::<Cidr>();
        }
    }
}

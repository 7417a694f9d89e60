//! Tracks the used addresses of a subnet. Pure: only the attachments' records survive a crash, and
//! they fill a pool at start ([`Pool::claim`]), so that no address leaks.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::addr::Cidr;

/// No address is free, or the subnet is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    #[error("subnet {subnet}: all {in_use} addresses are in use")]
    Exhausted { subnet: Cidr, in_use: usize },
    #[error("subnet {0}: too small for a gateway and a pod")]
    TooSmall(Cidr),
    #[error("address {ip} is not a pod address of subnet {subnet}")]
    Foreign { ip: IpAddr, subnet: Cidr },
    #[error("address {0} is already in use")]
    Taken(IpAddr),
}

/// The addresses of one subnet. The first is the gateway's; pods get the others in turn, so that an
/// address is reused as late as possible.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    subnet: Cidr,
    /// Offsets from the network address.
    used: HashSet<u128>,
    next: u128,
    last: u128,
}

const GATEWAY: u128 = 1;
const FIRST: u128 = 2;

impl Pool {
    pub(crate) fn new(subnet: Cidr) -> Result<Self, PoolError> {
        let (bits, reserved_end) = if subnet.ip.is_ipv4() {
            (32, 1)
        } else {
            (128, 0)
        };
        let host_bits = bits - u32::from(subnet.prefix);
        let size_less_one = u128::MAX.checked_shr(128 - host_bits).unwrap_or(0);
        let last = size_less_one.saturating_sub(reserved_end);
        if last < FIRST {
            return Err(PoolError::TooSmall(subnet));
        }
        Ok(Self {
            subnet,
            used: HashSet::new(),
            next: FIRST,
            last,
        })
    }

    pub(crate) fn gateway(&self) -> Cidr {
        self.at(GATEWAY)
    }

    /// Takes the next free address, with the subnet's prefix length.
    pub(crate) fn take(&mut self) -> Result<Cidr, PoolError> {
        let room = self.last - FIRST + 1;
        let in_use = self.used.len();
        if in_use as u128 >= room {
            let subnet = self.subnet;
            return Err(PoolError::Exhausted { subnet, in_use });
        }
        // Ends after at most `used.len() + 1` steps, since one offset is free.
        while self.used.contains(&self.next) {
            self.advance();
        }
        let offset = self.next;
        self.used.insert(offset);
        self.advance();
        Ok(self.at(offset))
    }

    /// Marks an address as in use: a record of an earlier run holds it.
    pub(crate) fn claim(&mut self, ip: IpAddr) -> Result<(), PoolError> {
        let offset = self.offset(ip).ok_or(PoolError::Foreign {
            ip,
            subnet: self.subnet,
        })?;
        if !self.used.insert(offset) {
            return Err(PoolError::Taken(ip));
        }
        if offset >= self.next {
            self.next = offset;
            self.advance();
        }
        Ok(())
    }

    /// Releases an address; an unused or foreign one changes nothing.
    pub(crate) fn release(&mut self, ip: IpAddr) {
        if let Some(offset) = self.offset(ip) {
            self.used.remove(&offset);
        }
    }

    #[cfg(test)]
    fn in_use(&self) -> usize {
        self.used.len()
    }

    fn advance(&mut self) {
        self.next = if self.next >= self.last {
            FIRST
        } else {
            self.next + 1
        };
    }

    fn at(&self, offset: u128) -> Cidr {
        let ip = match self.subnet.network() {
            IpAddr::V4(base) => Ipv4Addr::from(u32::from(base).wrapping_add(offset as u32)).into(),
            IpAddr::V6(base) => Ipv6Addr::from(u128::from(base).wrapping_add(offset)).into(),
        };
        let prefix = self.subnet.prefix;
        Cidr { ip, prefix }
    }

    fn offset(&self, ip: IpAddr) -> Option<u128> {
        if !self.subnet.contains(ip) {
            return None;
        }
        let offset = match (ip, self.subnet.network()) {
            (IpAddr::V4(ip), IpAddr::V4(base)) => u128::from(u32::from(ip) - u32::from(base)),
            (IpAddr::V6(ip), IpAddr::V6(base)) => u128::from(ip) - u128::from(base),
            _ => return None,
        };
        (FIRST..=self.last).contains(&offset).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pool(subnet: &str) -> Pool {
        Pool::new(subnet.parse().expect("a subnet")).expect("a pool")
    }

    #[test]
    fn a_full_subnet_is_named_in_the_error_and_a_release_makes_room() {
        let mut pool = pool("10.1.2.0/30");
        let only = pool.take().expect("one address fits");
        assert_eq!(only.to_string(), "10.1.2.2/30");
        let error = pool.take().expect_err("the subnet is full").to_string();
        assert_eq!(error, "subnet 10.1.2.0/30: all 1 addresses are in use");
        pool.release(only.ip);
        assert_eq!(pool.take(), Ok(only));
    }

    #[test]
    fn an_address_just_released_is_the_last_to_be_used_again() {
        let mut pool = pool("10.1.2.0/24");
        let first = pool.take().expect("free");
        pool.release(first.ip);
        for _ in 0..252 {
            assert_ne!(pool.take().expect("free"), first);
        }
        assert_eq!(pool.take(), Ok(first));
    }

    #[test]
    fn subnets_without_room_for_a_pod_are_refused() {
        for small in ["10.0.0.0/31", "10.0.0.1/32", "fd00::/127", "fd00::/128"] {
            assert!(
                Pool::new(small.parse().expect("a subnet")).is_err(),
                "{small}"
            );
        }
        assert!(Pool::new("::/0".parse().expect("a subnet")).is_ok());
        assert!(Pool::new("0.0.0.0/0".parse().expect("a subnet")).is_ok());
    }

    proptest! {
        #[test]
        fn no_address_is_ever_used_twice(prefix in 24u8..=30, steps in prop::collection::vec(any::<(bool, u8)>(), 1..400)) {
            let subnet = Cidr::new("192.168.7.99".parse().expect("an address"), prefix).expect("a subnet");
            let mut pool = Pool::new(subnet).expect("room for a pod");
            let mut taken: Vec<IpAddr> = Vec::new();
            for (take, which) in steps {
                if take {
                    match pool.take() {
                        Ok(got) => {
                            prop_assert!(!taken.contains(&got.ip));
                            prop_assert!(subnet.contains(got.ip));
                            prop_assert!(got.ip != pool.gateway().ip && got.ip != subnet.network());
                            taken.push(got.ip);
                        }
                        Err(_) => prop_assert_eq!(taken.len(), (1usize << (32 - prefix)) - 3),
                    }
                } else if !taken.is_empty() {
                    let ip = taken.swap_remove(usize::from(which) % taken.len());
                    pool.release(ip);
                }
                prop_assert_eq!(pool.in_use(), taken.len());
            }
        }

        #[test]
        fn a_pool_filled_from_records_hands_out_none_of_them(claimed in prop::collection::hash_set(2u32..254, 0..200)) {
            let mut pool = pool("10.9.8.0/24");
            for offset in &claimed {
                pool.claim(Ipv4Addr::from(0x0a09_0800 + offset).into()).expect("in the subnet");
            }
            for _ in claimed.len()..253 {
                let IpAddr::V4(got) = pool.take().expect("free").ip else { unreachable!() };
                prop_assert!(!claimed.contains(&(u32::from(got) & 0xff)));
            }
            prop_assert!(pool.take().is_err());
        }
    }
}

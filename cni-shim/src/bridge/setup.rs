//! The bridge itself: made when missing, completed, and refused when it is somebody else's.

use std::fs;
use std::net::IpAddr;

use rustix::io::Errno;

use super::State;
use super::ipam::Pool;
use crate::addr::{Cidr, Mac};
use crate::link;
use crate::types::{BridgeConfig, NetworkError, NotReady};

impl State {
    /// The bridge's index, after making whatever of it is missing.
    pub(super) fn ensure(&mut self, config: &BridgeConfig) -> Result<u32, NetworkError> {
        let name = &config.name;
        let gateways: Vec<Cidr> = self.pools.iter().map(Pool::gateway).collect();
        let link = match link::find(&mut self.route, name)? {
            Some(link) if link.kind != "bridge" => {
                let message = format!("{name} exists and is not a bridge");
                return Err(NotReady {
                    reason: "BridgeNameTaken",
                    message,
                }
                .into());
            }
            Some(link) if link.up && self.index == Some(link.index) => {
                self.firewall.heal()?;
                return Ok(link.index);
            }
            Some(link) => link,
            None => {
                let mac = Mac::of(gateways[0].ip);
                // Another daemon of the same configuration may be faster; the look-up decides.
                let create = link::add_bridge(name, mac, config.mtu).tolerate(Errno::EXIST);
                self.route.run(&[create])?;
                link::find(&mut self.route, name)?.ok_or_else(|| NotReady {
                    reason: "BridgeVanished",
                    message: format!("{name} was removed while it was set up"),
                })?
            }
        };
        self.check_addresses(name, link.index, &gateways)?;
        let mut steps = vec![link::set_up(name)];
        steps.extend(
            gateways
                .iter()
                .map(|gateway| link::add_address(link.index, *gateway)),
        );
        self.route.run(&steps)?;
        enable_forwarding(name, &gateways)?;
        self.firewall.install()?;
        self.index = Some(link.index);
        Ok(link.index)
    }

    /// A bridge with another gateway's address belongs to somebody else, or to another subnet than is configured now.
    fn check_addresses(
        &mut self,
        name: &str,
        index: u32,
        ours: &[Cidr],
    ) -> Result<(), NetworkError> {
        let link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let found = link::addresses(&mut self.route, index)?;
        match found
            .iter()
            .find(|address| !link_local(address.ip) && !ours.contains(address))
        {
            None => Ok(()),
            Some(other) => {
                let message = format!(
                    "bridge {name} has the address {other}, which is not of this configuration"
                );
                Err(NotReady {
                    reason: "BridgeInUse",
                    message,
                }
                .into())
            }
        }
    }
}

/// Pods are reached through the node, and the node's loopback reaches them too (host ports at 127.0.0.1): the reply
/// to a masqueraded loopback packet is a martian without `route_localnet`. The firewall keeps pods from using that.
fn enable_forwarding(bridge: &str, gateways: &[Cidr]) -> Result<(), NetworkError> {
    let mut wanted = Vec::new();
    if gateways.iter().any(|gateway| gateway.ip.is_ipv4()) {
        wanted.push("/proc/sys/net/ipv4/ip_forward".to_owned());
        wanted.push(format!("/proc/sys/net/ipv4/conf/{bridge}/route_localnet"));
    }
    if gateways.iter().any(|gateway| gateway.ip.is_ipv6()) {
        wanted.push("/proc/sys/net/ipv6/conf/all/forwarding".to_owned());
    }
    for path in wanted {
        let current =
            fs::read_to_string(&path).map_err(NetworkError::io(format!("read {path}")))?;
        // Written only when it changes something: setting ip_forward resets other parameters of all interfaces.
        if current.trim() != "1" {
            fs::write(&path, "1").map_err(NetworkError::io(format!("set {path}")))?;
        }
    }
    Ok(())
}

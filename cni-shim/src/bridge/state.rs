//! The bridge itself: made if missing, completed, rejected if it is foreign; and its veth pairs.

use std::fs;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::io::Errno;

use super::error::BridgeError;
use super::ipam::Pool;
use super::ports::Ports;
use crate::addr::{Cidr, Mac};
use crate::link::{self, VethPair};
use crate::netlink::{Family, Socket};
use crate::nft::Firewall;
use crate::record::OnBridge;
use crate::route;
use crate::types::{BridgeConfig, INTERFACE, NotReady};

/// Addresses, ports, links and rules of one bridge, and the sockets that change them.
#[derive(Debug)]
pub(super) struct State {
    pub(super) route: Socket,
    pub(super) firewall: Firewall,
    pub(super) pools: Vec<Pool>,
    pub(super) ports: Ports,
    /// The bridge's index when it is known to be complete.
    pub(super) index: Option<u32>,
}

impl State {
    /// Opens the sockets. Touches no link.
    pub(super) fn open(config: &BridgeConfig) -> Result<Self, BridgeError> {
        let pools = config.subnets.iter().map(|subnet| Pool::new(*subnet));
        Ok(Self {
            route: Socket::open(Family::Route)?,
            firewall: Firewall::open(config)?,
            pools: pools.collect::<Result<_, _>>()?,
            ports: Ports::default(),
            index: None,
        })
    }

    /// Returns the bridge's index; makes the missing parts of the bridge first.
    pub(super) fn ensure(&mut self, config: &BridgeConfig) -> Result<u32, BridgeError> {
        let name = &config.name;
        let gateways: Vec<Cidr> = self.pools.iter().map(Pool::gateway).collect();
        let link = match link::find(&mut self.route, name)? {
            Some(link) if link.kind != "bridge" => {
                let message = format!("{name} exists and is not a bridge");
                return Err(NotReady::new("BridgeNameTaken", message).into());
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
                link::find(&mut self.route, name)?.ok_or_else(|| {
                    let message = format!("{name} was removed while being set up");
                    NotReady::new("BridgeVanished", message)
                })?
            }
        };
        self.check_addresses(name, link.index, &gateways)?;
        let mut steps = vec![link::set_up(name)];
        if gateways.iter().any(|gateway| gateway.ip.is_ipv6()) {
            steps.push(route::add_loopback6_route(link.index));
        }
        steps.extend(
            gateways
                .iter()
                .map(|gateway| link::add_address(link.index, *gateway)),
        );
        self.route.run(&steps)?;
        set_parameters(name, &gateways)?;
        self.firewall.install()?;
        self.index = Some(link.index);
        Ok(link.index)
    }

    /// Makes the veth pair. Retries once: after setting up a bridge that was deleted meanwhile, or
    /// after deleting a pair of the same name, left by an interrupted attach of the same sandbox.
    pub(super) fn plug(
        &mut self,
        config: &BridgeConfig,
        endpoint: &OnBridge,
        netns: BorrowedFd<'_>,
    ) -> Result<(), BridgeError> {
        let mut retried = false;
        loop {
            let bridge = match self.index {
                Some(index) => index,
                None => self.ensure(config)?,
            };
            let pair = VethPair {
                host_name: &endpoint.veth,
                bridge,
                pod_name: INTERFACE,
                pod_mac: Mac::of(endpoint.addresses[0].ip),
                netns,
                mtu: config.mtu,
            };
            match self
                .route
                .run(&[link::add_veth(&pair), link::set_hairpin(&endpoint.veth)])
            {
                Err(error) if !retried && matches!(error.errno, Errno::NODEV | Errno::INVAL) => {
                    self.index = None;
                }
                Err(error) if !retried && error.errno == Errno::EXIST => {
                    self.route.run(&[link::delete(&endpoint.veth)])?;
                }
                other => return Ok(other?),
            }
            retried = true;
        }
    }

    /// The routers of the pods' default routes.
    pub(super) fn gateways(&self) -> Vec<IpAddr> {
        self.pools.iter().map(|pool| pool.gateway().ip).collect()
    }

    pub(super) fn release(&mut self, sandbox_id: &str, endpoint: &OnBridge) {
        for ip in endpoint.ips() {
            self.pools.iter_mut().for_each(|pool| pool.release(ip));
        }
        self.ports.release(sandbox_id);
    }

    /// Rejects a bridge with another address: it is foreign, or of an earlier subnet.
    fn check_addresses(
        &mut self,
        name: &str,
        index: u32,
        ours: &[Cidr],
    ) -> Result<(), BridgeError> {
        let link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let found = link::addresses(&mut self.route, index)?;
        match found
            .iter()
            .find(|address| !link_local(address.ip) && !ours.contains(address))
        {
            None => Ok(()),
            Some(other) => {
                let message =
                    format!("bridge {name} has address {other}, which is not in the configuration");
                Err(NotReady::new("BridgeInUse", message).into())
            }
        }
    }
}

/// Enables forwarding for pods, and host ports at 127.0.0.1: without `route_localnet` the reply to
/// a masqueraded loopback packet is a martian. The firewall prevents other use of it. Pods send no
/// routes.
fn set_parameters(bridge: &str, gateways: &[Cidr]) -> Result<(), BridgeError> {
    let mut wanted = Vec::new();
    if gateways.iter().any(|gateway| gateway.ip.is_ipv4()) {
        wanted.push(("/proc/sys/net/ipv4/ip_forward".to_owned(), "1"));
        wanted.push((
            format!("/proc/sys/net/ipv4/conf/{bridge}/route_localnet"),
            "1",
        ));
    }
    if gateways.iter().any(|gateway| gateway.ip.is_ipv6()) {
        wanted.push(("/proc/sys/net/ipv6/conf/all/forwarding".to_owned(), "1"));
    }
    let accept_ra = format!("/proc/sys/net/ipv6/conf/{bridge}/accept_ra");
    if Path::new(&accept_ra).exists() {
        wanted.push((accept_ra, "0"));
    }
    for (path, value) in wanted {
        let current = fs::read_to_string(&path).map_err(BridgeError::io(format!("read {path}")))?;
        // Written only on a change: setting ip_forward resets other parameters of all interfaces.
        if current.trim() != value {
            fs::write(&path, value).map_err(BridgeError::io(format!("set {path}")))?;
        }
    }
    Ok(())
}

//! Moves network interfaces of the host into pods, and back when the pod stops.
//!
//! Annotation `netdevice.noderesource.dev`, or the older `netdevices.nri.containerd.io`, of the
//! pod: a list of {name, new_name, address, prefix, mtu}. `new_name` defaults to `name`; with an
//! `address`, `prefix` defaults to that of one host.
//!
//! ```text
//!   host: down ─► temp_<index> ─► move ─► pod: alias = host name ─► new name, mtu, address ─► up
//!   pod:  down ─► temp_<index> ─► move ─► host: named by its alias (left down)
//! ```
//!
//! If one interface fails at RunPodSandbox those already moved are moved back, and the pod is
//! vetoed. Teardown ignores interfaces that are not in the pod.

use std::{fs::File, net::IpAddr, os::fd::OwnedFd};

use nri::{Context, Error, Plugin, proto::PodSandbox, read::ReadPod};
use serde::Deserialize;

use crate::{
    annotations,
    cli::{Args, Flag, Usage},
    links::{clone, message, name_of, within},
    log::Log,
    plugin::Sample,
};

const KEYS: [&str; 2] = ["netdevice.noderesource.dev", "netdevices.nri.containerd.io"];
/// Bytes of an interface's name, without the end mark.
const LONGEST: usize = 15;

/// One interface of the annotation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Device {
    /// On the host.
    pub name: String,
    /// In the pod; empty: the name on the host.
    pub new_name: String,
    pub address: String,
    pub prefix: Option<u8>,
    pub mtu: Option<u32>,
}

/// One interface, checked and completed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Move {
    name: String,
    new_name: String,
    address: Option<(IpAddr, u8)>,
    mtu: Option<u32>,
}

/// See the module.
#[derive(Debug)]
pub struct NetworkDeviceInjector {
    /// The host's network namespace, in which the plugin was started.
    host: OwnedFd,
    log: Log,
}

impl Sample for NetworkDeviceInjector {
    const NAME: &'static str = "network-device-injector";
    const USAGE: Usage = [
        "Moves network interfaces of the host into pods, and back when the pod stops.",
        "network-device-injector -idx 10  # or launched; in the network namespace of the host, with CAP_NET_ADMIN and CAP_SYS_ADMIN",
        r#""annotations": {"netdevice.noderesource.dev": "[{name: eth1, new_name: net0, address: 10.9.0.2, prefix: 24, mtu: 1400}]"}"#,
    ];
    const FLAGS: &'static [Flag] = &[];

    fn new(_: &Args, log: Log) -> Result<Self, String> {
        let host = open("/proc/thread-self/ns/net")?;
        Ok(Self { host, log })
    }
}

impl Plugin for NetworkDeviceInjector {
    async fn run_pod_sandbox(&self, _: &Context, pod: PodSandbox) -> Result<(), Error> {
        Ok(self.run(&pod).await?)
    }

    async fn stop_pod_sandbox(&self, _: &Context, pod: PodSandbox) -> Result<(), Error> {
        Ok(self.stop(&pod).await?)
    }
}

impl NetworkDeviceInjector {
    async fn run(&self, pod: &PodSandbox) -> Result<(), String> {
        let Some(found) = annotations::for_pod(pod, &KEYS) else {
            return Ok(());
        };
        let key = found.0.clone();
        let moves =
            check(annotations::read(found)?).map_err(|e| format!("annotation {key}: {e}"))?;
        let path = pod
            .namespace_path("network")
            .ok_or_else(|| format!("annotation {key}: the pod shares the network of the host"))?;
        inject(&self.host, &open(path)?, &moves).await?;
        for Move { name, new_name, .. } in moves {
            let pod = &pod.name;
            self.log.info(format_args!(
                "{name} of the host is {new_name} in pod {pod}"
            ));
        }
        Ok(())
    }

    async fn stop(&self, pod: &PodSandbox) -> Result<(), String> {
        let (Some(found), Some(path)) = (
            annotations::for_pod(pod, &KEYS),
            pod.namespace_path("network"),
        ) else {
            return Ok(());
        };
        let Ok(pod_netns) = open(path) else {
            // Removed with its interfaces; the kernel returns hardware to the host.
            return Ok(());
        };
        let Ok(moves) = annotations::read(found).and_then(check) else {
            // RunPodSandbox must have rejected it.
            return Ok(());
        };
        release(&self.host, &pod_netns, &moves).await
    }
}

fn open(path: &str) -> Result<OwnedFd, String> {
    File::open(path)
        .map(OwnedFd::from)
        .map_err(|e| format!("{path}: {e}"))
}

/// Fills in defaults, and rejects invalid moves before any change.
fn check(devices: Vec<Device>) -> Result<Vec<Move>, String> {
    let mut moves: Vec<Move> = Vec::new();
    for device in devices {
        let name = device.name;
        let new_name = if device.new_name.is_empty() {
            name.clone()
        } else {
            device.new_name
        };
        for name in [&name, &new_name] {
            let odd = |c: char| c == '/' || c == ':' || c.is_whitespace();
            if name.is_empty()
                || name.len() > LONGEST
                || name.contains(odd)
                || name.starts_with('.')
            {
                return Err(format!("invalid interface name {name:?}"));
            }
        }
        if moves
            .iter()
            .any(|m| m.name == name || m.new_name == new_name)
        {
            return Err(format!("interface {name} or {new_name} is there twice"));
        }
        let address = if device.address.is_empty() {
            None
        } else {
            Some(checked_address(&device.address, device.prefix)?)
        };
        moves.push(Move {
            name,
            new_name,
            address,
            mtu: device.mtu,
        });
    }
    Ok(moves)
}

fn checked_address(address: &str, prefix: Option<u8>) -> Result<(IpAddr, u8), String> {
    let parsed: IpAddr = address
        .parse()
        .map_err(|_| format!("invalid address {address:?}"))?;
    let longest = if parsed.is_ipv4() { 32 } else { 128 };
    match prefix.unwrap_or(longest) {
        prefix if prefix <= longest => Ok((parsed, prefix)),
        prefix => Err(format!(
            "address {address}: prefix {prefix} is longer than {longest}"
        )),
    }
}

/// Moves all interfaces into the pod, or none of them.
async fn inject(host: &OwnedFd, pod: &OwnedFd, moves: &[Move]) -> Result<(), String> {
    for (n, one) in moves.iter().enumerate() {
        if let Err(cause) = inject_one(host, pod, one).await {
            let mut error = format!("interface {}: {cause}", one.name);
            if let Err(cause) = release(host, pod, &moves[..=n]).await {
                error = format!("{error}; not all could be moved back: {cause}");
            }
            return Err(error);
        }
    }
    Ok(())
}

async fn inject_one(host: &OwnedFd, pod: &OwnedFd, one: &Move) -> Result<(), String> {
    let (name, target) = (one.name.clone(), clone(pod)?);
    let temporary = within(host, async move |links| {
        let link = links
            .find(&name)
            .await?
            .ok_or("the host has no such interface")?;
        links.send_away(&link, &name, &target).await
    })
    .await?;
    let one = one.clone();
    within(pod, async move |links| {
        let link = links
            .find(&temporary)
            .await?
            .ok_or("it did not arrive in the pod")?;
        let index = link.header.index;
        // First, so that later failures can be undone.
        links.set(message(index).alias(&one.name)).await?;
        links.set(message(index).name(&one.new_name)).await?;
        if let Some(mtu) = one.mtu {
            links.set(message(index).mtu(mtu)).await?;
        }
        if let Some((address, prefix)) = one.address {
            let added = links
                .0
                .address()
                .add(index, address, prefix)
                .execute()
                .await;
            added.map_err(|e| format!("address {address}/{prefix}: {e}"))?;
        }
        links.set(message(index).up()).await
    })
    .await
}

/// Moves back the interfaces that exist; tries all, then reports the errors.
async fn release(host: &OwnedFd, pod: &OwnedFd, moves: &[Move]) -> Result<(), String> {
    let mut errors = Vec::new();
    for one in moves {
        if let Err(cause) = release_one(host, pod, one).await {
            errors.push(format!("interface {}: {cause}", one.name));
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors.join("; "))
    }
}

/// Finds it by its alias, because the pod may have renamed it.
async fn release_one(host: &OwnedFd, pod: &OwnedFd, one: &Move) -> Result<(), String> {
    let (name, target) = (one.name.clone(), clone(host)?);
    let moved = within(pod, async move |links| {
        let Some(link) = links.find_alias(&name).await? else {
            return Ok(None);
        };
        let now = name_of(&link).unwrap_or_default();
        links.send_away(&link, &now, &target).await.map(Some)
    })
    .await?;
    let Some(temporary) = moved else {
        return Ok(());
    };
    let name = one.name.clone();
    within(host, async move |links| {
        let link = links
            .find(&temporary)
            .await?
            .ok_or("it did not arrive on the host")?;
        links.set(message(link.header.index).name(name)).await
    })
    .await
}

#[cfg(test)]
mod tests;

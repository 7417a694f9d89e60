//! The verbs, each alone on its network's state.

use std::fs::{self, File};
use std::path::PathBuf;

use rustix::fs::FlockOperation;
use serde_json::Value;

use super::applied;
use super::config::Config;
use super::fault::Fault;
use crate::attachments::Attachments;
use crate::bridge::{Bridge, BridgeError, Wanted, unplug_name};
use crate::cni::{Verb, Version, check_name, name_families, one_address, shorten};
use crate::file;
use crate::namespaces::is_namespace;
use crate::record::{Backend, OnBridge, Record};

/// Whose interface a call is about.
struct Target {
    /// `<container id>@<interface>`: no id has the sign between.
    key: String,
    interface: String,
    netns: PathBuf,
}

/// The state of a network, locked for the call.
struct Session {
    all: Attachments,
    _lock: File,
}

pub(super) fn run(
    verb: Verb,
    config: &Config,
    environment: &impl Fn(&str) -> Option<String>,
) -> Result<Option<Value>, Fault> {
    match verb {
        Verb::Add => {
            let target = Target::read(environment)?;
            if !is_namespace(&target.netns) {
                let netns = target.netns.display();
                return Err(Fault::environment(format!(
                    "CNI_NETNS {netns:?} is no network namespace"
                )));
            }
            add(config, &target).map(Some)
        }
        Verb::Check => check(config, &Target::read(environment)?).map(|()| None),
        Verb::Del => del(config, &Target::read(environment)?.key).map(|()| None),
        Verb::Gc => gc(config).map(|()| None),
        Verb::Status => status(config).map(|()| None),
        Verb::Version => Ok(None),
    }
}

fn add(config: &Config, target: &Target) -> Result<Value, Fault> {
    let session = Session::open(config)?;
    let bridge = session.bridge()?;
    take_bridge(config)?;
    bridge.assume(applied::index(&config.state_dir, &config.bridge));
    let index = bridge.status()?;
    applied::note(&config.state_dir, &config.bridge, index);
    session.forget_the_dead(bridge)?;
    if session.all.recorded(&target.key).is_some() {
        return Err(Fault::config(format!(
            "{} is attached already: DEL comes before another ADD",
            target.key
        )));
    }
    let attachment = session.all.attach_to_bridge(&Wanted {
        sandbox_id: &target.key,
        netns: &target.netns,
        interface: &target.interface,
        ports: config.ports.clone(),
        limits: config.limits,
    })?;
    for warning in &attachment.warnings {
        eprintln!("cairn-bridge: {warning}");
    }
    let mut result = attachment.result;
    result["cniVersion"] = config.version.as_str().into();
    result["dns"] = config.dns.clone();
    if let Some(map) = result
        .as_object_mut()
        .filter(|_| config.version < Version::V1_0_0)
    {
        name_families(map);
    }
    Ok(result)
}

/// Two networks on one bridge would hand out the same addresses, and remove each other's rules.
fn take_bridge(config: &Config) -> Result<(), Fault> {
    let name = &config.bridge.name;
    let path = config.data_dir.join(format!("{name}.bridge"));
    let owner = fs::read_to_string(&path).unwrap_or_default();
    let used = |owner: &str| {
        let records = config.data_dir.join(owner).join("attachments");
        fs::read_dir(records).is_ok_and(|mut all| all.next().is_some())
    };
    if owner == config.name {
        return Ok(());
    }
    if check_name(&owner).is_ok() && used(&owner) {
        return Err(Fault::config(format!(
            "bridge {name} is that of network {owner}: give this one another \"bridge\" and other \"subnets\""
        )));
    }
    file::replace(&path, config.name.as_bytes(), 0o600)
        .map_err(|cause| Fault::io(format!("write {}: {cause}", path.display())))
}

fn del(config: &Config, key: &str) -> Result<(), Fault> {
    if !config.state_dir.exists() {
        return Ok(());
    }
    Session::open(config)?.take_away(key)
}

fn check(config: &Config, target: &Target) -> Result<(), Fault> {
    let session = Session::open(config)?;
    let endpoint = match session.all.recorded(&target.key) {
        Some((_, Backend::Bridge(endpoint))) => endpoint,
        _ => return Err(Fault::unknown(format!("{} is not attached", target.key))),
    };
    let mut differs = Vec::new();
    if let Some(previous) = &config.previous {
        differs.extend(check_previous(previous, &endpoint));
    }
    differs.extend(session.bridge()?.check(&target.netns, &endpoint)?);
    if differs.is_empty() {
        Ok(())
    } else {
        Err(Fault::differs(differs.join("; ")))
    }
}

/// Whether a result speaks of what the record does.
fn check_previous(previous: &Value, endpoint: &OnBridge) -> Vec<String> {
    let told = previous.get("ips").and_then(Value::as_array);
    let told: Vec<_> = told.into_iter().flatten().filter_map(one_address).collect();
    let missing = endpoint.addresses.iter().filter(|one| !told.contains(one));
    missing
        .map(|one| format!("prevResult has not address {one}"))
        .collect()
}

/// Whether an ADD could be served; nothing is made for it.
fn status(config: &Config) -> Result<(), Fault> {
    crate::nft::probe().map_err(Fault::not_available)?;
    let session = Session::open(config)?;
    session
        .bridge()?
        .could_serve()
        .map_err(Fault::not_available)
}

fn gc(config: &Config) -> Result<(), Fault> {
    if !config.state_dir.exists() {
        return Ok(());
    }
    let session = Session::open(config)?;
    let valid = config.valid.iter();
    let valid: Vec<String> = valid
        .map(|one| key(&one.container_id, &one.ifname))
        .collect();
    let mut all: Vec<String> = session.all.known.lock().keys().cloned().collect();
    all.extend(session.all.unreadable.lock().keys().cloned());
    let gone = all.into_iter().filter(|key| !valid.contains(key));
    gone.map(|key| session.take_away(&key))
        .fold(Ok(()), Result::and)
}

impl Target {
    fn read(environment: &impl Fn(&str) -> Option<String>) -> Result<Self, Fault> {
        let set = |name: &str| environment(name).unwrap_or_default();
        let (id, interface) = (set("CNI_CONTAINERID"), set("CNI_IFNAME"));
        crate::network::check_id(&id).map_err(|_| {
            Fault::environment(format!(
                "CNI_CONTAINERID {:?} is not a valid id",
                shorten(&id)
            ))
        })?;
        let fits = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ':');
        let dots = matches!(interface.as_str(), "." | "..");
        if interface.is_empty() || interface.len() > 15 || dots || !interface.chars().all(fits) {
            let shown = shorten(&interface);
            return Err(Fault::environment(format!(
                "CNI_IFNAME {shown:?} is not an interface name"
            )));
        }
        Ok(Self {
            key: key(&id, &interface),
            interface,
            netns: set("CNI_NETNS").into(),
        })
    }
}

impl Session {
    fn open(config: &Config) -> Result<Self, Fault> {
        let dir = &config.state_dir;
        let at = |step: &str| {
            let step = format!("{step} {}", dir.display());
            move |cause| Fault::io(format!("{step}: {cause}"))
        };
        file::make_private(dir).map_err(at("create"))?;
        let lock = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(dir.join("lock"))
            .map_err(at("open the lock of"))?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive))
            .map_err(|errno| at("lock")(errno.into()))?;
        let all = Attachments::load(&crate::types::Config {
            state_dir: dir.clone(),
            bridge: Some(config.bridge.clone()),
            ..crate::types::Config::default()
        })?;
        Ok(Self { all, _lock: lock })
    }

    fn bridge(&self) -> Result<&Bridge, Fault> {
        let bridge = self.all.bridge();
        bridge.map_err(|why| BridgeError::NotReady(why).into())
    }

    /// Idempotent.
    fn take_away(&self, key: &str) -> Result<(), Fault> {
        if let Some((_, Backend::Bridge(endpoint))) = self.all.recorded(key) {
            return Ok(self.all.detach_from_bridge(key, &endpoint)?);
        }
        if self.all.unreadable.lock().contains_key(key) {
            unplug_name(key).map_err(BridgeError::from)?;
            self.all.forget(key)?;
        }
        Ok(())
    }

    /// What an ADD that was killed, or a reboot, left: no link, so nobody has the address. The lock says that none is
    /// being made.
    fn forget_the_dead(&self, bridge: &Bridge) -> Result<(), Fault> {
        let links = bridge.links()?;
        let known: Vec<Record> = self.all.known.lock().values().cloned().collect();
        for record in known {
            if let Backend::Bridge(endpoint) = &record.backend
                && !links.contains(&endpoint.veth)
            {
                self.all.detach_from_bridge(&record.sandbox_id, endpoint)?;
            }
        }
        Ok(())
    }
}

fn key(container_id: &str, interface: &str) -> String {
    format!("{container_id}@{interface}")
}

//! The program's configuration, from its standard input.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::fault::Fault;
use crate::addr::Cidr;
use crate::bandwidth::Limits;
use crate::bridge::validate;
use crate::cni::{Verb, Version, check_name, shorten};
use crate::types::{BridgeConfig, PortMapping};

/// Not the daemon's: each has its own pool of addresses.
const BRIDGE: &str = "cni-cairn0";
const SUBNET: &str = "10.89.0.0/16";
const DATA_DIR: &str = "/var/lib/cni/cairn-bridge";
/// Keys that are not about the bridge, and are anybody's.
const COMMON: [&str; 10] = [
    "cniVersion",
    "cniVersions",
    "name",
    "type",
    "capabilities",
    "runtimeConfig",
    "prevResult",
    "args",
    "dns",
    "disableCheck",
];
const OURS: [&str; 7] = [
    "bridge",
    "subnets",
    "mtu",
    "spoofCheck",
    "masquerade",
    "nonMasqueradeCIDRs",
    "dataDir",
];

/// A checked configuration.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) version: Version,
    pub(super) name: String,
    pub(super) data_dir: PathBuf,
    /// `<dataDir>/<name>`.
    pub(super) state_dir: PathBuf,
    pub(super) bridge: BridgeConfig,
    pub(super) ports: Vec<PortMapping>,
    pub(super) limits: Option<Limits>,
    pub(super) dns: Value,
    pub(super) previous: Option<Value>,
    /// What GC is to leave.
    pub(super) valid: Vec<ValidAttachment>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Keys {
    bridge: String,
    subnets: Vec<Cidr>,
    /// 0: the kernel's default.
    mtu: u32,
    spoof_check: bool,
    masquerade: bool,
    #[serde(rename = "nonMasqueradeCIDRs")]
    non_masquerade_cidrs: Vec<Cidr>,
    data_dir: PathBuf,
    runtime_config: RuntimeConfig,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeConfig {
    port_mappings: Vec<AskedPort>,
    bandwidth: Limits,
}

/// As runtimes write it: an address may be empty, a protocol in capitals, and so may the keys (containerd's are, for Go
/// reads them either way).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AskedPort {
    #[serde(alias = "HostPort")]
    host_port: i32,
    #[serde(alias = "ContainerPort")]
    container_port: i32,
    #[serde(alias = "Protocol", default)]
    protocol: String,
    #[serde(rename = "hostIP", alias = "HostIP", default)]
    host_ip: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct ValidAttachment {
    #[serde(rename = "containerID")]
    pub(super) container_id: String,
    pub(super) ifname: String,
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            bridge: BRIDGE.to_owned(),
            subnets: SUBNET.parse().into_iter().collect(),
            mtu: 0,
            spoof_check: true,
            masquerade: true,
            non_masquerade_cidrs: Vec::new(),
            data_dir: DATA_DIR.into(),
            runtime_config: RuntimeConfig::default(),
        }
    }
}

/// Reads and checks it as far as a verb needs it: what was added is deleted also by a configuration that would not be
/// taken any more.
pub(super) fn read(input: &[u8], verb: Verb) -> Result<Config, Fault> {
    let value: Value = serde_json::from_slice(input)
        .map_err(|error| Fault::decode(format!("configuration: not JSON: {error}")))?;
    let map = value
        .as_object()
        .ok_or_else(|| Fault::decode("configuration: not a JSON object"))?;
    let text = |key: &str| map.get(key).and_then(Value::as_str);
    let asked = text("cniVersion").unwrap_or_default();
    let version = Version::known(asked).ok_or_else(|| {
        let shown: String = asked.chars().take(32).collect();
        Fault::version(format!(
            "cniVersion {shown:?} is none of {:?}",
            crate::cni::VERSIONS
        ))
    })?;
    let name = text("name").unwrap_or_default();
    check_name(name).map_err(Fault::config)?;
    if matches!(verb, Verb::Add | Verb::Status) {
        check_keys(map)?;
    }
    let keys: Keys = serde_json::from_value(value.clone())
        .map_err(|error| Fault::config(format!("configuration: {error}")))?;
    if !keys.data_dir.is_absolute() {
        return Err(Fault::config("dataDir is not an absolute path"));
    }
    let previous = map.get("prevResult").filter(|one| !one.is_null()).cloned();
    if verb == Verb::Add && previous.is_some() {
        return Err(Fault::config(
            "prevResult: cairn-bridge makes the interface, so it must be the first of its list",
        ));
    }
    let bridge = BridgeConfig {
        table: keys.bridge.replace('.', "_"),
        name: keys.bridge,
        subnets: keys.subnets,
        masquerade: keys.masquerade,
        non_masquerade_cidrs: keys.non_masquerade_cidrs,
        spoof_check: keys.spoof_check,
        mtu: (keys.mtu > 0).then_some(keys.mtu),
    };
    validate(&bridge).map_err(Fault::config)?;
    let ports = keys
        .runtime_config
        .port_mappings
        .iter()
        .filter(|port| port.host_port > 0);
    Ok(Config {
        version,
        name: name.to_owned(),
        state_dir: keys.data_dir.join(name),
        data_dir: keys.data_dir,
        ports: ports.map(port).collect::<Result<_, _>>()?,
        limits: keys.runtime_config.bandwidth.any(),
        dns: map.get("dns").cloned().unwrap_or_else(|| json!({})),
        previous,
        valid: match verb {
            Verb::Gc => valid(map)?,
            _ => Vec::new(),
        },
        bridge,
    })
}

fn check_keys(map: &Map<String, Value>) -> Result<(), Fault> {
    let known = |key: &String| {
        let key = key.as_str();
        COMMON.contains(&key) || OURS.contains(&key) || key.starts_with("cni.dev/")
    };
    match map.keys().find(|key| !known(key)) {
        None => Ok(()),
        Some(key) if key == "ipam" => Err(Fault::field(
            "ipam: cairn-bridge hands out addresses itself: name \"subnets\" instead",
        )),
        Some(key) => {
            let shown = shorten(key);
            let ours = OURS.join(", ");
            Err(Fault::field(format!(
                "unknown key {shown:?} (there are: {ours})"
            )))
        }
    }
}

/// A list that is missing is not an empty one: that would be the end of all.
fn valid(map: &Map<String, Value>) -> Result<Vec<ValidAttachment>, Fault> {
    let keys = ["cni.dev/valid-attachments", "cni.dev/attachments"];
    let list = keys.iter().find_map(|key| map.get(*key)).ok_or_else(|| {
        Fault::config("cni.dev/valid-attachments is missing: GC would remove every attachment")
    })?;
    serde_json::from_value(list.clone())
        .map_err(|error| Fault::config(format!("cni.dev/valid-attachments: {error}")))
}

fn port(asked: &AskedPort) -> Result<PortMapping, Fault> {
    let wrong = |what: &str| Fault::config(format!("portMappings: {what}"));
    let number = |value: i32| {
        let number = u16::try_from(value).ok().filter(|port| *port > 0);
        number.ok_or_else(|| wrong(&format!("{value} is no port")))
    };
    let protocol = match asked.protocol.to_ascii_lowercase().as_str() {
        "tcp" | "" => crate::types::Protocol::Tcp,
        "udp" => crate::types::Protocol::Udp,
        "sctp" => crate::types::Protocol::Sctp,
        _ => return Err(wrong("a protocol is none of tcp, udp and sctp")),
    };
    let host_ip = match asked.host_ip.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|_| wrong("hostIP is no address"))?),
    };
    Ok(PortMapping {
        host_port: number(asked.host_port)?,
        container_port: number(asked.container_port)?,
        protocol,
        host_ip,
    })
}

//! The tables of `cairn.toml` and their defaults. Larger tables have files of their own.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    container::Container, handler::Handler, image::Image, nri::Nri, stream::Stream,
    tracing::Tracing, units::duration,
};

/// The parsed file, every key optional.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    pub version: u32,
    pub root: PathBuf,
    pub state: PathBuf,
    pub listen: String,
    /// For paths from clients and plugins, and for directories in this file.
    #[serde(deserialize_with = "duration")]
    pub path_timeout: Duration,
    pub log: Log,
    pub cgroup: Cgroup,
    pub container: Container,
    /// By the handler name of a RuntimeClass.
    pub handlers: BTreeMap<String, Handler>,
    pub network: Network,
    pub image: Image,
    pub nri: Nri,
    pub metrics: Metrics,
    pub tracing: Tracing,
    pub stream: Stream,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    pub level: Level,
    pub format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    Human,
    Json,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cgroup {
    pub driver: CgroupDriver,
    /// Parent for pods without one; with systemd `/a/b` stands for `a-b.slice`.
    pub parent: String,
}

/// Cgroup driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriver {
    /// systemd if it is init and only cgroup v2 is mounted.
    Auto,
    Cgroupfs,
    Systemd,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    pub cni_conf_dir: PathBuf,
    pub cni_bin_dirs: Vec<PathBuf>,
    /// Results are kept in `results` below it, as in other runtimes.
    pub cni_cache_dir: PathBuf,
    /// Empty: no built-in network.
    pub bridge: String,
    pub subnet: String,
    /// Empty: no IPv6.
    pub subnet6: String,
    pub masquerade: bool,
    pub non_masquerade_cidrs: Vec<String>,
    pub spoof_check: bool,
    /// 0: the kernel's default.
    pub mtu: u32,
    /// Experimental: addresses from NRI plugins.
    pub nri: NriNetwork,
}

/// The role of NRI plugins in a pod's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NriNetwork {
    /// Addresses in their answers are ignored.
    Off,
    /// Their addresses follow those of the network.
    Add,
    /// They provide the only network.
    Only,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// A loopback address and port for Prometheus; empty: none.
    pub listen: String,
}

impl Default for File {
    fn default() -> Self {
        Self {
            version: 1,
            root: "/var/lib/cairn".into(),
            state: "/run/cairn".into(),
            listen: "unix:///run/cairn/cairn.sock".into(),
            path_timeout: Duration::from_secs(30),
            log: Log::default(),
            cgroup: Cgroup::default(),
            container: Container::default(),
            handlers: BTreeMap::new(),
            network: Network::default(),
            image: Image::default(),
            nri: Nri::default(),
            metrics: Metrics::default(),
            tracing: Tracing::default(),
            stream: Stream::default(),
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: Level::Info,
            format: Format::Human,
        }
    }
}

impl Default for Cgroup {
    fn default() -> Self {
        Self {
            driver: CgroupDriver::Auto,
            parent: "/cairn".into(),
        }
    }
}

impl Default for Network {
    fn default() -> Self {
        Self {
            cni_conf_dir: "/etc/cni/net.d".into(),
            cni_bin_dirs: vec!["/opt/cni/bin".into()],
            cni_cache_dir: "/var/lib/cni".into(),
            bridge: "cairn0".into(),
            subnet: "10.88.0.0/16".into(),
            subnet6: String::new(),
            masquerade: true,
            non_masquerade_cidrs: Vec::new(),
            spoof_check: true,
            mtu: 0,
            nri: NriNetwork::Off,
        }
    }
}

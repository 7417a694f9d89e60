//! A configuration whose every value is valid.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
    path::{Path, PathBuf},
    str::FromStr,
};

use super::{
    error::Error,
    file::{File, Metrics, Network, NriNetwork},
    handler,
};

/// A checked configuration. The daemon accepts no other kind.
#[derive(Debug, Clone)]
pub struct Config {
    file: File,
    socket: PathBuf,
    metrics: Option<SocketAddr>,
    nri_settings: ::nri::Settings,
}

impl std::ops::Deref for Config {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Config {
    /// The path of `listen`.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The settings of the nri library.
    pub fn nri_settings(&self) -> ::nri::Settings {
        self.nri_settings.clone()
    }

    /// The address of the metrics, if configured.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Checks every value, without side effects.
    ///
    /// # Errors
    /// The first key with an invalid value.
    pub fn check(file: File) -> Result<Self, Error> {
        let refuse = |key, message: &str| Err(Error::value(key, message));
        if file.version != 1 {
            return refuse("version", "unsupported version (supported: 1)");
        }
        for (key, path) in [
            ("root", &file.root),
            ("state", &file.state),
            ("network.cni_conf_dir", &file.network.cni_conf_dir),
            ("network.cni_cache_dir", &file.network.cni_cache_dir),
            ("image.registry_config_dir", &file.image.registry_config_dir),
            ("nri.socket", &file.nri.socket),
            ("nri.plugin_dir", &file.nri.plugin_dir),
            ("nri.plugin_config_dir", &file.nri.plugin_config_dir),
        ] {
            if !path.is_absolute() {
                return refuse(key, &format!("{} is not an absolute path", path.display()));
            }
        }
        let record = &file.nri.record;
        if !record.as_os_str().is_empty() && !record.is_absolute() {
            let why = format!("{} is not an absolute path", record.display());
            return refuse("nri.record", &why);
        }
        if file.root == file.state {
            return refuse(
                "state",
                "must differ from root: state does not survive a reboot, root does",
            );
        }
        let socket = socket_path("listen", &file.listen)?;
        if file.nri.socket.as_os_str().len() > MAX_SOCKET_PATH {
            return refuse("nri.socket", "socket path too long (limit: 107 bytes)");
        }
        if !file.cgroup.parent.starts_with('/') || file.cgroup.parent.contains("..") {
            return refuse("cgroup.parent", "must be an absolute path without '..'");
        }
        check_network(&file.network)?;
        file.container.check()?;
        handler::check(&file.handlers, &file.container)?;
        file.image.check()?;
        for (key, value) in [
            ("path_timeout", file.path_timeout),
            ("nri.registration_timeout", file.nri.registration_timeout),
            ("nri.request_timeout", file.nri.request_timeout),
            ("stream.idle_timeout", file.stream.idle_timeout),
        ] {
            if value.is_zero() {
                return refuse(key, "must be longer than zero");
            }
        }
        let metrics = check_metrics(&file.metrics)?;
        file.stream.check()?;
        file.tracing.check()?;
        let mut nri_settings = file.nri.settings()?;
        nri_settings.pod_ips = file.network.nri != NriNetwork::Off;
        if nri_settings.pod_ips && !file.nri.enable {
            return refuse("network.nri", "needs nri.enable = true");
        }
        Ok(Self {
            file,
            socket,
            metrics,
            nri_settings,
        })
    }
}

/// `sun_path` has 108 bytes with the final NUL.
const MAX_SOCKET_PATH: usize = 107;

/// The path of a `unix:///path` endpoint.
///
/// # Errors
/// Another scheme, a relative path, or one too long for a socket address.
pub fn socket_path(key: &'static str, endpoint: &str) -> Result<PathBuf, Error> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    let message = if path.contains("://") {
        format!("{endpoint}: unsupported scheme (supported: unix://)")
    } else if !path.starts_with('/') {
        format!("{endpoint}: the path of a unix:// endpoint must be absolute")
    } else if path.len() > MAX_SOCKET_PATH {
        format!("{endpoint}: socket path too long (limit: {MAX_SOCKET_PATH} bytes)")
    } else {
        return Ok(path.into());
    };
    Err(Error::value(key, message))
}

/// Metrics contain names of pods, so they are for this machine only.
fn check_metrics(metrics: &Metrics) -> Result<Option<SocketAddr>, Error> {
    if metrics.listen.is_empty() {
        return Ok(None);
    }
    match metrics.listen.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(Some(address)),
        _ => Err(Error::value(
            "metrics.listen",
            format!(
                "\"{}\": must be a loopback address and port",
                metrics.listen
            ),
        )),
    }
}

fn check_network(network: &Network) -> Result<(), Error> {
    let refuse = |key, message: String| Err(Error::value(key, message));
    let name = &network.bridge;
    if name.len() > 15 || name.contains(['/', ' ']) {
        return refuse(
            "network.bridge",
            format!("\"{name}\": invalid interface name (up to 15 bytes, no slash, no blank)"),
        );
    }
    if !matches!(network.mtu, 0 | 1280..=65_535) {
        return refuse(
            "network.mtu",
            format!("{} must be 0, or 1280 to 65535", network.mtu),
        );
    }
    let Network {
        subnet, subnet6, ..
    } = network;
    if !is_subnet::<Ipv4Addr>(subnet, 8..=29) {
        return refuse(
            "network.subnet",
            format!("\"{subnet}\": must be an IPv4 subnet of /8 to /29"),
        );
    }
    if !subnet6.is_empty() && !is_subnet::<Ipv6Addr>(subnet6, 48..=124) {
        return refuse(
            "network.subnet6",
            format!("\"{subnet6}\": must be an IPv6 subnet of /48 to /124"),
        );
    }
    let is_cidr =
        |text: &str| is_subnet::<Ipv4Addr>(text, 0..=32) || is_subnet::<Ipv6Addr>(text, 0..=128);
    if let Some(wrong) = network
        .non_masquerade_cidrs
        .iter()
        .find(|text| !is_cidr(text))
    {
        return refuse(
            "network.non_masquerade_cidrs",
            format!("\"{wrong}\": must be a subnet, like \"10.88.0.0/16\""),
        );
    }
    Ok(())
}

fn is_subnet<A: FromStr>(text: &str, prefixes: RangeInclusive<u8>) -> bool {
    text.split_once('/').is_some_and(|(address, prefix)| {
        let fits = |prefix| prefixes.contains(&prefix);
        address.parse::<A>().is_ok() && prefix.parse().is_ok_and(fits)
    })
}

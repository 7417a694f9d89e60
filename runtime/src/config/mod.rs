//! `cairn.toml`: every key, its default, and the check that turns a file plus flags into a
//! [`Config`] before anything on the machine is touched.
//!
//! An error is one line that names the key (CRI has no say here; "Arguments →
//! checked configuration → bind").

mod container;
mod duration;
mod error;
mod handler;
mod image;
mod nri;
mod size;
mod stream;

pub use container::{Container, SeccompDefault};
pub use error::Error;
pub use handler::Handler;
pub use image::Image;
pub use nri::Nri;
pub use stream::Stream;

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// The commented default configuration, as `cairn config default` prints it. A test holds it
/// equal to [`File::default`].
pub const DEFAULT_TEXT: &str = include_str!("default.toml");

/// The manual page of the configuration, as roff: the default with its comments.
pub fn manual() -> String {
    let escaped = |line: &str| format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-"));
    let text: String = DEFAULT_TEXT.lines().map(escaped).collect();
    format!(
        ".TH cairn.toml 5\n.SH NAME\ncairn.toml \\- configuration of cairn\n.SH DESCRIPTION\n\
         Every key is optional; this is the default. \\fBcairn config check FILE\\fR judges a file.\n\
         .PP\n.nf\n{text}.fi\n.SH SEE ALSO\n.BR cairn (1)\n"
    )
}

/// The file as it stands, every key optional.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    pub version: u32,
    pub root: PathBuf,
    pub state: PathBuf,
    pub listen: String,
    pub log: Log,
    pub cgroup: Cgroup,
    pub container: Container,
    /// By the name that a RuntimeClass gives.
    pub handlers: BTreeMap<String, Handler>,
    pub network: Network,
    pub image: Image,
    pub nri: Nri,
    pub trace: Trace,
    pub metrics: Metrics,
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
    /// Parent for pods that name none; with systemd `/a/b` stands for `a-b.slice`.
    pub parent: String,
}

/// Cgroup driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriver {
    /// systemd where it is init and only cgroup v2 is mounted.
    Auto,
    Cgroupfs,
    Systemd,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    pub cni_conf_dir: PathBuf,
    pub cni_bin_dirs: Vec<PathBuf>,
    /// Empty: no built-in network.
    pub bridge: String,
    pub subnet: String,
    /// Empty: no IPv6.
    pub subnet6: String,
    pub masquerade: bool,
    pub spoof_check: bool,
    /// 0: the kernel's default.
    pub mtu: u32,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Trace {
    /// Events kept in memory for `cairn timeline`.
    pub ring: usize,
    pub file_bytes: u64,
    pub files: usize,
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
            log: Log::default(),
            cgroup: Cgroup::default(),
            container: Container::default(),
            handlers: BTreeMap::new(),
            network: Network::default(),
            image: Image::default(),
            nri: Nri::default(),
            trace: Trace::default(),
            metrics: Metrics::default(),
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
            bridge: "cairn0".into(),
            subnet: "10.88.0.0/16".into(),
            subnet6: String::new(),
            masquerade: true,
            spoof_check: true,
            mtu: 0,
        }
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            ring: 8192,
            file_bytes: 16 << 20,
            files: 4,
        }
    }
}

/// A configuration that was checked: the only kind the daemon is built from.
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
    /// The path behind `listen`.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// NRI's part, as the library takes it.
    pub fn nri_settings(&self) -> ::nri::Settings {
        self.nri_settings.clone()
    }

    /// Where metrics are served, if anywhere.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Judges every value; touches nothing.
    ///
    /// # Errors
    /// The first key whose value cannot be served.
    pub fn check(file: File) -> Result<Self, Error> {
        let refuse = |key, message: &str| {
            Err(Error::Value {
                key,
                message: message.to_owned(),
            })
        };
        if file.version != 1 {
            return refuse("version", "unsupported version (supported: 1)");
        }
        for (key, path) in [
            ("root", &file.root),
            ("state", &file.state),
            ("network.cni_conf_dir", &file.network.cni_conf_dir),
            ("image.registry_config_dir", &file.image.registry_config_dir),
            ("nri.socket", &file.nri.socket),
            ("nri.plugin_dir", &file.nri.plugin_dir),
            ("nri.plugin_config_dir", &file.nri.plugin_config_dir),
        ] {
            if !path.is_absolute() {
                return refuse(key, &format!("{} is not an absolute path", path.display()));
            }
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
            ("nri.registration_timeout", file.nri.registration_timeout),
            ("nri.request_timeout", file.nri.request_timeout),
            ("nri.sync_timeout", file.nri.sync_timeout),
            ("stream.idle_timeout", file.stream.idle_timeout),
        ] {
            if value.is_zero() {
                return refuse(key, "must be longer than zero");
            }
        }
        if !(64..=1 << 20).contains(&file.trace.ring) {
            return refuse("trace.ring", "must be from 64 to 1048576 events");
        }
        let metrics = check_metrics(&file.metrics)?;
        file.stream.check()?;
        let nri_settings = file.nri.settings()?;
        Ok(Self {
            file,
            socket,
            metrics,
            nri_settings,
        })
    }
}

/// `sun_path` holds 108 bytes with the final NUL.
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
    Err(Error::Value { key, message })
}

/// Metrics are for this machine: they name pods.
fn check_metrics(metrics: &Metrics) -> Result<Option<SocketAddr>, Error> {
    if metrics.listen.is_empty() {
        return Ok(None);
    }
    let address: Option<SocketAddr> = metrics.listen.parse().ok();
    match address {
        Some(address) if address.ip().is_loopback() => Ok(Some(address)),
        _ => Err(Error::Value {
            key: "metrics.listen",
            message: format!(
                "\"{}\": must be a loopback address and port",
                metrics.listen
            ),
        }),
    }
}

fn check_network(network: &Network) -> Result<(), Error> {
    let refuse = |key, message: String| Err(Error::Value { key, message });
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
    let subnet = network
        .subnet
        .split_once('/')
        .and_then(|(addr, bits)| Some((addr.parse::<Ipv4Addr>().ok()?, bits.parse::<u8>().ok()?)));
    match subnet {
        Some((_, 8..=29)) => {}
        _ => {
            return refuse(
                "network.subnet",
                format!(
                    "\"{}\": must be an IPv4 subnet of /8 to /29",
                    network.subnet
                ),
            );
        }
    }
    if !network.subnet6.is_empty() {
        let ok = network.subnet6.split_once('/').is_some_and(|(addr, bits)| {
            addr.parse::<std::net::Ipv6Addr>().is_ok()
                && bits.parse::<u8>().is_ok_and(|b| (48..=124).contains(&b))
        });
        if !ok {
            return refuse(
                "network.subnet6",
                format!(
                    "\"{}\": must be an IPv6 subnet of /48 to /124",
                    network.subnet6
                ),
            );
        }
    }
    Ok(())
}

/// Reads a file and refuses unknown keys; the values are judged by [`Config::check`].
///
/// # Errors
/// A file that cannot be read, or the first line that is no TOML of ours.
pub fn read(path: &Path) -> Result<File, Error> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(path, &text)
}

fn parse(path: &Path, text: &str) -> Result<File, Error> {
    let refuse = |key: &str, error: &toml::de::Error| Error::Parse {
        path: path.to_owned(),
        message: one_line(text, key, error),
    };
    let document = toml::Deserializer::parse(text).map_err(|error| refuse("", &error))?;
    serde_path_to_error::deserialize(document)
        .map_err(|error| refuse(&error.path().to_string(), error.inner()))
}

fn one_line(text: &str, key: &str, error: &toml::de::Error) -> String {
    let mut message = error.message().replace('\n', " ");
    // The path of an unknown key ends at its table, which the message completes.
    if !key.is_empty() && key != "." {
        message = format!("{key}: {message}");
    }
    match error.span() {
        Some(span) => {
            let line = text[..span.start].matches('\n').count() + 1;
            format!("line {line}: {message}")
        }
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(text: &str) -> String {
        match parse(Path::new("cairn.toml"), text).and_then(Config::check) {
            Ok(_) => "fine".into(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_printed_default_is_the_default() {
        let printed = parse(Path::new("default"), DEFAULT_TEXT).expect("parses");
        assert_eq!(printed, File::default());
        Config::check(printed).expect("is valid");
    }

    #[test]
    fn every_key_of_the_default_is_printed() {
        let keys: toml::Table = toml::from_str(DEFAULT_TEXT).expect("parses");
        for (table, expected) in [
            ("container", 9),
            ("network", 8),
            ("nri", 16),
            ("image", 11),
            ("trace", 3),
            ("stream", 5),
        ] {
            assert_eq!(
                keys[table].as_table().expect("a table").len(),
                expected,
                "{table}"
            );
        }
    }

    #[test]
    fn the_manual_page_shows_every_line_of_the_default_as_text() {
        let page = manual();
        let shown = page.lines().filter_map(|line| line.strip_prefix("\\&"));
        let shown: Vec<_> = shown
            .map(|l| l.replace("\\-", "-").replace("\\e", "\\"))
            .collect();
        assert_eq!(shown, DEFAULT_TEXT.lines().collect::<Vec<_>>());
    }

    #[test]
    fn an_unknown_key_is_refused_by_name_and_line() {
        assert_eq!(
            judge("version = 1\nrooot = \"/x\"\n")
                .split(", expected")
                .next(),
            Some("cairn.toml: line 2: rooot: unknown field `rooot`")
        );
        assert!(judge("[nri.plugin.\"10-x\"]\nfoo = 1\n").contains("unknown field `foo`"));
    }

    #[test]
    fn a_bad_value_is_refused_by_key() {
        assert_eq!(
            judge("version = 2"),
            "version: unsupported version (supported: 1)"
        );
        assert_eq!(judge("root = \"x\""), "root: x is not an absolute path");
        assert!(judge("listen = \"tcp://1\"").starts_with("listen: tcp://1: unsupported scheme"));
        assert!(judge("[network]\nsubnet = \"10.0.0.0\"").starts_with("network.subnet: "));
        assert!(judge("[nri]\nrequest_timeout = \"2\"").contains("invalid duration"));
        assert!(judge("[nri]\nrequest_timeout = \"0s\"").starts_with("nri.request_timeout: "));
        assert!(judge("[metrics]\nlisten = \"0.0.0.0:1\"").starts_with("metrics.listen: "));
        assert!(judge("[nri.plugin.x]\n").starts_with("nri.plugin: \"x\""));
        for (key, value) in [
            ("max_parallel_layers", "17"),
            ("max_layers_per_host", "0"),
            ("max_layers", "4"),
            ("max_image_bytes", "\"1KiB\""),
            ("max_image_bytes", "\"1GB\""),
            ("max_image_files", "999"),
            ("max_image_depth", "15"),
            ("max_volume_bytes", "1"),
            ("progress_timeout", "\"0s\""),
        ] {
            let said = judge(&format!("[image]\n{key} = {value}"));
            assert!(said.contains(&format!("image.{key}: ")), "{said}");
        }
        for bad in [
            "\"http://r.example\" = []",
            "\"r.example\" = [\"login.example/x\"]",
        ] {
            let said = judge(&format!("[image.token_services]\n{bad}"));
            assert!(said.starts_with("image.token_services: "), "{said}");
        }
        assert!(judge("[cgroup]\nparent = \"/a/../b\"").starts_with("cgroup.parent: "));
        assert!(judge("[container]\nulimits = [\"nofile\"]").starts_with("container.ulimits: "));
        assert!(
            judge("[image]\npinned = [\"Bad Name\"]").starts_with("image.pinned: \"Bad Name\"")
        );
    }

    #[test]
    fn a_handler_has_what_it_sets_and_the_rest_of_container() {
        let text = "[container]\nulimits = [\"nofile=1\"]\nignore_image_volumes = true\n\
            [handlers.hard]\nulimits = [\"core=0\"]\nunset_seccomp_profile = \"runtime-default\"";
        let file = parse(Path::new("cairn.toml"), text).expect("parses");
        let own = file.handlers["hard"].over(&file.container);
        assert_eq!(own.ulimits, ["core=0"]);
        assert_eq!(own.unset_seccomp_profile, SeccompDefault::RuntimeDefault);
        assert!(own.ignore_image_volumes);
        assert_eq!(file.container.ulimits, ["nofile=1"]);
        assert_eq!(
            judge("[handlers.hard]\nulimits = [\"cores=0\"]"),
            "handlers: hard: ulimits: \"cores=0\": unknown limit (see getrlimit(2))"
        );
        assert!(judge("[handlers.Hard]").starts_with("handlers: \"Hard\": a handler's name has"));
        assert!(judge("[handlers.hard]\nmax_log_line = 1").contains("unknown field"));
    }
}

//! The hosts for a registry's images and their settings: `hosts.toml` (CRI-410).
//!
//! ```text
//! <config dir>/<host>_<port>_/hosts.toml, else <host>:<port>/, else _default/
//! server = "https://…"                 the registry itself, asked last
//! [host."https://mirror.example/path"] asked before it, in the file's order
//! ```
//!
//! Read for each pull. A directory without `hosts.toml` may have Docker's layout (`*.crt`, `*.cert`
//! with `*.key`).

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::{Table, Value};

/// The most bytes read of a `hosts.toml` or a certificate file.
const FILE_MAX: u64 = 1 << 20;
const HOSTS_MAX: usize = 64;
const DIAL_TIMEOUT: Duration = Duration::from_secs(30);

/// One host to ask for a registry's images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// `scheme://host[:port][/path]` including the API's version: `https://mirror.example/v2`.
    pub api: String,
    /// `host[:port]`, for errors and credentials.
    pub host: String,
    /// May resolve tags; otherwise it is asked only for content by digest.
    pub resolve: bool,
    pub pull: bool,
    /// Not the registry itself: requests carry `ns=<registry>`.
    pub mirror: bool,
    /// Plain http is used if https fails (unconfigured loopback hosts).
    pub plain_fallback: bool,
    pub tls: Tls,
    pub headers: Vec<(String, String)>,
    pub dial_timeout: Duration,
}

/// Contents of PEM files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Tls {
    pub skip_verify: bool,
    /// Authorities trusted besides the system's.
    pub authorities: Vec<Vec<u8>>,
    /// Certificate and key in one; the first is used.
    pub client: Vec<Vec<u8>>,
}

/// Error in a registry's configuration.
#[derive(Debug, Clone, thiserror::Error)]
#[error("registry configuration {}: {why}", path.display())]
pub struct BadHosts {
    path: PathBuf,
    why: String,
}

/// Hosts for images of `registry`, in order. Never empty.
pub(crate) fn endpoints(config: &Path, registry: &str) -> Result<Vec<Endpoint>, BadHosts> {
    let Some(dir) = directories(config, registry).find(|dir| dir.is_dir()) else {
        return Ok(vec![default_endpoint(registry)]);
    };
    let file = dir.join("hosts.toml");
    let bad = |path: PathBuf, e: io::Error| BadHosts {
        path,
        why: e.to_string(),
    };
    match read(&file) {
        Ok(text) => {
            let text = String::from_utf8_lossy(&text);
            parse(&dir, registry, &text).map_err(|why| BadHosts { path: file, why })
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let mut endpoint = default_endpoint(registry);
            endpoint.tls = docker_certificates(&dir).map_err(|e| bad(dir, e))?;
            Ok(vec![endpoint])
        }
        Err(e) => Err(bad(file, e)),
    }
}

/// The possible directories of a registry's configuration; the first that exists counts.
pub(crate) fn directories(config: &Path, registry: &str) -> impl Iterator<Item = PathBuf> {
    let port = registry.rsplit_once(':');
    let with_port = port.map(|(host, port)| format!("{host}_{port}_"));
    let names = [
        with_port,
        Some(registry.to_owned()),
        Some("_default".to_owned()),
    ];
    names.into_iter().flatten().map(|name| config.join(name))
}

/// The endpoint of an unconfigured registry.
fn default_endpoint(registry: &str) -> Endpoint {
    let host = api_host(registry);
    let (scheme, skip_verify, plain_fallback) = match loopback_port(registry) {
        None => ("https", false, false),
        Some(None | Some(443)) => ("https", true, false),
        Some(Some(80)) => ("http", false, false),
        Some(Some(_)) => ("https", true, true),
    };
    Endpoint {
        api: format!("{scheme}://{host}/v2"),
        host: host.to_owned(),
        resolve: true,
        pull: true,
        mirror: false,
        plain_fallback,
        tls: Tls {
            skip_verify,
            ..Tls::default()
        },
        headers: Vec::new(),
        dial_timeout: DIAL_TIMEOUT,
    }
}

/// The host of a registry's API, which for Docker differs from the name in its images.
fn api_host(registry: &str) -> &str {
    match registry {
        "docker.io" => "registry-1.docker.io",
        other => other,
    }
}

/// The port, if any, of a loopback host; `None` for other hosts.
fn loopback_port(registry: &str) -> Option<Option<u16>> {
    let (host, port) = match registry.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()),
        _ => (registry, None),
    };
    let address = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    (host == "localhost" || address.is_ok_and(|a| a.is_loopback())).then_some(port)
}

/// Parses `hosts.toml`, whose file names are relative to `dir`.
pub(crate) fn parse(dir: &Path, registry: &str, text: &str) -> Result<Vec<Endpoint>, String> {
    let table: Table = text
        .parse()
        .map_err(|e: toml::de::Error| e.message().to_owned())?;
    let mut endpoints = Vec::new();
    if let Some(hosts) = table.get("host") {
        let hosts = hosts.as_table().ok_or("`host` is not a table")?;
        if hosts.len() > HOSTS_MAX {
            return Err(format!("more than {HOSTS_MAX} hosts"));
        }
        for (url, keys) in hosts {
            let keys = keys
                .as_table()
                .ok_or_else(|| format!("host {url:?} is not a table"))?;
            if keys.contains_key("host") {
                return Err(format!("host {url:?} contains another host table"));
            }
            let base = at_url(default_endpoint(registry), url, keys)?;
            endpoints.push(with_keys(base, dir, registry, keys)?);
        }
    }
    let mut server = default_endpoint(registry);
    if let Some(url) = table.get("server") {
        let url = url.as_str().ok_or("`server` is not a string")?;
        server = at_url(server, url, &table)?;
    }
    endpoints.push(with_keys(server, dir, registry, &table)?);
    endpoints.retain(|e| e.pull || e.resolve);
    if endpoints.is_empty() {
        return Err("no host has the pull capability".into());
    }
    Ok(endpoints)
}

/// The endpoint with another URL, whose scheme is optional.
fn at_url(mut endpoint: Endpoint, url: &str, keys: &Table) -> Result<Endpoint, String> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    if !matches!(scheme, "http" | "https") {
        return Err(format!(
            "{url:?}: unsupported scheme (supported: http, https)"
        ));
    }
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if host.is_empty() || host.contains(['@', '?', '#', ' ']) {
        return Err(format!(
            "{url:?} must be of the form <scheme>://<host>[/path]"
        ));
    }
    let path = match path.trim_matches('/') {
        "" => String::new(),
        path => format!("/{path}"),
    };
    let override_path = match keys.get("override_path") {
        None => false,
        Some(value) => value.as_bool().ok_or("`override_path` is not a boolean")?,
    };
    let version = if override_path || path.ends_with("/v2") {
        ""
    } else {
        "/v2"
    };
    let host = api_host(host);
    endpoint.api = format!("{scheme}://{host}{path}{version}");
    endpoint.host = host.to_owned();
    endpoint.plain_fallback = false;
    endpoint.tls.skip_verify = false;
    Ok(endpoint)
}

fn with_keys(
    mut e: Endpoint,
    dir: &Path,
    registry: &str,
    keys: &Table,
) -> Result<Endpoint, String> {
    e.mirror = e.host != default_endpoint(registry).host;
    if let Some(list) = keys.get("capabilities") {
        let list = strings(list).ok_or("`capabilities` is not a list of strings")?;
        if let Some(odd) = list
            .iter()
            .find(|c| !matches!(**c, "pull" | "resolve" | "push"))
        {
            return Err(format!("unknown capability {odd:?}"));
        }
        e.pull = list.contains(&"pull");
        e.resolve = list.contains(&"resolve");
    }
    if let Some(skip) = keys.get("skip_verify") {
        e.tls.skip_verify = skip.as_bool().ok_or("`skip_verify` is not a boolean")?;
    }
    if let Some(ca) = keys.get("ca") {
        let paths = strings(ca).ok_or("`ca` is not a path or a list of paths")?;
        e.tls.authorities = paths
            .into_iter()
            .map(|p| pem(dir, p))
            .collect::<Result<_, _>>()?;
    }
    if let Some(client) = keys.get("client") {
        e.tls.client = client_pairs(dir, client)?;
    }
    if let Some(headers) = keys.get("header") {
        let headers = headers.as_table().ok_or("`header` is not a table")?;
        for (name, values) in headers {
            let values = strings(values).ok_or_else(|| format!("header {name:?} is not text"))?;
            e.headers
                .extend(values.into_iter().map(|v| (name.clone(), v.to_owned())));
        }
    }
    if let Some(timeout) = keys.get("dial_timeout") {
        let text = timeout.as_str().ok_or("`dial_timeout` is not a string")?;
        e.dial_timeout = duration(text).ok_or_else(|| format!("invalid dial_timeout {text:?}"))?;
    }
    Ok(e)
}

/// A string, or a list of them.
fn strings(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(text) => Some(vec![text]),
        Value::Array(list) => list.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

/// One file, a list of files, or a list of [certificate, key].
fn client_pairs(dir: &Path, value: &Value) -> Result<Vec<Vec<u8>>, String> {
    let single = std::slice::from_ref(value);
    let list = value.as_array().map_or(single, Vec::as_slice);
    list.iter()
        .map(|item| {
            let files = strings(item).filter(|f| (1..=2).contains(&f.len()));
            let files = files.ok_or("`client` is not files or [certificate, key] pairs")?;
            let parts = files
                .into_iter()
                .map(|f| pem(dir, f))
                .collect::<Result<Vec<_>, _>>()?;
            Ok(parts.join(&b'\n'))
        })
        .collect()
}

fn pem(dir: &Path, path: &str) -> Result<Vec<u8>, String> {
    let path = dir.join(path);
    read(&path).map_err(|e| format!("{}: {e}", path.display()))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    use io::Read;
    let mut bytes = Vec::new();
    fs::File::open(path)?
        .take(FILE_MAX)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn docker_certificates(dir: &Path) -> io::Result<Tls> {
    let mut tls = Tls::default();
    let mut paths: Vec<_> = fs::read_dir(dir)?.flatten().map(|e| e.path()).collect();
    paths.sort();
    for path in paths {
        match path.extension().and_then(|e| e.to_str()) {
            Some("crt") => tls.authorities.push(read(&path)?),
            Some("cert") => {
                let pair = [read(&path)?, read(&path.with_extension("key"))?];
                tls.client.push(pair.join(&b'\n'));
            }
            _ => {}
        }
    }
    Ok(tls)
}

/// A Go duration of one or more integer parts, such as `1m30s` or `500ms`.
fn duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let count: u32 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = &rest[..rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len())];
        let one = match unit {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            _ => return None,
        };
        total = total.checked_add(one.checked_mul(count)?)?;
        rest = &rest[unit.len()..];
    }
    (!total.is_zero()).then_some(total)
}

#[cfg(test)]
#[path = "hosts_tests.rs"]
mod tests;

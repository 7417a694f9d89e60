//! Checks of the daemon's surroundings: helpers, limits, network configuration, other runtimes.

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::Path,
};

use rustix::process::{Resource, getrlimit};

use super::finding::Finding;
use crate::{
    config::{Config, NriNetwork},
    store::Lock,
};

const HELPERS: [&str; 2] = ["cairn-monitor", "cairn-create"];
/// Enough for a few thousand containers.
const OPEN_FILES: u64 = 65_536;

pub(super) fn helpers(dir: &Path) -> Finding {
    let bad: Vec<_> = HELPERS
        .into_iter()
        .filter(|name| {
            let meta = fs::metadata(dir.join(name));
            !meta.is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o133 == 0o111)
        })
        .collect();
    if bad.is_empty() {
        return Finding::ok(
            "helpers",
            format!("{} in {}", HELPERS.join(" "), dir.display()),
        );
    }
    Finding::fails(
        "helpers",
        format!("{} not in {}", bad.join(" "), dir.display()),
        "install them beside cairn, executable and writable by root alone",
    )
}

pub(super) fn open_files() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    let shown = |value: Option<u64>| value.map_or("unlimited".to_owned(), |n| n.to_string());
    let found = format!(
        "{} (soft), {} (hard)",
        shown(limit.current),
        shown(limit.maximum)
    );
    // The daemon raises the soft limit to the hard one at start.
    if limit.maximum.is_none_or(|hard| hard >= OPEN_FILES) {
        return Finding::ok("open files", found);
    }
    Finding::limited(
        "open files",
        found,
        format!(
            "hundreds of containers use them up: give the daemon {OPEN_FILES} or more (LimitNOFILE; \
             this is the limit of this process)"
        ),
    )
}

pub(super) fn network(config: &Config, unanswered: Option<String>) -> Vec<Finding> {
    if config.network.nri == NriNetwork::Only {
        let found = "network.nri is \"only\": pods get their addresses from NRI plugins";
        return vec![Finding::ok("network", found)];
    }
    let cni = match unanswered {
        None => cni(config),
        Some(why) => Finding::limited("cni", why, "pods get no network until it answers"),
    };
    let mut findings = vec![cni];
    if !config.network.bridge.is_empty() {
        findings.push(bridge(config));
    }
    findings
}

/// Pods get an existing configuration, otherwise the built-in bridge if there is one.
fn cni(config: &Config) -> Finding {
    const WHAT: &str = "cni";
    let network = &config.network;
    let dir = network.cni_conf_dir.display();
    let is_one = |name: &str| {
        [".conf", ".conflist", ".json"]
            .iter()
            .any(|end| name.ends_with(end))
    };
    let entries = fs::read_dir(&network.cni_conf_dir)
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter(|name| is_one(name)).collect();
    names.sort();
    let Some(first) = names.first() else {
        if network.bridge.is_empty() {
            return Finding::limited(
                WHAT,
                format!("no configuration in {dir}, and network.bridge is \"\""),
                "only pods on the host's network start: add a configuration, or name a bridge",
            );
        }
        return Finding::ok(
            WHAT,
            format!("no configuration in {dir}: pods get the built-in bridge"),
        );
    };
    let programs = network.cni_bin_dirs.iter();
    let programs = programs.flat_map(|dir| fs::read_dir(dir).into_iter().flatten());
    if programs.count() > 0 {
        return Finding::ok(WHAT, format!("{first} in {dir}"));
    }
    let dirs: Vec<_> = network
        .cni_bin_dirs
        .iter()
        .map(|dir| dir.display().to_string())
        .collect();
    Finding::limited(
        WHAT,
        format!("{first} in {dir}, but no program in {}", dirs.join(", ")),
        "no pod gets a network: install the CNI plugins, or set network.cni_bin_dirs",
    )
}

fn bridge(config: &Config) -> Finding {
    const WHAT: &str = "built-in bridge";
    let forwarding = fs::read_to_string("/proc/sys/net/ipv4/ip_forward");
    let forwarding = match forwarding.as_deref().map(str::trim) {
        Ok("1") => "ip_forward on",
        Ok(_) => "ip_forward off (cairn turns it on with its first pod)",
        Err(_) => "no IPv4",
    };
    let found = format!(
        "{} {}, {forwarding}",
        config.network.bridge, config.network.subnet
    );
    match cni_shim::probe_nftables() {
        Ok(()) => Finding::ok(WHAT, format!("{found}, nftables")),
        Err(e) => Finding::limited(
            WHAT,
            format!("{found}, no nftables: {e}"),
            "pods without CNI get no network: load nf_tables",
        ),
    }
}

pub(super) fn nri(config: &Config) -> Finding {
    const WHAT: &str = "nri";
    let socket = &config.nri.socket;
    let shown = socket.display();
    if !config.nri.enable {
        return Finding::ok(WHAT, "off");
    }
    if config.nri.disable_connections {
        return Finding::ok(WHAT, "launched plugins only");
    }
    if UnixStream::connect(socket).is_err() {
        return Finding::ok(WHAT, format!("{shown} is free"));
    }
    match Lock::holder(&config.state) {
        Some(pid) if pid != std::process::id() => {
            Finding::ok(WHAT, format!("{shown} is served by cairn (pid {pid})"))
        }
        _ => Finding::fails(
            WHAT,
            format!("another runtime answers at {shown}"),
            "set nri.socket to a path of cairn's own: it does not start with one that is in use",
        ),
    }
}

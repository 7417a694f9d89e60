//! The files every container of a pod gets: hostname, hosts, resolv.conf and the shm tmpfs
//! (CRI-202, CRI-203). They live under `<state>/pods/<id>` and go with the sandbox.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use proto_cri::v1 as cri;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::error::{Result, Step as _};

/// 64 MiB, as every runtime gives (CRI-202).
const SHM_OPTIONS: &std::ffi::CStr = c"mode=1777,size=65536k";

/// Where a pod's files are.
#[derive(Debug, Clone)]
pub struct Files {
    pub dir: PathBuf,
    pub hostname: PathBuf,
    pub hosts: PathBuf,
    pub resolv_conf: PathBuf,
    pub shm: PathBuf,
}

impl Files {
    pub fn of(state: &Path, id: &str) -> Self {
        let dir = state.join("pods").join(id);
        Self {
            hostname: dir.join("hostname"),
            hosts: dir.join("hosts"),
            resolv_conf: dir.join("resolv.conf"),
            shm: dir.join("shm"),
            dir,
        }
    }

    /// Makes them; on failure the caller removes them with [`Self::remove`].
    ///
    /// # Errors
    /// The file that could not be made.
    pub fn make(&self, hostname: &str, dns: Option<&cri::DnsConfig>, own_shm: bool) -> Result<()> {
        fs::create_dir_all(&self.dir).step(&self.dir.display().to_string())?;
        let write =
            |path: &Path, text: &[u8]| fs::write(path, text).step(&path.display().to_string());
        write(&self.hostname, format!("{hostname}\n").as_bytes())?;
        write(
            &self.hosts,
            &read_or_empty(Path::new("/etc/hosts")).step("/etc/hosts")?,
        )?;
        let resolv = match dns {
            Some(dns) => resolv_conf(dns).into_bytes(),
            None => read_or_empty(Path::new("/etc/resolv.conf")).step("/etc/resolv.conf")?,
        };
        write(&self.resolv_conf, &resolv)?;
        if own_shm {
            fs::create_dir_all(&self.shm).step("shm")?;
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            mount("shm", &self.shm, "tmpfs", flags, Some(SHM_OPTIONS)).step("mount shm")?;
        }
        Ok(())
    }

    /// Idempotent.
    ///
    /// # Errors
    /// What is left.
    pub fn remove(&self) -> Result<()> {
        // Anything but "not mounted" shows when the directory is removed.
        let _ = unmount(&self.shm, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        match fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).step(&format!("remove {}", self.dir.display()))
            }
            _ => Ok(()),
        }
    }
}

fn read_or_empty(path: &Path) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    }
}

/// CRI-203; present but empty is an empty file.
fn resolv_conf(dns: &cri::DnsConfig) -> String {
    let mut text = String::new();
    let mut line = |key: &str, values: &str| text.push_str(&format!("{key} {values}\n"));
    if !dns.searches.is_empty() {
        line("search", &dns.searches.join(" "));
    }
    for server in &dns.servers {
        line("nameserver", server);
    }
    if !dns.options.is_empty() {
        line("options", &dns.options.join(" "));
    }
    text
}

/// A value that would smuggle another line into resolv.conf, or a hostname the kernel refuses.
///
/// # Errors
/// Invalid, naming the field.
pub fn check(config: &cri::PodSandboxConfig) -> Result<()> {
    use super::error::Error;
    if config.hostname.len() > 64 {
        return Err(Error::invalid("hostname: longer than 64 bytes"));
    }
    if config.hostname.contains(['\0', '\n', '/', ' ']) {
        return Err(Error::invalid("hostname: has a character no hostname has"));
    }
    if let Some(dns) = &config.dns_config {
        let values = dns.servers.iter().chain(&dns.searches).chain(&dns.options);
        for value in values {
            if value.contains(['\n', '\0', '\r']) {
                return Err(Error::invalid("dns_config: a value holds a line break"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_has_search_then_servers_then_options() {
        let dns = cri::DnsConfig {
            servers: vec!["10.0.0.1".into(), "10.0.0.2".into()],
            searches: vec!["a.b".into(), "c".into()],
            options: vec!["ndots:5".into(), "edns0".into()],
        };
        assert_eq!(
            resolv_conf(&dns),
            "search a.b c\nnameserver 10.0.0.1\nnameserver 10.0.0.2\noptions ndots:5 edns0\n"
        );
        assert_eq!(resolv_conf(&cri::DnsConfig::default()), "");
    }

    #[test]
    fn a_line_break_in_dns_is_refused() {
        let config = cri::PodSandboxConfig {
            dns_config: Some(cri::DnsConfig {
                servers: vec!["1.1.1.1\nnameserver 6.6.6.6".into()],
                ..Default::default()
            }),
            ..Default::default()
        };
        check(&config).expect_err("refused");
    }
}

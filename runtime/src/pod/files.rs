//! The files every container of a pod gets: hostname, hosts, resolv.conf and the shm tmpfs
//! (CRI-202, CRI-203). They are in `<state>/pods/<id>` and are removed with the sandbox.

use std::{
    ffi::{CString, NulError},
    fs, io,
    path::{Path, PathBuf},
};

use proto_cri::v1 as cri;

use super::{
    error::{AtStep as _, Error, Result},
    machine::Machine,
};
use crate::{remove::remove_tree_at, store::make_private};

/// 64 MiB, as in other runtimes (CRI-202).
const SHM_OPTIONS: &str = "mode=1777,size=65536k";
/// Containers write to the files, and all pods share the state directory. So the files have their
/// own tmpfs, with at least this many bytes and inodes.
const FILES_SIZE: usize = 1 << 20;
const FILES_INODES: usize = 64;

/// Paths of a pod's files.
#[derive(Debug, Clone)]
pub struct Files {
    pub dir: PathBuf,
    pub hostname: PathBuf,
    pub hosts: PathBuf,
    pub resolv_conf: PathBuf,
    pub shm: PathBuf,
    /// The mount point of the procfs of a shared PID namespace.
    pub procfs: PathBuf,
}

impl Files {
    pub fn below(dir: PathBuf) -> Self {
        Self {
            hostname: dir.join("hostname"),
            hosts: dir.join("hosts"),
            resolv_conf: dir.join("resolv.conf"),
            shm: dir.join("shm"),
            procfs: dir.join("proc"),
            dir,
        }
    }

    /// Makes the files; on failure the caller calls [`Self::remove`]. `passes`: the root of the
    /// pod's user namespace; `label`: the files' SELinux label.
    ///
    /// # Errors
    /// The file that could not be made.
    #[expect(clippy::disallowed_methods, reason = "called by blocking()")]
    pub fn make(
        &self,
        machine: &dyn Machine,
        hostname: &str,
        dns: Option<&cri::DnsConfig>,
        own_shm: bool,
        passes: Option<u32>,
        label: Option<&str>,
    ) -> Result<()> {
        let hosts = read_or_empty(Path::new("/etc/hosts")).step("/etc/hosts")?;
        let resolv = match dns {
            Some(dns) => resolv_conf(dns).into_bytes(),
            None => read_or_empty(Path::new("/etc/resolv.conf")).step("/etc/resolv.conf")?,
        };
        let what = self.dir.display().to_string();
        make_private(&self.dir, None).step(&what)?;
        let size = FILES_SIZE.max(4 * (hosts.len() + resolv.len()));
        let options = format!("mode=700,size={size},nr_inodes={FILES_INODES}");
        let options = labelled(options, label).step(&what)?;
        machine
            .mount_tmpfs("pod", &self.dir, &options)
            .step(&format!("mount a tmpfs on {what}"))?;
        // This is the root of the mount now.
        make_private(&self.dir, passes).step(&what)?;
        let write =
            |path: &Path, text: &[u8]| fs::write(path, text).step(&path.display().to_string());
        write(&self.hostname, format!("{hostname}\n").as_bytes())?;
        write(&self.hosts, &hosts)?;
        write(&self.resolv_conf, &resolv)?;
        if own_shm {
            fs::create_dir_all(&self.shm).step("shm")?;
            let options = labelled(SHM_OPTIONS.to_owned(), label).step("shm")?;
            let mounted = machine.mount_tmpfs("shm", &self.shm, &options);
            mounted.step("mount shm")?;
        }
        Ok(())
    }

    /// Removes the files. Idempotent.
    ///
    /// # Errors
    /// The first path that could not be removed.
    pub fn remove(&self, machine: &dyn Machine) -> Result<()> {
        // Includes the mounts below. Pods of earlier versions have only the second mount. Errors
        // other than "not mounted" show when the directory is removed.
        if machine.unmount(&self.dir).is_err() {
            let _ = machine.unmount(&self.shm);
        }
        remove_tree_at(&self.dir).step(&format!("remove {}", self.dir.display()))
    }
}

/// Quoted, because a level contains commas.
fn labelled(mut options: String, label: Option<&str>) -> Result<CString, NulError> {
    if let Some(label) = label {
        options += &format!(",context=\"{label}\"");
    }
    CString::new(options)
}

#[expect(clippy::disallowed_methods, reason = "called by blocking()")]
fn read_or_empty(path: &Path) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    }
}

/// CRI-203; a present but empty configuration gives an empty file.
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

/// Rejects values that add a line to resolv.conf, and hostnames that the kernel refuses.
///
/// # Errors
/// Invalid, naming the field.
pub fn check(config: &cri::PodSandboxConfig) -> Result<()> {
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

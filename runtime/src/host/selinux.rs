//! SELinux on this host: whether it is enabled, and its policy's labels for containers.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::Path,
};

use crate::oci::{SelinuxFacts, SelinuxLabels};

const ENFORCE: &str = "/sys/fs/selinux/enforce";
/// Accepts only labels of the loaded policy.
const CONTEXT: &str = "/sys/fs/selinux/context";
/// Names the loaded policy.
const CONFIG: &str = "/etc/selinux/config";

/// `None` if the kernel has no SELinux or it is off. An unreadable state counts as enforcing.
pub fn facts() -> Option<SelinuxFacts> {
    facts_of(fs::read_to_string(ENFORCE), Path::new(CONFIG))
}

fn facts_of(enforce: io::Result<String>, config: &Path) -> Option<SelinuxFacts> {
    match enforce {
        Ok(enforce) => Some(SelinuxFacts {
            enforcing: enforce.trim() != "0",
            contexts: contexts(config).and_then(known),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(SelinuxFacts {
            enforcing: true,
            contexts: Err(format!("read {ENFORCE}: {error}")),
        }),
    }
}

pub fn is_known(label: &str) -> bool {
    look_up(label).is_ok()
}

fn look_up(label: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(CONTEXT)?;
    file.write_all(label.as_bytes())
}

fn known(contexts: SelinuxLabels) -> Result<SelinuxLabels, String> {
    for label in [&contexts.process, &contexts.file] {
        look_up(label).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => {
                format!("the loaded policy does not have {label}: install container-selinux")
            }
            _ => format!("look up {label} in {CONTEXT}: {error}"),
        })?;
    }
    Ok(contexts)
}

/// The installed policy's labels for containers.
fn contexts(config: &Path) -> Result<SelinuxLabels, String> {
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|error| format!("read {}: {error}", path.display()))
    };
    let text = read(config)?;
    let kind = value(&text, "SELINUXTYPE");
    let kind = kind.ok_or_else(|| format!("{}: SELINUXTYPE is not set", config.display()))?;
    let dir = config.with_file_name(kind);
    let path = dir.join("contexts/lxc_contexts");
    let text = read(&path)?;
    let label = |key| {
        let label = value(&text, key).map(str::to_owned);
        label.ok_or_else(|| format!("{}: {key} is not set", path.display()))
    };
    Ok(SelinuxLabels {
        process: label("process")?,
        file: label("file")?,
    })
}

/// `key = "value"`, with or without quotes.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut pairs = text.lines().filter_map(|line| line.split_once('='));
    let (_, value) = pairs.find(|(k, _)| k.trim() == key)?;
    Some(value.trim().trim_matches('"')).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_state_does_not_run_pods_unconfined() {
        let facts = |enforce| facts_of(enforce, Path::new("/nonesuch"));
        assert_eq!(facts(Err(io::ErrorKind::NotFound.into())), None);
        let denied = facts(Err(io::ErrorKind::PermissionDenied.into())).unwrap();
        assert!(denied.enforcing);
        let why = denied.contexts.expect_err("denied");
        assert!(why.starts_with("read /sys/fs/selinux/enforce: "), "{why}");
        assert!(!facts(Ok("0".to_owned())).unwrap().enforcing);
        assert!(facts(Ok("1\n".to_owned())).unwrap().enforcing);
    }

    #[test]
    fn the_policys_labels_for_containers_are_read() {
        let tmp = tempfile::tempdir().unwrap();
        let config = tmp.path().join("config");
        let failed = |what: &str| {
            let why = contexts(&config).expect_err(what);
            assert!(why.contains(what), "{why}");
        };
        failed("read");
        fs::write(&config, "# SELINUXTYPE= can be\nSELINUX=enforcing\n").unwrap();
        failed("SELINUXTYPE is not set");
        fs::write(&config, "SELINUX=enforcing\nSELINUXTYPE=targeted\n").unwrap();
        failed("lxc_contexts");
        let dir = tmp.path().join("targeted/contexts");
        fs::create_dir_all(&dir).unwrap();
        fs::write(
            dir.join("lxc_contexts"),
            "process = \"u:r:container_t:s0\"\n",
        )
        .unwrap();
        failed("file is not set");
        let text = "process = \"u:r:container_t:s0\"\nfile = u:r:container_file_t:s0\n";
        fs::write(dir.join("lxc_contexts"), text).unwrap();
        let found = contexts(&config).unwrap();
        assert_eq!(found.process, "u:r:container_t:s0");
        assert_eq!(found.file, "u:r:container_file_t:s0");
    }
}

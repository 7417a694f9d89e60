//! Specification of a sandbox's namespaces, and the checks that need no kernel.

use std::path::PathBuf;

use rustix::thread::UnshareFlags;

use super::error::NamespaceError;
use super::sysctl;

/// Files under a pin directory; the links in `/proc/<pid>/ns` have the same names.
pub(super) const NAMES: [&str; 4] = ["net", "ipc", "uts", "user"];
/// Longest hostname the kernel takes (CRI-205).
const HOSTNAME_MAX: usize = 64;
/// The kernel takes at most this many ranges.
const RANGES_MAX: usize = 340;

/// Which namespaces to make, and what to set in them.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PinSpec {
    pub net: bool,
    pub ipc: bool,
    pub uts: bool,
    /// Set in the new UTS namespace; needs `uts` (CRI-205).
    pub hostname: Option<String>,
    /// Names with dots. Only those of a namespace made here are taken (CRI-206). Those of the pod's interface wait
    /// until it exists: see [`set_interface_sysctls`].
    pub sysctls: Vec<(String, String)>,
    /// A user namespace that owns the others.
    pub userns: Option<Mappings>,
}

/// The id mappings of a user namespace. Container id 0 must be mapped on both sides.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Mappings {
    pub uids: Vec<IdMap>,
    pub gids: Vec<IdMap>,
}

/// `size` ids from `container` on are the host's from `host` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct IdMap {
    pub container: u32,
    pub host: u32,
    pub size: u32,
}

/// Where the namespaces are pinned; `None` for those not asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pinned {
    pub net: Option<PathBuf>,
    pub ipc: Option<PathBuf>,
    pub uts: Option<PathBuf>,
    pub user: Option<PathBuf>,
}

impl PinSpec {
    /// Checks what can be known before anything is made.
    pub fn validate(&self) -> Result<(), NamespaceError> {
        if let Some(hostname) = &self.hostname {
            let invalid = |why: &str| {
                Err(NamespaceError::Invalid(format!(
                    "hostname {hostname:?} {why}"
                )))
            };
            match hostname {
                _ if !self.uts => return invalid("without a UTS namespace"),
                name if name.is_empty() => return invalid("is empty"),
                name if name.len() > HOSTNAME_MAX => return invalid("is longer than 64 bytes"),
                name if name.contains(['\0', '/', '\n']) => {
                    return invalid("contains an invalid character");
                }
                _ => {}
            }
        }
        for (name, value) in &self.sysctls {
            sysctl::check(self.net, self.ipc, name, value)?;
        }
        self.userns.as_ref().map_or(Ok(()), Mappings::validate)
    }

    /// All but the user namespace, which is to own the others.
    pub(super) fn flags(&self) -> UnshareFlags {
        let mut flags = UnshareFlags::empty();
        flags.set(UnshareFlags::NEWNET, self.net);
        flags.set(UnshareFlags::NEWIPC, self.ipc);
        flags.set(UnshareFlags::NEWUTS, self.uts);
        flags
    }

    /// Those of [`NAMES`] that are asked for.
    pub(super) fn wanted(&self) -> impl Iterator<Item = &'static str> {
        let asked = [self.net, self.ipc, self.uts, self.userns.is_some()];
        NAMES
            .into_iter()
            .zip(asked)
            .filter_map(|(name, asked)| asked.then_some(name))
    }
}

impl Mappings {
    fn validate(&self) -> Result<(), NamespaceError> {
        for (side, ranges) in [("uid", &self.uids), ("gid", &self.gids)] {
            let bad = |why: &str| Err(NamespaceError::Invalid(format!("{side} mappings: {why}")));
            if ranges.len() > RANGES_MAX {
                return bad("more than 340 ranges");
            }
            let past_end = |first: u32, range: &IdMap| first.checked_add(range.size - 1).is_none();
            if ranges
                .iter()
                .any(|r| r.size == 0 || past_end(r.container, r))
            {
                return bad("empty range, or range past the last id");
            }
            if ranges.iter().any(|r| past_end(r.host, r)) {
                return bad("range past the host's last id");
            }
            if !ranges.iter().any(|r| r.container == 0) {
                return bad("container id 0 is not mapped");
            }
        }
        Ok(())
    }
}

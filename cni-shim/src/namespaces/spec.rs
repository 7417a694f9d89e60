//! Specification of a sandbox's namespaces, and the checks without a kernel.

use std::path::PathBuf;

use rustix::thread::UnshareFlags;

use super::error::NamespaceError;
use super::sysctl;

/// Files in a pin directory, named as in `/proc/<pid>/ns`.
pub(super) const NAMES: [&str; 4] = ["net", "ipc", "uts", "user"];
/// The kernel's limit of a hostname (CRI-205).
const HOSTNAME_MAX: usize = 64;
/// The kernel's limit of ranges.
const RANGES_MAX: usize = 340;

/// The namespaces to make, and their settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PinSpec {
    pub net: bool,
    pub ipc: bool,
    pub uts: bool,
    /// Set in the new UTS namespace; needs `uts` (CRI-205).
    pub hostname: Option<String>,
    /// Names with dots, only of namespaces made here (CRI-206). Those of the pod's interface are
    /// set when it exists: see [`set_interface_sysctls`].
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

/// Maps `size` ids from `container` on to the host's from `host` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct IdMap {
    pub container: u32,
    pub host: u32,
    pub size: u32,
}

/// Paths of the pinned namespaces; `None` for those not requested.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pinned {
    pub net: Option<PathBuf>,
    pub ipc: Option<PathBuf>,
    pub uts: Option<PathBuf>,
    pub user: Option<PathBuf>,
}

impl PinSpec {
    /// Checks what is possible before anything is made.
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

    /// The flags of the namespaces to make, without the user namespace, which owns the others.
    pub(super) fn flags(&self) -> UnshareFlags {
        let mut flags = UnshareFlags::empty();
        flags.set(UnshareFlags::NEWNET, self.net);
        flags.set(UnshareFlags::NEWIPC, self.ipc);
        flags.set(UnshareFlags::NEWUTS, self.uts);
        flags
    }

    /// The requested ones of [`NAMES`].
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

//! Errors of cgroups.

use std::path::PathBuf;
use std::time::Duration;

/// Each is one line that names the object, the step and the cause.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cgroup {}: {step}: {source}", path.display())]
    Io {
        path: PathBuf,
        step: &'static str,
        source: std::io::Error,
    },
    #[error("no cgroup hierarchy is mounted")]
    NoHierarchy,
    #[error("cgroup path {path:?}: {why}")]
    BadPath { path: String, why: &'static str },
    /// A `.slice` as parent requires the systemd driver, any other parent cgroupfs.
    #[error(
        "{parent:?} is a systemd slice, but cairn's cgroup driver is cgroupfs: set cgroupDriver: \
         cgroupfs in the kubelet, or [cgroup] driver = \"systemd\" in cairn"
    )]
    NotSystemd { parent: String },
    #[error(
        "{parent:?} is not a systemd slice, but cairn's cgroup driver is systemd: set \
         cgroupDriver: systemd in the kubelet, or [cgroup] driver = \"cgroupfs\" in cairn"
    )]
    NotCgroupfs { parent: String },
    #[error(
        "systemd does not answer ({cause}): is it this machine's init, and does its D-Bus daemon run?"
    )]
    NoSystemd { cause: String },
    #[error("systemd unit {unit}: {step}: {cause}")]
    Unit {
        unit: String,
        step: &'static str,
        cause: String,
    },
    #[error("systemd unit {unit}: already exists")]
    UnitExists { unit: String },
    /// A limit needs a controller that this host lacks, or has not delegated to here.
    #[error("cgroup {cgroup}: {setting}: the {controller} controller is not available")]
    NoController {
        cgroup: String,
        setting: String,
        controller: String,
    },
    /// The setting has no counterpart here, or cairn does not implement it.
    #[error("cgroup {cgroup}: {setting} is not supported: {why}")]
    Unsupported {
        cgroup: String,
        setting: String,
        why: &'static str,
    },
    /// A value that no kernel accepts.
    #[error("cgroup {cgroup}: {setting}: bad value {value:?}")]
    BadValue {
        cgroup: String,
        setting: String,
        value: String,
    },
    /// The kernel refused one value; earlier ones of the same call were restored (CRI-137).
    #[error("cgroup {cgroup}: write {value:?} to {file}: {source}{}", restore.as_deref().unwrap_or(""))]
    Write {
        cgroup: String,
        file: String,
        value: String,
        source: std::io::Error,
        /// Set if restoring an earlier value failed too: `"; restoring F failed: why"`.
        restore: Option<String>,
    },
    /// The device filter could not be loaded or attached; the container must not run without it.
    #[error("cgroup {cgroup}: device filter: {step}: {source}")]
    DeviceFilter {
        cgroup: String,
        step: &'static str,
        source: std::io::Error,
    },
    /// A bounded wait ended before the expected state.
    #[error("cgroup {cgroup}: {step}: not done after {after:?}, {left}")]
    TimedOut {
        cgroup: String,
        step: &'static str,
        after: Duration,
        left: String,
    },
}

impl Error {
    pub(super) fn io(path: impl Into<PathBuf>, step: &'static str, source: std::io::Error) -> Self {
        let path = path.into();
        Self::Io { path, step, source }
    }

    pub(super) fn no_controller(cgroup: &str, setting: &str, controller: &str) -> Self {
        Self::NoController {
            cgroup: cgroup.to_owned(),
            setting: setting.to_owned(),
            controller: controller.to_owned(),
        }
    }
}

pub type Result<T> = std::result::Result<T, Error>;

//! Hidden and read-only paths of a container (CRI-223).

use proto_cri::v1::LinuxContainerSecurityContext;

use super::{error::SpecError, facts::Policy};

/// Paths that containerd masks by default.
const MASKED: [&str; 11] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
    "/proc/scsi",
];
/// Paths that containerd makes read-only by default.
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Masked and read-only paths; none for a privileged container.
pub(super) struct Masks {
    pub masked: Option<Vec<String>>,
    pub read_only: Option<Vec<String>>,
}

/// The given paths. An empty list means none or, if the policy says so, the default.
pub(super) fn masks(
    context: &LinuxContainerSecurityContext,
    policy: &Policy,
) -> Result<Masks, SpecError> {
    let list = |given: &[String], default: &[&str], field: &str| {
        check(given, field)?;
        let list: Vec<_> = if policy.default_masks && given.is_empty() {
            default.iter().map(|path| (*path).to_owned()).collect()
        } else {
            given.to_vec()
        };
        Ok(Some(list).filter(|list| !context.privileged && !list.is_empty()))
    };
    Ok(Masks {
        masked: list(&context.masked_paths, &MASKED, "masked_paths")?,
        read_only: list(&context.readonly_paths, &READ_ONLY, "readonly_paths")?,
    })
}

fn check(given: &[String], field: &str) -> Result<(), SpecError> {
    let bad = |path: &&String| !path.starts_with('/') || path.contains('\0');
    match given.iter().find(bad) {
        None => Ok(()),
        Some(path) => Err(SpecError::invalid(
            format!("linux.security_context.{field}"),
            format!("{path:?} must be absolute"),
        )),
    }
}

//! Refuses combinations that the create helper (`runtime/create/src/adjust.rs`) cannot apply.

use std::path::Path;

use oci_spec::runtime::{LinuxNamespaceType, Mount, Spec};
use proto_nri::{self as nri, Field};

use super::error::SpecError;

/// Refuses a conflicting spec from CRI.
pub(super) fn check(spec: &Spec) -> Result<(), SpecError> {
    conflict(spec).map_or(Ok(()), |why| Err(SpecError::unsupported("mounts", why)))
}

/// Refuses a spec that an adjustment made conflicting, by the field that may be the cause.
pub(super) fn check_adjusted(
    spec: &Spec,
    adjust: &nri::ContainerAdjustment,
) -> Result<(), SpecError> {
    let Some(why) = conflict(spec) else {
        return Ok(());
    };
    let field = if !adjust.mounts.is_empty() {
        Field::Mounts
    } else if !adjust.cdi_devices.is_empty() {
        Field::CdiDevices
    } else {
        Field::Namespace
    };
    Err(SpecError::unsupported(field, why))
}

fn conflict(spec: &Spec) -> Option<&'static str> {
    let mounts = || spec.mounts().iter().flatten();
    let over_proc =
        |m: &Mount| m.destination() == Path::new("/proc") && m.typ().as_deref() != Some("proc");
    if joins_pid_namespace(spec) && mounts().any(over_proc) {
        return Some("/proc cannot be mounted over in a joined PID namespace");
    }
    if mounts().any(|m| m.destination() == Path::new("/dev") && is_shared(m)) {
        return Some(
            "a mount at /dev cannot be shared: the container's own mounts would propagate",
        );
    }
    None
}

fn joins_pid_namespace(spec: &Spec) -> bool {
    let namespaces = spec.linux().iter().flat_map(|linux| linux.namespaces());
    let mut namespaces = namespaces.flatten();
    namespaces.any(|n| n.typ() == LinuxNamespaceType::Pid && n.path().is_some())
}

/// Whether mounts below it propagate to the host.
fn is_shared(mount: &Mount) -> bool {
    let mut options = mount.options().iter().flatten();
    options.any(|option| option == "shared" || option == "rshared")
}

//! Applies the merged adjustment of all plugins to a new container's spec (NRI-700…724).
//!
//! All or nothing: an error leaves the spec unchanged. A value that the create helper or the host
//! cannot apply is refused with the name of its field.

use oci_spec::runtime::{LinuxIntelRdt, LinuxResources, Spec};
use proto_nri::{self as nri, Field};

use super::{
    apply_nri_linux as linux, apply_nri_mounts as mounts, apply_nri_process as process,
    apply_nri_scheduling as scheduling, apply_nri_seccomp as seccomp,
    base::{linux_of, process_of},
    cdi_apply, devices,
    error::SpecError,
    facts::ApplyContext,
    limits::{self, Requester},
    nri_limits, together,
};

/// Applies the adjustment in the order of NRI-700.
pub fn apply_adjustment(
    spec: &mut Spec,
    adjust: &nri::ContainerAdjustment,
    context: &ApplyContext<'_>,
) -> Result<(), SpecError> {
    if *adjust == nri::ContainerAdjustment::default() {
        return Ok(());
    }
    let mut new = spec.clone();
    process_of(&mut new);
    process::annotations(&mut new, &adjust.annotations)?;
    process::env(&mut new, &adjust.env)?;
    process::args(&mut new, &adjust.args)?;
    process::hooks(&mut new, adjust.hooks.as_ref())?;
    process::hook_programs(adjust.hooks.as_ref(), context.view)?;
    let names: Vec<String> = adjust.cdi_devices.iter().map(|d| d.name.clone()).collect();
    cdi_apply::inject(&mut new, &names, context.host, context.view)
        .map_err(|error| error.about(Field::CdiDevices))?;
    if let Some(asked) = &adjust.linux {
        linux_section(&mut new, asked, context)?;
    }
    mounts::apply(&mut new, &adjust.mounts, context.view)?;
    process::rlimits(&mut new, &adjust.rlimits, context.view)?;
    // The others were checked above.
    devices::check_nodes(&new).map_err(|error| error.about(Field::CdiDevices))?;
    together::check_adjusted(&new, adjust)?;
    *spec = new;
    Ok(())
}

fn linux_section(
    spec: &mut Spec,
    asked: &nri::LinuxContainerAdjustment,
    context: &ApplyContext<'_>,
) -> Result<(), SpecError> {
    linux_of(spec);
    linux::devices(spec, &asked.devices)?;
    linux::cgroups_path(spec, &asked.cgroups_path, context.policy.cgroup_driver)?;
    process::oom_score_adj(spec, asked.oom_score_adj.as_ref(), context.host)?;
    scheduling::io_priority(spec, asked.io_priority.as_ref())?;
    scheduling::scheduler(spec, asked.scheduler.as_ref())?;
    seccomp::apply(spec, asked.seccomp_policy.as_ref())?;
    let of_pod = linux_of(spec).namespaces().clone().unwrap_or_default();
    linux::namespaces(spec, &asked.namespaces, context.view)?;
    linux::sysctl(spec, &asked.sysctl, &of_pod)?;
    linux::net_devices(spec, &asked.net_devices)?;
    scheduling::memory_policy(spec, asked.memory_policy.as_ref(), context)?;
    if let Some(resources) = &asked.resources {
        apply_limits(spec, resources, context)?;
    }
    if asked.scheduler.is_some() {
        scheduling::check_realtime(spec, context.host)?;
    }
    if let Some(rdt) = &asked.rdt {
        linux::rdt(spec, rdt, context.host)?;
    }
    Ok(())
}

/// Applies limits, then the RDT class: absent keeps it, empty removes it.
fn apply_limits(
    spec: &mut Spec,
    asked: &nri::LinuxResources,
    context: &ApplyContext<'_>,
) -> Result<(), SpecError> {
    nri_limits::check(asked, context.host)?;
    let linux = linux_of(spec);
    let mut resources = linux.resources().clone().unwrap_or_default();
    limits::merge(&mut resources, asked, context, Requester::Adjustment)?;
    if let Some(class) = asked.blockio_class.as_ref().filter(|c| !c.value.is_empty()) {
        return Err(SpecError::unsupported(
            Field::BlockioClass,
            format!("no class {:?} on this host", class.value),
        ));
    }
    if resources != LinuxResources::default() || linux.resources().is_some() {
        linux.set_resources(Some(resources));
    }
    match asked.rdt_class.as_ref().map(|c| c.value.as_str()) {
        None => {}
        Some("") => {
            linux.set_intel_rdt(None);
        }
        Some(class) => {
            linux::check_rdt(class, context.host)?;
            let mut rdt = LinuxIntelRdt::default();
            rdt.set_clos_id(Some(class.to_owned()));
            linux.set_intel_rdt(Some(rdt));
        }
    }
    Ok(())
}

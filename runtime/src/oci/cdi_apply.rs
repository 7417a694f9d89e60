//! Applies the edits of CDI devices to a spec, in the order that CDI prescribes.

use oci_spec::runtime::{LinuxDevice, LinuxIntelRdt, Mount, Process, Spec};
use proto_nri as nri;

use super::{
    apply_nri_linux::{check_rdt, put_device},
    apply_nri_process,
    base::{clean_path, depth, linux_of, mount, process_of},
    cdi::{CdiHook, CdiMount, CdiRdt, DeviceNode, Edits, NetDevice},
    devices::kind_of,
    error::SpecError,
    facts::{HostDevice, HostFacts, HostView},
    process::name_of,
};

const FIELD: &str = "CDI_devices";

/// Adds these devices to a spec, all at once, so that shared edits are applied once. An error names
/// every missing device; the spec may be partly changed.
pub(super) fn inject(
    spec: &mut Spec,
    names: &[String],
    host: &HostFacts,
    view: &dyn HostView,
) -> Result<(), SpecError> {
    if names.is_empty() {
        return Ok(());
    }
    let registry = view.cdi();
    let all = registry.edits(names)?;
    for edits in &all {
        apply(spec, edits, host, view).map_err(|error| error.about(FIELD))?;
    }
    if all.iter().any(|edits| !edits.mounts.is_empty())
        && let Some(mounts) = spec.mounts_mut()
    {
        mounts.sort_by_key(|m| depth(&m.destination().to_string_lossy()));
    }
    Ok(())
}

fn apply(
    spec: &mut Spec,
    edits: &Edits,
    host: &HostFacts,
    view: &dyn HostView,
) -> Result<(), SpecError> {
    for entry in &edits.env {
        set_env(process_of(spec), entry)?;
    }
    for node in &edits.device_nodes {
        add_device(spec, node, view)?;
    }
    for device in &edits.net_devices {
        net_device(spec, device)?;
    }
    for mount in &edits.mounts {
        add_mount(spec, mount)?;
    }
    for hook in &edits.hooks {
        add_hook(spec, hook)?;
    }
    if let Some(rdt) = &edits.intel_rdt {
        set_rdt(spec, rdt, host)?;
    }
    add_gids(process_of(spec), &edits.additional_gids);
    Ok(())
}

/// Type and numbers default to those of the host's node, the owner to the container's user.
fn add_device(spec: &mut Spec, asked: &DeviceNode, view: &dyn HostView) -> Result<(), SpecError> {
    let wrong =
        |cause: &str| SpecError::invalid(FIELD, format!("device node {:?}: {cause}", asked.path));
    if !asked.path.starts_with('/') || asked.path.contains('\0') {
        return Err(wrong("must be absolute"));
    }
    let host_path = if asked.host_path.is_empty() {
        &asked.path
    } else {
        &asked.host_path
    };
    let given = asked.kind.chars().next();
    let complete = given == Some('p') || (given.is_some() && (asked.major, asked.minor) != (0, 0));
    let found = if complete {
        None
    } else {
        view.devices(host_path).into_iter().next()
    };
    if !complete && found.is_none() {
        return Err(wrong("is not a device on this host"));
    }
    let kind = given
        .or(found.as_ref().map(|d| d.kind))
        .filter(|_| asked.kind.len() <= 1);
    let kind = kind
        .and_then(kind_of)
        .ok_or_else(|| wrong("must have a device type"))?;
    if found
        .as_ref()
        .is_some_and(|d| kind_of(d.kind) != Some(kind))
    {
        return Err(wrong("is of another type on this host"));
    }
    let permissions = if asked.permissions.is_empty() {
        "rwm"
    } else {
        &asked.permissions
    };
    if !permissions.chars().all(|c| "rwm".contains(c)) {
        return Err(wrong("has invalid permissions (must be of \"rwm\")"));
    }
    let number = |given: i64, of: fn(&HostDevice) -> i64| found.as_ref().map_or(given, of);
    let (major, minor) = (
        number(asked.major, |d| d.major),
        number(asked.minor, |d| d.minor),
    );
    let user = process_of(spec).user().clone();
    let owner = |given: Option<u32>, own: u32| given.or((own != 0).then_some(own));

    let mut device = LinuxDevice::default();
    device.set_path(clean_path(&asked.path).into());
    device.set_typ(kind);
    device.set_major(major);
    device.set_minor(minor);
    device.set_file_mode(
        asked
            .file_mode
            .map(|mode| mode & 0o7777)
            .or(found.as_ref().map(|d| d.mode)),
    );
    device.set_uid(owner(asked.uid, user.uid()));
    device.set_gid(owner(asked.gid, user.gid()));
    put_device(linux_of(spec), device, permissions);
    Ok(())
}

/// The error never contains the value.
fn set_env(process: &mut Process, entry: &str) -> Result<(), SpecError> {
    let (name, value) = entry.split_once('=').unwrap_or(("", entry));
    if name.is_empty() || name.contains('\0') || value.contains('\0') {
        return Err(SpecError::invalid(
            FIELD,
            "a variable must be of the form NAME=value",
        ));
    }
    let env = process.env_mut().get_or_insert_default();
    match env.iter_mut().find(|e| name_of(e) == name) {
        Some(place) => entry.clone_into(place),
        None => env.push(entry.to_owned()),
    }
    Ok(())
}

fn net_device(spec: &mut Spec, asked: &NetDevice) -> Result<(), SpecError> {
    let device = nri::LinuxNetDevice {
        name: asked.name.clone(),
    };
    let asked = [(asked.host_interface_name.clone(), device)].into();
    super::apply_nri_linux::net_devices(spec, &asked)
}

/// Adds a mount, replacing another at its destination.
fn add_mount(spec: &mut Spec, asked: &CdiMount) -> Result<(), SpecError> {
    let destination = clean_path(&asked.container_path);
    if !asked.container_path.starts_with('/') || destination == "/" || asked.host_path.is_empty() {
        return Err(SpecError::invalid(
            FIELD,
            format!(
                "invalid mount of {:?} at {:?}",
                asked.host_path, asked.container_path
            ),
        ));
    }
    let options: Vec<&str> = asked.options.iter().map(String::as_str).collect();
    let kind = if asked.kind.is_empty() {
        "bind"
    } else {
        &asked.kind
    };
    let list = spec.mounts_mut().get_or_insert_default();
    list.retain(|m: &Mount| clean_path(&m.destination().to_string_lossy()) != destination);
    list.push(mount(&destination, kind, &asked.host_path, &options));
    Ok(())
}

fn add_hook(spec: &mut Spec, asked: &CdiHook) -> Result<(), SpecError> {
    let mut hooks = nri::Hooks::default();
    let list = match asked.hook_name.as_str() {
        "prestart" => &mut hooks.prestart,
        "createRuntime" => &mut hooks.create_runtime,
        "createContainer" => &mut hooks.create_container,
        "startContainer" => &mut hooks.start_container,
        "poststart" => &mut hooks.poststart,
        "poststop" => &mut hooks.poststop,
        other => {
            return Err(SpecError::invalid(
                FIELD,
                format!("unknown kind of OCI hook {other:?}"),
            ));
        }
    };
    list.push(nri::Hook {
        path: asked.path.clone(),
        args: asked.args.clone(),
        env: asked.env.clone(),
        timeout: asked.timeout.map(|value| nri::OptionalInt { value }),
    });
    apply_nri_process::hooks(spec, Some(&hooks))
}

fn set_rdt(spec: &mut Spec, asked: &CdiRdt, host: &HostFacts) -> Result<(), SpecError> {
    check_rdt(&asked.clos_id, host)?;
    let text = |value: &String| Some(value.clone()).filter(|v| !v.is_empty());
    let mut rdt = LinuxIntelRdt::default();
    rdt.set_clos_id(text(&asked.clos_id));
    rdt.set_l3_cache_schema(text(&asked.l3_cache_schema));
    rdt.set_mem_bw_schema(text(&asked.mem_bw_schema));
    rdt.set_schemata(Some(asked.schemata.clone()).filter(|list| !list.is_empty()));
    rdt.set_enable_cmt(asked.enable_cmt.then_some(true));
    rdt.set_enable_mbm(asked.enable_mbm.then_some(true));
    rdt.set_enable_monitoring(asked.enable_monitoring.then_some(true));
    linux_of(spec).set_intel_rdt(Some(rdt));
    Ok(())
}

/// Adds each group once; 0 is skipped.
fn add_gids(process: &mut Process, gids: &[u32]) {
    if gids.is_empty() {
        return;
    }
    let list = process
        .user_mut()
        .additional_gids_mut()
        .get_or_insert_default();
    for gid in gids {
        if *gid != 0 && !list.contains(gid) {
            list.push(*gid);
        }
    }
}

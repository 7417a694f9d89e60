//! Mounts of an adjustment (NRI-721…724).

use oci_spec::runtime::{Mount, Spec};
use proto_nri::{self as nri, Field};

use super::{
    base::{clean_path, linux_of, marked, mount},
    error::SpecError,
    facts::{HostView, Propagation},
    mounts::{check_place, check_propagation},
};

/// Options of other runtimes, which the create helper would pass to the file system.
const UNKNOWN: [&str; 3] = ["tmpcopyup", "idmap", "ridmap"];

/// All options of a bind mount. The kernel ignores any other, so that a typo for `ro` would leave
/// the host's files writable.
#[rustfmt::skip]
const OF_BINDS: [&str; 51] = [
    "defaults", "bind", "rbind", "remount", "ro", "rw", "suid", "nosuid", "dev", "nodev", "exec", "noexec", "sync",
    "async", "dirsync", "mand", "nomand", "atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime",
    "strictatime", "nostrictatime", "private", "rprivate", "shared", "rshared", "slave", "rslave", "unbindable",
    "runbindable", "rro", "rrw", "rsuid", "rnosuid", "rdev", "rnodev", "rexec", "rnoexec", "ratime", "rnoatime",
    "rdiratime", "rnodiratime", "rrelatime", "rnorelatime", "rstrictatime", "rnostrictatime", "rsymfollow", "rnosymfollow",
];

/// Applies the entries in order, then sorts the list so that parents come first. The propagation of
/// each mount is checked on its own (NRI-722).
pub(super) fn apply(
    spec: &mut Spec,
    asked: &[nri::Mount],
    view: &dyn HostView,
) -> Result<(), SpecError> {
    if asked.is_empty() {
        return Ok(());
    }
    let mut list = spec.mounts().clone().unwrap_or_default();
    let mut strongest = Propagation::Private;
    for entry in asked {
        let (path, remove) = marked(&entry.destination);
        if !path.starts_with('/') || path.contains('\0') {
            return Err(wrong(path, "the destination must be absolute"));
        }
        let destination = clean_path(path);
        if destination == "/" {
            return Err(wrong(path, "the root itself cannot be mounted over"));
        }
        if let Some(place) = list.iter().position(|m| at(m) == destination) {
            list.remove(place);
        }
        if remove {
            continue;
        }
        if let Some(option) = entry.options.iter().find(|o| UNKNOWN.contains(&o.as_str())) {
            return Err(SpecError::unsupported(
                (Field::Mounts, path),
                format!("the mount option {option:?} is not known to the create helper"),
            ));
        }
        if let Some(option) = unknown_to_binds(entry) {
            return Err(wrong(
                path,
                &format!("{option:?} is not an option of bind mounts"),
            ));
        }
        let is_procfs = check_source(path, entry, view)?;
        check_place(&destination, is_procfs).map_err(|cause| wrong(path, &cause))?;
        strongest = strongest.max(propagation(entry, view)?);
        let options: Vec<&str> = entry.options.iter().map(String::as_str).collect();
        list.push(mount(&destination, &entry.r#type, &entry.source, &options));
    }
    // As NRI counts: `/` and `/a` have one slash, `/a/b` has two.
    list.sort_by_cached_key(|m| {
        let path = at(m);
        (path.matches('/').count(), path)
    });
    spec.set_mounts(Some(list));
    set_rootfs_propagation(spec, strongest);
    Ok(())
}

fn at(mount: &Mount) -> String {
    clean_path(&mount.destination().to_string_lossy())
}

fn is_bind(entry: &nri::Mount) -> bool {
    let mut options = entry.options.iter();
    entry.r#type == "bind" || options.any(|o| o == "bind" || o == "rbind")
}

fn unknown_to_binds(entry: &nri::Mount) -> Option<&String> {
    let mut options = entry.options.iter();
    options.find(|option| is_bind(entry) && !OF_BINDS.contains(&option.as_str()))
}

/// Checks the source now: at start the plugin would already know its adjustment as applied. Returns
/// whether the mount is a procfs.
fn check_source(path: &str, entry: &nri::Mount, view: &dyn HostView) -> Result<bool, SpecError> {
    if !is_bind(entry) {
        return match entry.r#type.as_str() {
            "" => Err(wrong(
                path,
                "it has neither a type nor the option bind or rbind",
            )),
            kind => Ok(kind == "proc"),
        };
    }
    if !entry.source.starts_with('/') || entry.source.contains('\0') {
        let cause = format!("the source {:?} must be absolute", entry.source);
        return Err(wrong(path, &cause));
    }
    match view.bind_source(&entry.source) {
        Some(source) => Ok(source.is_procfs),
        None => Err(no_source(entry)),
    }
}

fn no_source(entry: &nri::Mount) -> SpecError {
    SpecError::not_found(
        (Field::Mounts, &*entry.destination),
        format!("source {:?} does not exist", entry.source),
    )
}

/// The propagation that the mount requires of the root, if its source allows it (NRI-721).
fn propagation(entry: &nri::Mount, view: &dyn HostView) -> Result<Propagation, SpecError> {
    let asked = entry
        .options
        .iter()
        .rev()
        .find_map(|option| match option.as_str() {
            "rshared" | "shared" => Some(Propagation::Shared),
            "rslave" | "slave" => Some(Propagation::Slave),
            "rprivate" | "private" => Some(Propagation::Private),
            _ => None,
        });
    let Some(asked) = asked.filter(|p| *p != Propagation::Private) else {
        return Ok(Propagation::Private);
    };
    let source = view
        .bind_source(&entry.source)
        .ok_or_else(|| no_source(entry))?;
    check_propagation(asked, source.propagation).map_err(|cause| {
        wrong(
            &entry.destination,
            &format!("source {:?} {cause}", entry.source),
        )
    })?;
    Ok(asked)
}

/// Sets the form without `r`, the only one in the create helper. Slave does not weaken shared.
fn set_rootfs_propagation(spec: &mut Spec, needed: Propagation) {
    let linux = linux_of(spec);
    let word = match (needed, linux.rootfs_propagation().as_deref()) {
        (Propagation::Private, _) => return,
        (Propagation::Slave, Some("slave" | "rslave" | "shared" | "rshared")) => return,
        (Propagation::Slave, _) => "slave",
        (Propagation::Shared, _) => "shared",
    };
    linux.set_rootfs_propagation(Some(word.to_owned()));
}

fn wrong(destination: &str, cause: &str) -> SpecError {
    SpecError::invalid((Field::Mounts, destination), cause)
}

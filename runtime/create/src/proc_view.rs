//! A container's procfs of a joined PID namespace: what is mounted, masked and read-only in it.
//!
//! Pure; `place.rs` assembles it.

use std::path::{Path, PathBuf};

use cairn_monitor::mount_tree::PROC_FILES;
use oci_spec::runtime::{Linux, Mount};

use crate::mount_option::{attribute, attributes};

/// The procfs of a joined PID namespace with the mounts below it, attached last as one tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcView {
    pub(crate) destination: PathBuf,
    /// MOUNT_ATTR_* bits.
    pub(crate) attributes: u64,
    /// Paths from here on are relative to `destination`.
    pub(crate) binds: Vec<Bind>,
    pub(crate) read_only: Vec<PathBuf>,
    pub(crate) masked: Vec<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bind {
    pub(crate) at: PathBuf,
    pub(crate) source: PathBuf,
    pub(crate) recursive: bool,
    pub(crate) attributes: u64,
}

/// Takes a mount for `views` if it is a procfs or inside one. Each procfs gets a view.
pub(crate) fn take(
    views: &mut Vec<ProcView>,
    mount: &Mount,
    options: &[String],
) -> Result<bool, String> {
    let destination = mount.destination();
    let refuse = |why: &str| {
        Err(format!(
            "mount {}: {why} in a PID namespace that is joined",
            destination.display()
        ))
    };
    let unknown = options.iter().find(|o| attribute(o).is_none());
    let unknown = unknown.map(|option| format!("option {option} is not supported"));
    if mount.typ().as_deref() == Some("proc") {
        if let Some(why) = unknown {
            return refuse(&why);
        }
        views.retain(|v| v.destination != *destination);
        views.push(ProcView {
            destination: destination.clone(),
            attributes: attributes(options),
            binds: Vec::new(),
            read_only: Vec::new(),
            masked: Vec::new(),
        });
        return Ok(true);
    }
    let below = |v: &&mut ProcView| destination.starts_with(&v.destination);
    let Some(view) = views.iter_mut().find(below) else {
        return Ok(false);
    };
    let at = destination
        .strip_prefix(&view.destination)
        .map(Path::to_owned);
    let at = at.unwrap_or_default();
    let recursive = options.iter().any(|o| o == "rbind");
    if !PROC_FILES.iter().any(|file| Path::new(file) == at)
        || !(recursive || options.iter().any(|o| o == "bind"))
    {
        return refuse("inside or over /proc, it is not supported");
    }
    if let Some(why) = unknown {
        return refuse(&why);
    }
    view.binds.push(Bind {
        at,
        source: mount.source().clone().unwrap_or_default(),
        recursive,
        attributes: attributes(options),
    });
    Ok(true)
}

/// Moves masked and read-only paths inside a procfs to its view.
pub(crate) fn cover(views: &mut [ProcView], linux: &mut Linux) {
    let mut masked = linux.masked_paths().clone().unwrap_or_default();
    let mut read_only = linux.readonly_paths().clone().unwrap_or_default();
    for view in views {
        let take = |paths: &mut Vec<String>| -> Vec<PathBuf> {
            let below = |path: &String| {
                let below = Path::new(path).strip_prefix(&view.destination).ok()?;
                Some(below.to_owned()).filter(|p| !p.as_os_str().is_empty())
            };
            let taken = paths.iter().filter_map(below).collect();
            paths.retain(|path| below(path).is_none());
            taken
        };
        let (masks, reads) = (take(&mut masked), take(&mut read_only));
        view.masked = masks;
        view.read_only = reads;
    }
    linux.set_masked_paths(Some(masked));
    linux.set_readonly_paths(Some(read_only));
}

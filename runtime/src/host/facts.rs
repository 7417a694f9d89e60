//! Facts of the host, read once at start, and look-ups for the pure `oci` module.

use std::{
    ffi::{CStr, OsStr},
    fs, io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _},
        },
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, OFlags, major, minor},
    io::Errno,
};

use super::{apparmor, cdi, selinux};
use crate::{
    cgroup, detached,
    oci::{BindSource, CdiRegistry, HostDevice, HostFacts, HostView, Propagation},
    walk::{At, KEPT_OPEN, Limits, Mounts, Then, Visitor, walk},
};

/// Limit of listed nodes below one directory.
const MAX_DEVICES: usize = 4096;
/// Limits of its entries and depth: every directory stays open, so that none is lost.
const MAX_ENTRIES: u64 = 100_000;
const MAX_DEPTH: usize = KEPT_OPEN;
/// Directories below `/dev` without devices of the machine.
const NOT_DEVICES: [&str; 5] = [
    "/dev/pts",
    "/dev/shm",
    "/dev/mqueue",
    "/dev/fd",
    "/dev/.lxc",
];

/// Reads the facts. `no_user_namespaces` is the reason if pods cannot have any. Loads our AppArmor
/// profile by way of `apparmor_dir` if the kernel has AppArmor.
///
/// # Errors
/// If `/proc` has an unexpected form.
pub fn facts(
    cgroups: &cgroup::Host,
    no_user_namespaces: Option<String>,
    apparmor_dir: &Path,
) -> io::Result<HostFacts> {
    Ok(HostFacts {
        capabilities: own_capabilities(&fs::read_to_string("/proc/self/status")?),
        cgroup_v1: cgroups.mode() != cgroup::Mode::V2,
        hugetlb: cgroups.has("hugetlb"),
        swap: cgroups.counts_swap(),
        realtime: cgroups.schedules_realtime(),
        seccomp: Path::new("/proc/sys/kernel/seccomp/actions_avail").exists(),
        apparmor: apparmor::facts(apparmor_dir),
        selinux: selinux::facts(),
        recursive_readonly: detached::probe().is_ok(),
        no_user_namespaces,
        oom_score_adj: fs::read_to_string("/proc/self/oom_score_adj")?
            .trim()
            .parse()
            .unwrap_or(0),
        devices: nodes_below(Path::new("/dev")),
        resctrl: Path::new("/sys/fs/resctrl/schemata").exists(),
    })
}

fn own_capabilities(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Device nodes at and below a path, bounded; symlinks inside are not followed.
fn nodes_below(path: &Path) -> Vec<HostDevice> {
    let Ok(meta) = fs::symlink_metadata(path) else {
        return Vec::new();
    };
    let mut nodes = Nodes {
        path: path.to_owned(),
        found: Vec::new(),
    };
    if !meta.is_dir() {
        nodes.found.extend(node(path, &meta));
    } else if !has_no_devices(path) {
        let limits = Limits {
            entries: MAX_ENTRIES,
            depth: MAX_DEPTH,
            ..Limits::NONE
        };
        // A directory that cannot be listed has no devices.
        let _ = fs::File::open(path)
            .and_then(|top| Ok(walk(top.into(), Mounts::Enter, &limits, &mut nodes)?));
    }
    nodes.found.sort_by(|a, b| a.path.cmp(&b.path));
    nodes.found
}

fn has_no_devices(path: &Path) -> bool {
    NOT_DEVICES.iter().any(|skip| path == Path::new(skip))
}

struct Nodes {
    /// The directory being read.
    path: PathBuf,
    found: Vec<HostDevice>,
}

impl Visitor for Nodes {
    type Error = Errno;

    fn entry(&mut self, _: &At<'_>, name: &CStr, kind: FileType) -> Result<Then, Errno> {
        let path = self.path.join(OsStr::from_bytes(name.to_bytes()));
        match kind {
            FileType::Directory if !has_no_devices(&path) => return Ok(Then::Enter),
            FileType::CharacterDevice | FileType::BlockDevice if self.found.len() < MAX_DEVICES => {
                let meta = fs::symlink_metadata(&path).ok();
                self.found.extend(meta.and_then(|meta| node(&path, &meta)));
            }
            _ => {}
        }
        Ok(Then::Pass)
    }

    fn enter(&mut self, name: &CStr) -> Result<(), Errno> {
        self.path.push(OsStr::from_bytes(name.to_bytes()));
        Ok(())
    }

    fn back(&mut self, _: &At<'_>) -> Result<(), Errno> {
        self.path.pop();
        Ok(())
    }

    fn passed_over(&mut self, _: Errno) -> Result<(), Errno> {
        Ok(())
    }
}

fn node(path: &Path, meta: &fs::Metadata) -> Option<HostDevice> {
    let kind = match meta.file_type() {
        t if t.is_char_device() => 'c',
        t if t.is_block_device() => 'b',
        _ => return None,
    };
    Some(HostDevice {
        path: path.to_owned(),
        kind,
        major: major(meta.rdev()).into(),
        minor: minor(meta.rdev()).into(),
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
    })
}

/// Describes a found source without a second look-up: the path may lead elsewhere now.
pub(super) fn source(found: &OwnedFd) -> Option<BindSource> {
    let resolved = fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).ok()?;
    let stat = rustix::fs::fstat(found).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let propagation = propagation_of(&mounts, &resolved);
    let is_procfs =
        rustix::fs::fstatfs(found).is_ok_and(|stat| stat.f_type == rustix::fs::PROC_SUPER_MAGIC);
    Some(BindSource {
        is_dir: FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
        resolved,
        propagation,
        is_procfs,
    })
}

/// Looks up the present state.
pub struct View;

impl HostView for View {
    fn bind_source(&self, host_path: &str) -> Option<BindSource> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        source(&rustix::fs::open(host_path, flags, Mode::empty()).ok()?)
    }

    fn made_source(&self, host_path: &str) -> Option<BindSource> {
        let found = self.bind_source(host_path);
        if found.is_some() || !Path::new(host_path).is_absolute() {
            return found;
        }
        // Not by the umask alone, which may be the one of an administrator's shell.
        let mut dirs = fs::DirBuilder::new();
        dirs.recursive(true).mode(0o755).create(host_path).ok()?;
        self.bind_source(host_path)
    }

    fn devices(&self, host_path: &str) -> Vec<HostDevice> {
        fs::canonicalize(host_path)
            .map(|path| nodes_below(&path))
            .unwrap_or_default()
    }

    fn has_apparmor_profile(&self, name: &str) -> bool {
        apparmor::is_loaded(name)
    }

    fn knows_selinux_label(&self, label: &str) -> bool {
        selinux::is_known(label)
    }

    fn cdi(&self) -> CdiRegistry {
        cdi::registry()
    }

    fn namespace(&self, path: &str) -> Option<String> {
        const NSFS_MAGIC: i64 = 0x6e73_6673;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        if rustix::fs::fstatfs(&file).ok()?.f_type != NSFS_MAGIC {
            return None;
        }
        // `net:[4026531840]`, or the path of its mount.
        let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let name = namespace_mounted_at(&mounts, &name)
            .unwrap_or_else(|| name.to_string_lossy().into_owned());
        let kind = name.split_once(":[").map_or("", |(kind, _)| kind);
        Some(kind.to_owned())
    }

    fn online_cpus(&self) -> String {
        fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default()
    }

    fn memory_nodes(&self) -> String {
        fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default()
    }

    fn max_open_files(&self) -> u64 {
        let text = fs::read_to_string("/proc/sys/fs/nr_open").ok();
        text.and_then(|text| text.trim().parse().ok())
            .unwrap_or(u64::MAX)
    }
}

/// The root within its file system of the last mount at `path`; for a namespace its name.
fn namespace_mounted_at(mountinfo: &str, path: &Path) -> Option<String> {
    let mut lines = mountinfo.lines().rev();
    lines.find_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let root = fields.next()?;
        let point = cgroup::unescape_mount(fields.next()?);
        (Path::new(&point) == path).then(|| root.to_owned())
    })
}

/// The propagation of the mount that contains a path: the last mount at its longest mounted prefix.
fn propagation_of(mountinfo: &str, path: &Path) -> Propagation {
    let mut best: Option<(usize, Propagation)> = None;
    for line in mountinfo.lines() {
        let Some((point, propagation)) = parse_mount(line) else {
            continue;
        };
        let depth = point.components().count();
        if path.starts_with(&point) && best.is_none_or(|(deepest, _)| depth >= deepest) {
            best = Some((depth, propagation));
        }
    }
    best.map_or(Propagation::Private, |(_, propagation)| propagation)
}

/// Mount point and propagation of a mountinfo line: fields 5 and 7 up to the dash.
fn parse_mount(line: &str) -> Option<(PathBuf, Propagation)> {
    let mut fields = line.split(' ');
    let point = PathBuf::from(cgroup::unescape_mount(fields.nth(4)?));
    let optional = fields.skip(1).take_while(|field| *field != "-");
    let mut propagation = Propagation::Private;
    for field in optional {
        if field.starts_with("shared:") {
            return Some((point, Propagation::Shared));
        }
        if field.starts_with("master:") {
            propagation = Propagation::Slave;
        }
    }
    Some((point, propagation))
}

/// Whether init is systemd, in our own PID namespace: systemd takes processes by their pids.
pub fn is_run_by_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
        && fs::read_to_string("/proc/1/comm").is_ok_and(|name| name.trim_end() == "systemd")
}

/// The id of this boot (CRI-813).
///
/// # Errors
/// If `/proc` has none.
pub fn boot_id() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 21 0:25 / /var/lib/with\\040blank rw master:3 - tmpfs tmpfs rw
31 21 0:26 / /private rw - tmpfs tmpfs rw
32 21 0:27 / /private rw shared:9 - tmpfs tmpfs rw
";

    #[test]
    fn the_deepest_and_last_mount_decides_the_propagation_of_a_path() {
        let of = |path: &str| propagation_of(MOUNTS, Path::new(path));
        assert_eq!(of("/etc"), Propagation::Shared);
        assert_eq!(of("/var/lib/with blank/x"), Propagation::Slave);
        assert_eq!(of("/private/x"), Propagation::Shared);
        assert_eq!(of("/privateer"), Propagation::Shared);
    }

    #[test]
    fn the_daemons_capabilities_come_from_its_status() {
        assert_eq!(
            own_capabilities("Name:\tx\nCapEff:\t00000000a80425fb\n"),
            0xa804_25fb
        );
    }
}

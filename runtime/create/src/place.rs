//! Mounts made beside libcontainer, in this helper's own mount namespace.
//!
//! The namespace is a copy of the daemon's bare one (`MOUNTS_FD`): `/proc`, `/sys` without the
//! mounts below, `/dev`. So its cost, and that of libcontainer reading its mounts, is independent
//! of the host's pods; and libcontainer's cgroup code finds no hierarchy to move processes in (a
//! write to `cgroup.procs` waits 7 to 20 ms for RCU; we have joined already). File systems of the
//! host are opened before, as detached trees, and staged there for libcontainer to bind. For OCI
//! hooks it is a copy of the host's namespace, without the cgroups.
//!
//! All its mounts are slaves of the host's, except requested shared ones: what libcontainer mounts
//! on the others stays in the container.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cairn_monitor::mount_tree::{self, Attributes, SEALED};
use cairn_monitor::rooted;
use cairn_monitor::sys;
use oci_spec::runtime::{LinuxDeviceType, Spec};
use rustix::fs::{CWD, FileType, Mode, OFlags, StatVfsMountFlags, XattrFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::adjust::{DEVICES, DIRECTORY, Node, ROOT, STAGE, Staged};
use crate::cgroup_view::{CgroupView, Hierarchies};
use crate::idmap;
use crate::proc_view::ProcView;

/// Sets how mounts at and below `destination` propagate.
pub(crate) fn set_propagation(destination: &Path, flags: u64) -> io::Result<()> {
    let flags = MountPropagationFlags::from_bits_retain(flags as u32);
    Ok(rustix::mount::mount_change(destination, flags)?)
}

/// Views for init to attach inside the container, each assembled to one detached tree.
#[derive(Default)]
pub(crate) struct Views<'a> {
    pub(crate) cgroups: Option<&'a CgroupView>,
    /// Each with the procfs to start from.
    pub(crate) procs: Vec<(&'a ProcView, OwnedFd)>,
}

/// Detached trees and their mount points.
pub(crate) type Trees = Vec<(OwnedFd, PathBuf)>;

/// The mount namespace that is copied.
pub(crate) enum Base<'a> {
    /// The daemon's bare one. The root of the container and its directory are staged.
    Bare(&'a OwnedFd, &'a Path),
    /// The host's, without its cgroups.
    Host,
}

/// Moves from the host's mount namespace to a new one with the staged mounts; the working directory
/// stays the same. Restrictions on the file system of a staged root do not apply there.
pub(crate) fn move_in(
    base: &Base<'_>,
    stage: &[Staged],
    nodes: &[Node],
    views: Views<'_>,
) -> Result<Trees, String> {
    let trees = stage.iter().map(open).collect::<Result<Vec<_>, String>>()?;
    let mut own = Vec::new();
    if let Base::Bare(_, root) = base {
        let root =
            unrestricted(root).map_err(|e| format!("bind the root {}: {e}", root.display()))?;
        let directory = mount_tree::copy(Path::new("."), false)
            .map_err(|e| format!("bind the container's directory: {e}"))?;
        own = vec![(ROOT, root), (DIRECTORY, directory)];
    }
    let made = assemble_in(base, views)?;
    for (name, tree) in &own {
        place_tree(&Path::new(STAGE).join(name), tree)?;
    }
    for node in nodes {
        make_node(node)
            .map_err(|e| format!("make device node {}: {e}", node.destination.display()))?;
    }
    let (shared, apart): (Vec<_>, Vec<_>) = stage.iter().zip(&trees).partition(|(s, _)| s.shared);
    for (staged, tree) in apart {
        place_tree(&staged.at, tree)?;
    }
    enslave().map_err(|e| format!("make our mounts slaves of the host's: {e}"))?;
    for (staged, tree) in shared {
        place_tree(&staged.at, tree)?;
    }
    if !own.is_empty() {
        std::env::set_current_dir(Path::new(STAGE).join(DIRECTORY))
            .map_err(|e| format!("enter the container's directory: {e}"))?;
    }
    Ok(made)
}

/// libcontainer makes links in `/dev` by its path outside of the container: a link of the image there
/// would lead it to the host's files.
pub(crate) fn check_devices(root: &Path) -> Result<(), String> {
    let devices = root.join(&DEVICES[1..]);
    match fs::symlink_metadata(&devices) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(format!("{DEVICES} of the root must be a directory")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(format!("find {}: {e}", devices.display())),
    }
}

/// No mount in this namespace propagates to the host from here on.
fn enslave() -> io::Result<()> {
    set_propagation(Path::new("/"), libc::MS_REC | libc::MS_SLAVE)
}

fn enter(base: &Base<'_>) -> Result<(), String> {
    let at = |step: &'static str| move |e: io::Error| format!("{step}: {e}");
    if let Base::Bare(mounts, _) = base {
        enter_mounts(mounts).map_err(at("enter the bare mount namespace"))?;
    }
    sys::unshare_namespaces(UnshareFlags::NEWNS).map_err(at("make a mount namespace"))?;
    if let Base::Host = base {
        enslave().map_err(at("make our mounts slaves of the host's"))?;
        // libcgroups would look on the stage for the hierarchies that it covers.
        while rustix::mount::unmount(STAGE, UnmountFlags::DETACH).is_ok() {}
    }
    mount_tmpfs("cairn", Path::new(STAGE), c"mode=755,size=1m").map_err(at("mount the stage"))
}

/// Assembles the views in a copy of `base` with an empty stage. The process stays in that copy.
fn assemble_in(base: &Base<'_>, views: Views<'_>) -> Result<Trees, String> {
    let at = |step: &'static str| move |e: io::Error| format!("{step}: {e}");
    // Copied while their sources are visible.
    let procs = views.procs.into_iter().map(|(view, procfs)| {
        let binds = view.binds.iter().map(|bind| {
            mount_tree::copy(&bind.source, bind.recursive)
                .map_err(|e| format!("bind {}: {e}", bind.source.display()))
        });
        Ok((view, procfs, binds.collect::<Result<Vec<_>, String>>()?))
    });
    let procs = procs.collect::<Result<Vec<_>, String>>()?;
    let directories = match views.cgroups.map(|v| &v.hierarchies) {
        None => Vec::new(),
        Some(Hierarchies::V2(path)) => vec![path.as_path()],
        Some(Hierarchies::V1 { directories, .. }) => {
            directories.iter().map(|(_, p)| p.as_path()).collect()
        }
    };
    let cgroups = directories
        .into_iter()
        .map(|path| {
            mount_tree::copy(path, false)
                .map_err(|e| format!("bind cgroup {}: {e}", path.display()))
        })
        .collect::<Result<Vec<_>, String>>()?;
    enter(base)?;
    if procs.iter().any(|(view, ..)| !view.masked.is_empty()) {
        make_null().map_err(at("make a null device"))?;
    }
    let mut made = Trees::new();
    for (view, procfs, binds) in procs {
        let tree = cover(view, &procfs, &binds).map_err(|e| {
            let path = view.destination.display();
            format!("assemble the mount of {path}: {e}")
        })?;
        made.push((tree, view.destination.clone()));
    }
    if let Some(view) = views.cgroups {
        let tree = assemble(view, cgroups).map_err(at("assemble the cgroup mount"))?;
        made.push((tree, view.destination.clone()));
    }
    Ok(made)
}

/// Copies the root and its mounts, and clears its restrictions. A pause process has its root in
/// /run, on most hosts noexec, nosuid and nodev. A user namespace cannot clear these, and a remount
/// that omits them is refused.
fn unrestricted(root: &Path) -> io::Result<OwnedFd> {
    const RESTRICTIONS: u64 =
        libc::MOUNT_ATTR_NOEXEC | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    let tree = mount_tree::copy(root, true)?;
    let restrictions =
        StatVfsMountFlags::NOEXEC | StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV;
    if rustix::fs::fstatvfs(&tree)?.f_flag.intersects(restrictions) {
        let attributes = Attributes {
            clear: RESTRICTIONS,
            ..Attributes::default()
        };
        mount_tree::set_attributes(&tree, &attributes)?;
    }
    Ok(tree)
}

/// Runs `work`, which may enter another mount namespace, then returns to this one.
pub(crate) fn and_return<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    let directory = std::env::current_dir()?;
    let ours = File::open("/proc/self/ns/mnt")?;
    let result = work();
    enter_mounts(&ours)?;
    std::env::set_current_dir(directory)?;
    Ok(result)
}

/// Also changes root and working directory to that namespace's root.
pub(crate) fn enter_mounts(namespace: &impl AsFd) -> io::Result<()> {
    let kind = Some(LinkNameSpaceType::Mount);
    Ok(rustix::thread::move_into_link_name_space(
        namespace.as_fd(),
        kind,
    )?)
}

/// Opens the namespaces to join: init would open the paths inside its user namespace, where it may
/// lack access. The descriptors stay open until execve.
pub(crate) fn open_namespaces(spec: &mut Spec) -> Result<(), String> {
    let Some(namespaces) = spec
        .linux_mut()
        .as_mut()
        .and_then(|l| l.namespaces_mut().as_mut())
    else {
        return Ok(());
    };
    for namespace in namespaces {
        if let Some(path) = namespace.path().clone() {
            let file =
                File::open(&path).map_err(|e| format!("open namespace {}: {e}", path.display()))?;
            namespace.set_path(Some(format!("/proc/self/fd/{}", file.as_raw_fd()).into()));
            std::mem::forget(file);
        }
    }
    Ok(())
}

/// Assembles one detached tree of all hierarchies on the stage, then detaches it, so that
/// libcgroups does not find it by name.
fn assemble(view: &CgroupView, mut cgroups: Vec<OwnedFd>) -> io::Result<OwnedFd> {
    let tree = match &view.hierarchies {
        Hierarchies::V2(_) => cgroups.pop().ok_or_else(|| io::Error::other("no cgroup"))?,
        Hierarchies::V1 { directories, links } => {
            let frame = Path::new(STAGE).join("frame");
            fs::create_dir(&frame)?;
            mount_tmpfs("cgroup", &frame, c"mode=755,size=64k")?;
            for ((name, _), tree) in directories.iter().zip(&cgroups) {
                fs::create_dir(frame.join(name))?;
                mount_tree::attach(tree, &frame.join(name))?;
            }
            for (link, to) in links {
                std::os::unix::fs::symlink(to, frame.join(link))?;
            }
            detach(&frame)?
        }
    };
    let attributes = Attributes {
        set: view.attributes,
        recursive: true,
        ..Attributes::default()
    };
    mount_tree::set_attributes(&tree, &attributes)?;
    Ok(tree)
}

/// Masks files. On the stage, since the container's root may change its mode and owner.
const NULL: &str = "/sys/fs/cgroup/null";

fn make_null() -> io::Result<()> {
    make_device(Path::new(NULL), FileType::CharacterDevice, (1, 3), 0o666)
}

fn make_device(at: &Path, kind: FileType, numbers: (u32, u32), mode: u32) -> io::Result<()> {
    let mode = Mode::from_raw_mode(mode);
    let device = rustix::fs::makedev(numbers.0, numbers.1);
    rustix::fs::mknodat(CWD, at, kind, mode, device)?;
    // mknod applies the umask, chmod does not.
    Ok(rustix::fs::chmod(at, mode)?)
}

fn make_node(node: &Node) -> io::Result<()> {
    let kind = match node.kind {
        LinuxDeviceType::B => FileType::BlockDevice,
        LinuxDeviceType::P => FileType::Fifo,
        _ => FileType::CharacterDevice,
    };
    let number = |n: i64| u32::try_from(n).map_err(io::Error::other);
    let numbers = (number(node.numbers.0)?, number(node.numbers.1)?);
    make_device(&node.at, kind, numbers, node.mode)?;
    std::os::unix::fs::chown(&node.at, Some(node.owner.0), Some(node.owner.1))?;
    if let Some(label) = &node.label {
        let flags = XattrFlags::empty();
        rustix::fs::lsetxattr(&node.at, "security.selinux", label.as_bytes(), flags)?;
    }
    Ok(())
}

/// Assembles a procfs with its masks on the stage. Paths that the kernel lacks need no mask.
fn cover(view: &ProcView, procfs: &OwnedFd, binds: &[OwnedFd]) -> io::Result<OwnedFd> {
    let frame = Path::new(STAGE).join("frame");
    fs::create_dir(&frame)?;
    let attributes = Attributes {
        set: view.attributes,
        clear: SEALED & !view.attributes,
        ..Attributes::default()
    };
    mount_tree::set_attributes(procfs, &attributes)?;
    mount_tree::attach(procfs, &frame)?;
    for (bind, tree) in view.binds.iter().zip(binds) {
        let attributes = Attributes {
            set: bind.attributes,
            recursive: bind.recursive,
            ..Attributes::default()
        };
        mount_tree::set_attributes(tree, &attributes)?;
        mount_tree::attach(tree, &frame.join(&bind.at))?;
    }
    let existing = |paths: &[PathBuf]| -> Vec<PathBuf> {
        let paths = paths.iter().map(|path| frame.join(path));
        paths.filter(|path| path.exists()).collect()
    };
    for path in existing(&view.read_only) {
        let tree = mount_tree::copy(&path, true)?;
        let attributes = Attributes {
            set: SEALED,
            ..Attributes::default()
        };
        mount_tree::set_attributes(&tree, &attributes)?;
        mount_tree::attach(&tree, &path)?;
    }
    for path in existing(&view.masked) {
        if path.is_dir() {
            rustix::mount::mount("tmpfs", &path, "tmpfs", MountFlags::RDONLY, None)?;
        } else {
            mount_tree::attach(&mount_tree::copy(Path::new(NULL), false)?, &path)?;
        }
    }
    detach(&frame)
}

/// Detaches all mounts at a place of the stage as one tree, and removes the place.
fn detach(frame: &Path) -> io::Result<OwnedFd> {
    let tree = mount_tree::copy(frame, true)?;
    rustix::mount::unmount(frame, UnmountFlags::DETACH)?;
    fs::remove_dir(frame)?;
    Ok(tree)
}

/// Attaches a view inside the container, after libcontainer's mounts.
pub(crate) fn attach(root: BorrowedFd<'_>, tree: &OwnedFd, destination: &Path) -> io::Result<()> {
    let path = destination.as_os_str().as_bytes();
    let directory = rooted::make_directories(root, path, 0o755)?;
    mount_tree::attach_on(tree, directory.as_fd())
}

fn open(staged: &Staged) -> Result<OwnedFd, String> {
    let source = &staged.source;
    let tree = match &staged.shifted {
        Some(owners) => idmap::copy(source, staged.recursive, owners),
        None => mount_tree::copy(source, staged.recursive)
            .map_err(|e| format!("bind {}: {e}", source.display())),
    };
    tree.map_err(|why| format!("mount {}: {why}", staged.destination.display()))
}

fn place_tree(at: &Path, tree: &OwnedFd) -> Result<(), String> {
    let made = if is_directory(tree) {
        fs::create_dir(at)
    } else {
        File::create(at).map(drop)
    };
    made.and_then(|()| mount_tree::attach(tree, at))
        .map_err(|e| format!("stage {}: {e}", at.display()))
}

fn is_directory(fd: &OwnedFd) -> bool {
    fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).is_ok_and(|m| m.is_dir())
}

/// `HOME=...` of a user by the root's /etc/passwd; no link leads out of the root.
pub(crate) fn home(rootfs: &Path, uid: u32) -> Vec<u8> {
    let text = read_in_root(rootfs, b"/etc/passwd").unwrap_or_default();
    let mut lines = text
        .split(|b| *b == b'\n')
        .map(|l| l.split(|b| *b == b':').collect::<Vec<_>>());
    let own = uid.to_string().into_bytes();
    let found = lines
        .find(|fields| fields.len() >= 7 && fields[2] == own)
        .map(|fields| fields[5].to_vec());
    let home = found
        .filter(|h| !h.is_empty())
        .unwrap_or_else(|| b"/".to_vec());
    [b"HOME=".to_vec(), home].concat()
}

fn read_in_root(rootfs: &Path, path: &[u8]) -> io::Result<Vec<u8>> {
    /// No real passwd file is larger.
    const LIMIT: u64 = 1 << 20;
    let root = File::open(rootfs)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rooted::open(root.as_fd(), path, flags)?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = Vec::new();
    file.take(LIMIT).read_to_end(&mut text)?;
    Ok(text)
}

fn mount_tmpfs(source: &str, target: &Path, options: &CStr) -> io::Result<()> {
    let flags = MountFlags::empty();
    Ok(rustix::mount::mount(
        source, target, "tmpfs", flags, options,
    )?)
}

//! Makes what the root is built of, in this helper's own mount namespace, before libcontainer.
//!
//! The namespace is a copy of the daemon's bare one (`MOUNTS_FD`): `/proc`, `/sys` without the
//! mounts below, `/dev`. So its cost, and that of libcontainer reading its mounts, is independent
//! of the host's pods; and libcontainer's cgroup code finds no hierarchy to move processes in (a
//! write to `cgroup.procs` waits 7 to 20 ms for RCU; we have joined already). File systems of the
//! host are opened before, as detached trees, and staged there for libcontainer to bind.
//!
//! Every path here is the host's or on a tmpfs of ours: nothing is looked up in the container's
//! root, which is behind a mount point of the stage. Init does that, in a mount namespace without
//! these (`root.rs`).
//!
//! All its mounts are slaves of the host's, except requested shared ones: what libcontainer mounts
//! on the others stays in the container.

#![expect(
    clippy::disallowed_methods,
    reason = "paths of the host, and of the stage"
)]

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use cairn_monitor::mount_tree::{self, Attributes, SEALED};
use cairn_monitor::rooted;
use cairn_monitor::sys;
use oci_spec::runtime::{LinuxDeviceType, Spec};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, StatVfsMountFlags, Uid, XattrFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, UnmountFlags,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::adjust::{DIRECTORY, Plan, ROOT, SHELL, Staged, Tree};
use crate::cgroup_view::{CgroupView, Hierarchies};
use crate::devices::{CORE, DevTree, LINKS, Node};
use crate::idmap;
use crate::strip::STAGE;

/// Moves from the host's mount namespace to a copy of `bare` with the staged mounts; the working
/// directory stays the same. Restrictions on the file system of a staged root do not apply there.
/// Returns the plan's trees; `procfs` has one of the joined PID namespace for each that is planned.
pub(crate) fn move_in(
    bare: &OwnedFd,
    plan: &Plan,
    procfs: Vec<OwnedFd>,
) -> Result<Vec<OwnedFd>, String> {
    let host = File::open("/proc/self/ns/mnt")
        .map_err(|e| format!("open the host's mount namespace: {e}"))?;
    let opened = plan.stage.iter().map(open);
    let opened = opened.collect::<Result<Vec<_>, String>>()?;
    let root = unrestricted(&plan.rootfs)
        .map_err(|e| format!("bind the root {}: {e}", plan.rootfs.display()))?;
    let directory = mount_tree::copy(Path::new("."), false)
        .map_err(|e| format!("bind the container's directory: {e}"))?;
    let sources = plan.trees.iter().map(open_cgroups);
    let sources = sources.collect::<Result<Vec<_>, String>>()?;
    enter(bare)?;
    let mut procfs = procfs.into_iter();
    let trees = plan.trees.iter().zip(sources);
    let trees = trees.map(|(tree, cgroups)| match tree {
        Tree::Devices(tree) => devices(tree).map_err(|e| format!("make /dev: {e}")),
        Tree::Proc(attributes) => {
            let procfs = procfs.next().ok_or("the joined procfs is missing")?;
            unseal(procfs, *attributes).map_err(|e| format!("open the joined procfs: {e}"))
        }
        Tree::Cgroups(view) => {
            assemble(view, cgroups).map_err(|e| format!("assemble the cgroup mount: {e}"))
        }
    });
    let trees = trees.collect::<Result<Vec<_>, String>>()?;
    make_shell(plan.owner).map_err(|e| format!("make the shell: {e}"))?;
    place_tree(&Path::new(STAGE).join(ROOT), &root)?;
    place_tree(&Path::new(STAGE).join(DIRECTORY), &directory)?;
    for node in &plan.nodes {
        make_staged(node).map_err(|e| format!("make device node {}: {e}", node.at.display()))?;
    }
    let (shared, apart): (Vec<_>, Vec<_>) =
        plan.stage.iter().zip(&opened).partition(|(s, _)| s.shared);
    for (staged, tree) in apart {
        stage(staged, tree, &host)?;
    }
    enslave().map_err(|e| format!("make our mounts slaves of the host's: {e}"))?;
    for (staged, tree) in shared {
        stage(staged, tree, &host)?;
    }
    std::env::set_current_dir(Path::new(STAGE).join(DIRECTORY))
        .map_err(|e| format!("enter the container's directory: {e}"))?;
    Ok(trees)
}

/// The host's mounts, detached: what OCI hooks of the container make in them stays in the container.
pub(crate) fn host_mounts() -> Result<OwnedFd, String> {
    let copy = || {
        let tree = without_namespaces(|| mount_tree::copy(Path::new("/"), true))??;
        let attributes = Attributes {
            propagation: libc::MS_SLAVE,
            recursive: true,
            ..Attributes::default()
        };
        mount_tree::set_attributes(&tree, &attributes)?;
        Ok(tree)
    };
    copy().map_err(|e: io::Error| format!("copy the host's mounts: {e}"))
}

/// Runs `work` in a copy of this mount namespace, which lacks the mounts of mount namespaces: the
/// kernel attaches no tree with one that may contain the target.
fn without_namespaces<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    and_return(|| {
        sys::unshare_namespaces(UnshareFlags::NEWNS)?;
        Ok(work())
    })?
}

/// No mount in this namespace propagates to the host from here on.
fn enslave() -> io::Result<()> {
    let flags = MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM;
    Ok(rustix::mount::mount_change("/", flags)?)
}

fn enter(bare: &OwnedFd) -> Result<(), String> {
    let at = |step: &'static str| move |e: io::Error| format!("{step}: {e}");
    enter_mounts(bare).map_err(at("enter the bare mount namespace"))?;
    sys::unshare_namespaces(UnshareFlags::NEWNS).map_err(at("make a mount namespace"))?;
    mount_tmpfs("cairn", Path::new(STAGE), c"mode=755,size=1m").map_err(at("mount the stage"))
}

/// A null device in the shell.
pub(crate) const NULL: &str = "null";

/// An empty root for libcontainer, owned by the container's root user, whose init works in it.
fn make_shell((uid, gid): (u32, u32)) -> io::Result<()> {
    let shell = Path::new(STAGE).join(SHELL);
    fs::create_dir(&shell)?;
    let options = format!("mode=755,size=1m,uid={uid},gid={gid}");
    let options = std::ffi::CString::new(options)?;
    mount_tmpfs("cairn", &shell, &options)?;
    // Masks files: the host's node would let the container change its mode and owner.
    let null = Mode::from_raw_mode(0o666);
    let (kind, device) = (FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    rustix::fs::mknodat(CWD, shell.join(NULL), kind, null, device)?;
    rustix::fs::chmod(shell.join(NULL), null)?;
    let devices = shell.join("dev");
    fs::create_dir(&devices)?;
    std::os::unix::fs::chown(&devices, Some(uid), Some(gid))
}

fn open_cgroups(tree: &Tree) -> Result<Vec<OwnedFd>, String> {
    let Tree::Cgroups(view) = tree else {
        return Ok(Vec::new());
    };
    let directories = match &view.hierarchies {
        Hierarchies::V2(path) => vec![path.as_path()],
        Hierarchies::V1 { directories, .. } => {
            directories.iter().map(|(_, p)| p.as_path()).collect()
        }
    };
    let copies = directories.into_iter().map(|path| {
        mount_tree::copy(path, false).map_err(|e| format!("bind cgroup {}: {e}", path.display()))
    });
    copies.collect()
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

/// Opens a new tmpfs with the nodes and links of a `/dev`, detached.
fn devices(plan: &DevTree) -> io::Result<OwnedFd> {
    let options = plan.options.iter();
    let options = options.map(|(name, value)| (name.as_str(), value.as_deref()));
    let tree = new_tmpfs(options, plan.attributes)?;
    let root = rustix::fs::fstat(&tree)?;
    let owner = (root.st_uid, root.st_gid);
    for node in &plan.nodes {
        make_parents(&tree, &node.at, owner)?;
        make_node(tree.as_fd(), node).map_err(|e| {
            io::Error::new(e.kind(), format!("device node {}: {e}", node.at.display()))
        })?;
    }
    let core = Some(CORE).filter(|(_, target)| Path::new(target).exists());
    for (name, target) in LINKS.into_iter().chain(core) {
        match rustix::fs::symlinkat(target, &tree, name) {
            Err(rustix::io::Errno::EXIST) => continue,
            made => made?,
        }
        let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(&tree, name, Some(uid), Some(gid), flags)?;
    }
    Ok(tree)
}

/// Mounts a new tmpfs, detached.
pub(crate) fn new_tmpfs<'a>(
    options: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    attributes: u64,
) -> io::Result<OwnedFd> {
    let new = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&new, "source", "tmpfs")?;
    for (name, value) in options {
        let set = match value {
            Some(value) => rustix::mount::fsconfig_set_string(&new, name, value),
            None => rustix::mount::fsconfig_set_flag(&new, name),
        };
        set.map_err(|e| {
            let e = io::Error::from(e);
            io::Error::new(e.kind(), format!("option {name}: {e}"))
        })?;
    }
    rustix::mount::fsconfig_create(&new)?;
    let attributes = MountAttrFlags::from_bits_retain(attributes as u32);
    Ok(rustix::mount::fsmount(
        &new,
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}

/// Makes the directories above a node of the tree.
fn make_parents(tree: &OwnedFd, node: &Path, (uid, gid): (u32, u32)) -> io::Result<()> {
    let above: Vec<&Path> = node.ancestors().skip(1).collect();
    let above = above
        .into_iter()
        .rev()
        .filter(|p| !p.as_os_str().is_empty());
    for directory in above {
        match rustix::fs::mkdirat(tree, directory, Mode::from_raw_mode(0o755)) {
            Err(rustix::io::Errno::EXIST) => continue,
            made => made?,
        }
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::fs::chownat(tree, directory, Some(uid), Some(gid), AtFlags::empty())?;
    }
    Ok(())
}

fn make_staged(node: &Node) -> io::Result<()> {
    make_node(CWD, node)?;
    if let Some(label) = &node.label {
        let flags = XattrFlags::empty();
        rustix::fs::lsetxattr(&node.at, "security.selinux", label.as_bytes(), flags)?;
    }
    Ok(())
}

/// Makes a node in a tree that no container sees yet.
fn make_node(tree: impl AsFd, node: &Node) -> io::Result<()> {
    let kind = match node.kind {
        LinuxDeviceType::B => FileType::BlockDevice,
        LinuxDeviceType::P => FileType::Fifo,
        _ => FileType::CharacterDevice,
    };
    let mode = Mode::from_raw_mode(node.mode);
    let device = rustix::fs::makedev(node.numbers.0, node.numbers.1);
    rustix::fs::mknodat(&tree, &node.at, kind, mode, device)?;
    // chown before chmod: it clears bits of the mode. mknod applies the umask, chmod does not.
    let (uid, gid) = (Uid::from_raw(node.owner.0), Gid::from_raw(node.owner.1));
    rustix::fs::chownat(&tree, &node.at, Some(uid), Some(gid), AtFlags::empty())?;
    Ok(rustix::fs::chmodat(
        &tree,
        &node.at,
        mode,
        AtFlags::empty(),
    )?)
}

/// Gives the copy of a sealed procfs these attributes instead.
fn unseal(procfs: OwnedFd, attributes: u64) -> io::Result<OwnedFd> {
    let attributes = Attributes {
        set: attributes,
        clear: SEALED & !attributes,
        ..Attributes::default()
    };
    mount_tree::set_attributes(&procfs, &attributes)?;
    Ok(procfs)
}

/// Detaches all mounts at a place of the stage as one tree, and removes the place.
fn detach(frame: &Path) -> io::Result<OwnedFd> {
    let tree = mount_tree::copy(frame, true)?;
    rustix::mount::unmount(frame, UnmountFlags::DETACH)?;
    fs::remove_dir(frame)?;
    Ok(tree)
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

/// Places a source. A tree with the mount of a mount namespace, as snapd makes one below `/run`, is
/// refused by the kernel; it is opened again without.
fn stage(staged: &Staged, tree: &OwnedFd, host: &File) -> Result<(), String> {
    make_mount_point(&staged.at, tree)?;
    let at = |e: io::Error| format!("stage {}: {e}", staged.at.display());
    match mount_tree::attach(tree, &staged.at) {
        Err(e)
            if staged.recursive && matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ELOOP)) => {
        }
        attached => return attached.map_err(at),
    }
    let opened = and_return(|| {
        enter_mounts(host)?;
        without_namespaces(|| open(staged))
    });
    let again = opened.map_err(at)?.map_err(at)??;
    if identity(&again).map_err(at)? != identity(tree).map_err(at)? {
        let to = staged.destination.display();
        return Err(format!("mount {to}: the source has been replaced"));
    }
    mount_tree::attach(&again, &staged.at).map_err(at)
}

fn identity(tree: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(tree)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn place_tree(at: &Path, tree: &OwnedFd) -> Result<(), String> {
    make_mount_point(at, tree)?;
    mount_tree::attach(tree, at).map_err(|e| format!("stage {}: {e}", at.display()))
}

fn make_mount_point(at: &Path, tree: &OwnedFd) -> Result<(), String> {
    let made = match sys::file_type(tree.as_fd()) {
        Ok(FileType::Directory) => fs::create_dir(at),
        Ok(_) => File::create(at).map(drop),
        Err(e) => Err(e),
    };
    made.map_err(|e| format!("stage {}: {e}", at.display()))
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

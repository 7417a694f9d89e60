//! Mounts made beside libcontainer, in a mount namespace of this helper's own. All its `unsafe` but two borrows.
//!
//! The namespace is a slave of the host's: what the host mounts later would arrive, nothing goes back. The cgroup
//! hierarchies are taken off in it, so that libcontainer's cgroup code finds none to move processes through (each
//! write to a `cgroup.procs` waits 7 to 20 ms for RCU; we have joined already).
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cairn_monitor::sys::{self, Fork};
use oci_spec::runtime::{LinuxIdMapping, Spec};

use crate::adjust::{CgroupView, Hierarchies, STAGE, Staged};

/// Stdin, stdout, stderr of the container as the monitor handed them over.
pub fn inherited_stdio() -> [OwnedFd; 3] {
    // SAFETY: descriptors 3 to 5 are ours by the protocol in `cairn_monitor::report`; this is called once.
    [3, 4, 5].map(|fd: RawFd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets how mounts at and below `destination` propagate.
pub fn set_propagation(destination: &Path, flags: u64) -> io::Result<()> {
    mount(None, destination, None, flags, None)
}

/// A mount namespace of our own without cgroup hierarchies, and the staged mounts in their place. Returns the tree that
/// init shall attach as the container's view of its cgroups.
pub fn private_mounts(
    stage: &[Staged],
    view: Option<&CgroupView>,
) -> Result<Option<OwnedFd>, String> {
    let at = |step: &'static str| move |e: io::Error| format!("{step}: {e}");
    sys::unshare(libc::CLONE_NEWNS).map_err(at("make a mount namespace"))?;
    mount(
        None,
        Path::new("/"),
        None,
        libc::MS_REC | libc::MS_SLAVE,
        None,
    )
    .map_err(at("make our mounts slaves of the host's"))?;
    // Taken hold of while their sources can be seen.
    let trees = stage.iter().map(open).collect::<Result<Vec<_>, String>>()?;
    let directories = match view.map(|v| &v.hierarchies) {
        None => Vec::new(),
        Some(Hierarchies::V2(path)) => vec![path.as_path()],
        Some(Hierarchies::V1 { directories, .. }) => {
            directories.iter().map(|(_, p)| p.as_path()).collect()
        }
    };
    let cgroups = directories
        .into_iter()
        .map(|path| {
            open_tree(path, false).map_err(|e| format!("bind cgroup {}: {e}", path.display()))
        })
        .collect::<Result<Vec<_>, String>>()?;
    match unmount(Path::new(STAGE)) {
        // No mount point (a plain directory of /sys).
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
        other => other.map_err(at("take the cgroup hierarchies off"))?,
    }
    mount(
        Some("cairn"),
        Path::new(STAGE),
        Some("tmpfs"),
        0,
        Some("mode=755,size=1m"),
    )
    .map_err(at("mount a tmpfs over the cgroup hierarchies"))?;
    let tree = view
        .map(|v| assemble(v, cgroups))
        .transpose()
        .map_err(at("assemble the cgroup mount"))?;
    stage
        .iter()
        .zip(trees)
        .try_for_each(|(staged, tree)| settle(staged, &tree))?;
    Ok(tree)
}

/// The container's view of its cgroups alone, for a helper that stays in the host's mount namespace: put together in
/// another one, which is gone afterwards. A detached tree belongs to none.
pub fn cgroup_tree(view: &CgroupView) -> Result<Option<OwnedFd>, String> {
    let at = |e: io::Error| format!("return to the host's mount namespace: {e}");
    let directory = std::env::current_dir().map_err(at)?;
    let host = File::open("/proc/self/ns/mnt").map_err(at)?;
    let tree = private_mounts(&[], Some(view));
    // Also sets root and working directory to that namespace's root.
    sys::setns(host.as_fd(), libc::CLONE_NEWNS).map_err(at)?;
    std::env::set_current_dir(directory).map_err(at)?;
    tree
}

/// Opens the namespaces to join: init opens them by path only after it has entered its user namespace, where it may not
/// be able to walk there. The descriptors stay open until execve.
pub fn hold_namespaces(spec: &mut Spec) -> Result<(), String> {
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

/// One detached tree of all hierarchies. Put together on the stage and taken off again, so that libcgroups does not find
/// them there by name.
fn assemble(view: &CgroupView, mut cgroups: Vec<OwnedFd>) -> io::Result<OwnedFd> {
    let tree = match &view.hierarchies {
        Hierarchies::V2(_) => cgroups.pop().ok_or_else(|| io::Error::other("no cgroup"))?,
        Hierarchies::V1 { directories, links } => {
            let frame = Path::new(STAGE).join("frame");
            fs::create_dir(&frame)?;
            mount(
                Some("cgroup"),
                &frame,
                Some("tmpfs"),
                0,
                Some("mode=755,size=64k"),
            )?;
            for ((name, _), tree) in directories.iter().zip(&cgroups) {
                fs::create_dir(frame.join(name))?;
                move_mount(tree, &frame.join(name))?;
            }
            for (link, to) in links {
                std::os::unix::fs::symlink(to, frame.join(link))?;
            }
            let tree = open_tree(&frame, true)?;
            unmount(&frame)?;
            tree
        }
    };
    set_attributes(&tree, true, view.attributes, None)?;
    Ok(tree)
}

/// Attaches the view inside the container, after everything libcontainer has mounted.
pub fn attach(tree: &OwnedFd, destination: &Path) -> io::Result<()> {
    if !destination.is_dir() {
        fs::create_dir_all(destination)?;
    }
    move_mount(tree, destination)
}

fn open(staged: &Staged) -> Result<OwnedFd, String> {
    let Staged::Idmapped {
        source,
        recursive,
        uids,
        gids,
        ..
    } = staged;
    idmapped(source, *recursive, uids, gids)
}

fn settle(staged: &Staged, tree: &OwnedFd) -> Result<(), String> {
    let Staged::Idmapped { at, .. } = staged;
    let made = if is_directory(tree) {
        fs::create_dir(at)
    } else {
        File::create(at).map(drop)
    };
    made.and_then(|()| move_mount(tree, at))
        .map_err(|e| format!("stage {}: {e}", at.display()))
}

fn is_directory(fd: &OwnedFd) -> bool {
    fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).is_ok_and(|m| m.is_dir())
}

/// A detached copy of a mount tree with shifted owners (CRI-225).
fn idmapped(
    source: &Path,
    recursive: bool,
    uids: &[LinuxIdMapping],
    gids: &[LinuxIdMapping],
) -> Result<OwnedFd, String> {
    let at = |step: &'static str| {
        move |e: io::Error| format!("idmapped mount of {}: {step}: {e}", source.display())
    };
    let tree = open_tree(source, recursive).map_err(at("open"))?;
    let namespace = user_namespace(uids, gids).map_err(at("make a user namespace"))?;
    set_attributes(&tree, recursive, libc::MOUNT_ATTR_IDMAP, Some(&namespace)).map_err(|e| {
        let kind = filesystem(&tree);
        format!(
            "idmapped mount of {}: its filesystem ({kind}) refuses: {e}",
            source.display()
        )
    })?;
    Ok(tree)
}

fn set_attributes(
    tree: &OwnedFd,
    recursive: bool,
    set: u64,
    userns: Option<&File>,
) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: set,
        attr_clr: 0,
        propagation: 0,
        userns_fd: userns.map_or(0, |f| f.as_raw_fd() as u64),
    };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a C string, the attributes are valid for their size.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// A user namespace with these mappings; nobody lives in it.
fn user_namespace(uids: &[LinuxIdMapping], gids: &[LinuxIdMapping]) -> io::Result<File> {
    let (ready_read, ready_write) = sys::pipe()?;
    let (stay_read, stay_write) = sys::pipe()?;
    // SAFETY: this helper has one thread; the child ends by `exit_now`.
    let pid = match unsafe { sys::fork_into(None)? } {
        Fork::Parent(pid) => pid,
        Fork::Child => {
            drop(stay_write);
            if sys::unshare(libc::CLONE_NEWUSER).is_ok() {
                let _parent_gone = sys::write(ready_write.as_fd(), b"1");
                let _until_it_is_closed = sys::read(stay_read.as_fd(), &mut [0]);
            }
            sys::exit_now(0)
        }
    };
    drop(ready_write);
    let result = match sys::read(ready_read.as_fd(), &mut [0]) {
        Ok(1) => map(pid, uids, gids),
        Ok(_) => Err(io::Error::other("unshare failed")),
        Err(e) => Err(e),
    };
    drop(stay_write);
    // SAFETY: waits for our own child; a null status is allowed.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    result
}

fn map(pid: i32, uids: &[LinuxIdMapping], gids: &[LinuxIdMapping]) -> io::Result<File> {
    let text = |maps: &[LinuxIdMapping]| -> String {
        maps.iter()
            .map(|m| format!("{} {} {}\n", m.container_id(), m.host_id(), m.size()))
            .collect()
    };
    fs::write(format!("/proc/{pid}/uid_map"), text(uids))?;
    fs::write(format!("/proc/{pid}/gid_map"), text(gids))?;
    File::open(format!("/proc/{pid}/ns/user"))
}

/// `HOME=...` of a user by the root's /etc/passwd, read without following anything out of the root.
pub fn home(rootfs: &Path, uid: u32) -> Vec<u8> {
    let text = read_in_root(rootfs, c"etc/passwd").unwrap_or_default();
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

fn read_in_root(rootfs: &Path, path: &CStr) -> io::Result<Vec<u8>> {
    /// Nobody's passwd is larger.
    const LIMIT: u64 = 1 << 20;
    let root = File::open(rootfs)?;
    // SAFETY: zero is valid for open_how.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY) as u64;
    how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: the path is a C string, `how` is valid for its size.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            root.as_raw_fd(),
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    };
    let file = File::from(own(fd)?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("no regular file"));
    }
    let mut text = Vec::new();
    file.take(LIMIT).read_to_end(&mut text)?;
    Ok(text)
}

fn filesystem(fd: &OwnedFd) -> String {
    // SAFETY: zero is valid; the kernel writes it before it is read.
    unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        if libc::fstatfs(fd.as_raw_fd(), &raw mut stat) < 0 {
            return "unknown".to_owned();
        }
        format!("type {:#x}", stat.f_type)
    }
}

fn open_tree(path: &Path, recursive: bool) -> io::Result<OwnedFd> {
    let path = c_string(path)?;
    let flags = libc::OPEN_TREE_CLONE
        | libc::OPEN_TREE_CLOEXEC
        | if recursive {
            libc::AT_RECURSIVE as u32
        } else {
            0
        };
    // SAFETY: a C string.
    own(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })
}

fn move_mount(tree: &OwnedFd, to: &Path) -> io::Result<()> {
    let to = c_string(to)?;
    // SAFETY: C strings.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn own(ret: libc::c_long) -> io::Result<OwnedFd> {
    if ret < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave out this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(ret as RawFd) })
}

fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn mount(
    source: Option<&str>,
    target: &Path,
    kind: Option<&str>,
    flags: u64,
    data: Option<&str>,
) -> io::Result<()> {
    let text = |s: Option<&str>| {
        s.map(CString::new)
            .transpose()
            .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
    };
    let (source, target, kind, data) = (text(source)?, c_string(target)?, text(kind)?, text(data)?);
    let pointer = |s: &Option<CString>| s.as_ref().map_or(std::ptr::null(), |s| s.as_ptr());
    // SAFETY: null or C strings that outlive the call.
    let ret = unsafe {
        libc::mount(
            pointer(&source),
            target.as_ptr(),
            pointer(&kind),
            flags,
            pointer(&data).cast(),
        )
    };
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn unmount(target: &Path) -> io::Result<()> {
    let target = c_string(target)?;
    // SAFETY: a C string.
    let ret = unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

//! The container's root: the only way to a path in it.
//!
//! Volumes, and so directories of the root, are writable by other containers while it is built. So
//! each path is looked up once, below the root's descriptor, with the mounts placed so far; the
//! found descriptor is checked, and only that descriptor is used. A lookup never leaves the root and
//! follows no magic link (`cairn_monitor::rooted`). Init builds the root after libcontainer has made
//! the shell its root: nothing of the host is in its mount namespace then, except the nodes that
//! libcontainer binds in the shell of a user namespace. With OCI hooks, the host's mounts come once
//! all is in its place.
//!
//! Two rules, by the ids of mounts:
//!
//! - In the kernel's own places, `/proc`, `/sys` and `/dev`, nothing is placed or made unless the
//!   destination's text names them and no link is on the way.
//! - A link in a mount, so one that another container may have made, leads only into the same mount;
//!   a link of the image leads anywhere else.

#![expect(
    clippy::disallowed_methods,
    reason = "the door; other paths here are of the shell"
)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cairn_monitor::mount_tree::{self, Attributes, SEALED};
use cairn_monitor::rooted::{self, Found, Missing};
use cairn_monitor::sys;
use rustix::fs::{FileType, OFlags};
use rustix::mount::{MountPropagationFlags, UnmountFlags};

use crate::adjust::{ROOT_IN_SHELL, kernels_place};
use crate::host_proc::HostProc;
use crate::place::{NULL, new_tmpfs};

pub(crate) struct Root<'a> {
    fd: OwnedFd,
    id: u64,
    /// A detached null device, which masks files.
    null: OwnedFd,
    /// The kernel's place that each placed mount belongs to.
    placed: RefCell<HashMap<u64, Option<&'static str>>>,
    proc: &'a HostProc,
}

impl<'a> Root<'a> {
    /// Takes the container's root, still without mounts, from the shell.
    pub(crate) fn take(proc: &'a HostProc) -> io::Result<Root<'a>> {
        // No mount can be moved out of a shared one.
        rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE)?;
        let fd = in_shell(Path::new(ROOT_IN_SHELL))?;
        // pivot_root refuses a shared one.
        set_propagation(fd.as_fd(), libc::MS_PRIVATE)?;
        Ok(Root {
            id: sys::mount_id(fd.as_fd())?,
            fd,
            null: mount_tree::copy(&Path::new("/").join(NULL), false)?,
            placed: RefCell::default(),
            proc,
        })
    }

    /// [`Root::place`] of a mount that libcontainer made in the shell.
    pub(crate) fn place_made(
        &self,
        made: &Path,
        destination: &Path,
        propagation: u64,
    ) -> io::Result<()> {
        self.place(in_shell(made)?.as_fd(), destination, propagation)
    }

    /// Mounts a tree at its destination, with the missing directories or the missing file.
    pub(crate) fn place(
        &self,
        tree: BorrowedFd<'_>,
        destination: &Path,
        propagation: u64,
    ) -> io::Result<()> {
        let is_directory = sys::file_type(tree)? == FileType::Directory;
        let place = kernels_place(destination);
        if destination == Path::new("/proc")
            && rustix::fs::fstatfs(tree)?.f_type != rustix::fs::PROC_SUPER_MAGIC
        {
            return Err(io::Error::other("/proc can only be replaced by a procfs"));
        }
        let missing = if is_directory {
            Missing::Directory
        } else {
            Missing::File
        };
        let target = self.target(destination, missing)?;
        if is_directory != (sys::file_type(target.as_fd())? == FileType::Directory) {
            return Err(io::Error::other(if is_directory {
                "a directory cannot be mounted on a file"
            } else {
                "a file cannot be mounted on a directory"
            }));
        }
        if propagation != 0 {
            // Before the mounts on it, which have their own.
            set_propagation(tree, propagation)?;
        }
        mount_tree::attach_on(tree, target.as_fd())?;
        let id = sys::mount_id(tree)?;
        self.placed.borrow_mut().insert(id, place);
        Ok(())
    }

    /// Finds or makes the place of a mount, and checks where it is.
    fn target(&self, destination: &Path, missing: Missing) -> io::Result<OwnedFd> {
        let found = self.make(destination, missing)?;
        if self.is_root(&found.fd)? {
            return Err(io::Error::other("a link leads it to the root"));
        }
        Ok(found.fd)
    }

    fn make(&self, destination: &Path, missing: Missing) -> io::Result<Found> {
        let named = kernels_place(destination);
        // Each of the kernel's places is where its name says.
        let itself = named.filter(|place| Path::new(place) == destination);
        let check = |file: BorrowedFd<'_>, links: &[u64]| match itself {
            Some(place) if !links.is_empty() => Err(io::Error::other(format!(
                "{place} of the root must be a directory, not a link"
            ))),
            _ => self.check(file, links, named),
        };
        let path = destination.as_os_str().as_bytes();
        let found = rooted::make(self.fd.as_fd(), path, missing, &check)?;
        check(found.fd.as_fd(), &found.links)?;
        Ok(found)
    }

    /// Checks a place to which links of these mounts have led. `named`: the kernel's place in the
    /// text of the destination.
    fn check(&self, file: BorrowedFd<'_>, links: &[u64], named: Option<&str>) -> io::Result<()> {
        let id = sys::mount_id(file)?;
        if let Some(place) = self.kernels_place_of(id)?
            && (!links.is_empty() || named != Some(place))
        {
            return Err(io::Error::other(format!(
                "a link leads it into {place}, where only a destination that names it is mounted"
            )));
        }
        if !links.iter().all(|link| [self.id, id].contains(link)) {
            return Err(io::Error::other(
                "a link in a mount leads it out of the mount",
            ));
        }
        Ok(())
    }

    fn is_root(&self, found: &OwnedFd) -> io::Result<bool> {
        let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| stat.st_ino);
        Ok(sys::mount_id(found.as_fd())? == self.id && inode(found)? == inode(&self.fd)?)
    }

    /// The kernel's place that a mount belongs to.
    fn kernels_place_of(&self, id: u64) -> io::Result<Option<&'static str>> {
        if id == self.id {
            return Ok(None);
        }
        if let Some(place) = self.placed.borrow().get(&id) {
            return Ok(*place);
        }
        // It came with the mount above it.
        let parents = self.proc.parents_of_mounts()?;
        let mut at = id;
        for _ in 0..parents.len() {
            let Some(parent) = parents.get(&at) else {
                break;
            };
            at = *parent;
            let known = self.placed.borrow().get(&at).copied();
            let known = known.or((at == self.id).then_some(None));
            if let Some(place) = known {
                self.placed.borrow_mut().insert(id, place);
                return Ok(place);
            }
        }
        Err(io::Error::other("it is in a mount that is not in the root"))
    }

    /// Makes the host's mounts the root of this process and of its mount namespace, with the
    /// container's root at `path`, for OCI hooks. Only [`Root::finish`] follows.
    pub(crate) fn show_host(&self, host: &OwnedFd, path: &Path) -> io::Result<()> {
        let at = sys::open_root()?;
        let at = rooted::make(at.as_fd(), b"/host", Missing::Directory, &|_, _| Ok(()))?;
        mount_tree::attach_on(host, at.fd.as_fd())?;
        let host = in_shell(Path::new("/host"))?;
        let at = rooted::directory(host.as_fd(), path.as_os_str().as_bytes())?;
        mount_tree::attach_on(&self.fd, at.as_fd())?;
        enter(host.as_fd())
    }

    /// Makes this the root of this process and of its mount namespace; the old root is detached.
    pub(crate) fn enter(&self) -> io::Result<()> {
        enter(self.fd.as_fd())
    }

    /// Hides these paths; missing ones need no mask.
    pub(crate) fn mask(&self, paths: &[String], label: Option<&str>) -> Result<(), String> {
        let mut null = Cover::new(&self.null);
        let mut directories = Vec::new();
        for path in paths {
            let at = |e: io::Error| format!("mask {path}: {e}");
            let Some(target) = self.existing(path).map_err(at)? else {
                continue;
            };
            if sys::file_type(target.as_fd()).map_err(at)? == FileType::Directory {
                directories.push((path, target));
            } else {
                null.put(target.as_fd()).map_err(at)?;
            }
        }
        if directories.is_empty() {
            return Ok(());
        }
        let context = label.map(|label| ("context", Some(label)));
        let empty = new_tmpfs(context, SEALED).map_err(|e| format!("mask directories: {e}"))?;
        let mut empty = Cover::new(&empty);
        for (path, target) in directories {
            empty
                .put(target.as_fd())
                .map_err(|e| format!("mask {path}: {e}"))?;
        }
        Ok(())
    }

    /// Makes these paths read-only; missing ones are skipped.
    pub(crate) fn protect(&self, paths: &[String]) -> Result<(), String> {
        for path in paths {
            let at = |e: io::Error| format!("make {path} read-only: {e}");
            let Some(target) = self.existing(path).map_err(at)? else {
                continue;
            };
            let sealed = Attributes {
                set: SEALED,
                ..Attributes::default()
            };
            let tree = mount_tree::copy_of(target.as_fd(), true).map_err(at)?;
            mount_tree::set_attributes(&tree, &sealed).map_err(at)?;
            mount_tree::attach_on(&tree, target.as_fd()).map_err(at)?;
        }
        Ok(())
    }

    fn existing(&self, path: &str) -> io::Result<Option<OwnedFd>> {
        let never = |_: BorrowedFd<'_>, _: &[u64]| Err(io::ErrorKind::NotFound.into());
        let found = rooted::make(self.fd.as_fd(), path.as_bytes(), Missing::File, &never);
        match found {
            Ok(found) => {
                let named = kernels_place(Path::new(path));
                self.check(found.fd.as_fd(), &found.links, named)?;
                if self.is_root(&found.fd)? {
                    return Err(io::Error::other("it is the root"));
                }
                Ok(Some(found.fd))
            }
            Err(e) if is_missing(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Makes a missing directory.
    pub(crate) fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.make(path, Missing::Directory).map(drop)
    }

    /// Sets the root's own access and propagation, once all is in it.
    pub(crate) fn finish(&self, read_only: bool, propagation: u64) -> io::Result<()> {
        if !read_only && propagation == 0 {
            return Ok(());
        }
        let attributes = Attributes {
            set: if read_only {
                libc::MOUNT_ATTR_RDONLY
            } else {
                0
            },
            propagation,
            ..Attributes::default()
        };
        mount_tree::set_attributes(&self.fd, &attributes)
    }
}

/// A mount to be seen at several places: the first is the tree itself, others are copies.
struct Cover<'a> {
    tree: &'a OwnedFd,
    is_attached: bool,
}

impl<'a> Cover<'a> {
    fn new(tree: &'a OwnedFd) -> Cover<'a> {
        Cover {
            tree,
            is_attached: false,
        }
    }

    fn put(&mut self, target: BorrowedFd<'_>) -> io::Result<()> {
        if std::mem::replace(&mut self.is_attached, true) {
            return mount_tree::attach_on(mount_tree::copy_of(self.tree.as_fd(), false)?, target);
        }
        mount_tree::attach_on(self.tree, target)
    }
}

/// Opens a place of the shell, which is the root of this process.
fn in_shell(path: &Path) -> io::Result<OwnedFd> {
    rooted::open_direct(sys::open_root()?.as_fd(), path.as_os_str().as_bytes())
}

/// `propagation` has MS_* flags, with MS_REC for the mounts below.
fn set_propagation(tree: BorrowedFd<'_>, propagation: u64) -> io::Result<()> {
    let attributes = Attributes {
        propagation: propagation & !libc::MS_REC,
        recursive: propagation & libc::MS_REC != 0,
        ..Attributes::default()
    };
    mount_tree::set_attributes(tree, &attributes)
}

/// pivot_root puts the old root on the new one, where it is unmounted.
fn enter(root: BorrowedFd<'_>) -> io::Result<()> {
    sys::enter_directory(root)?;
    rustix::process::pivot_root(".", ".")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

/// Labels a file system of message queues in the shell.
pub(crate) fn label_queues(path: &Path, label: &str) -> io::Result<()> {
    let shell = sys::open_root()?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let queues = rooted::open(shell.as_fd(), path.as_os_str().as_bytes(), flags)?;
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::fsetxattr(&queues, "security.selinux", label.as_bytes(), flags)?;
    Ok(())
}

/// Opens the null device of a container's `/dev`, or the shell's.
pub(crate) fn open_null(devices: Option<BorrowedFd<'_>>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    match devices {
        Some(devices) => rooted::open(devices, b"/null", flags),
        None => rooted::open(sys::open_root()?.as_fd(), NULL.as_bytes(), flags),
    }
}

/// Whether the path of this process's root is an executable file. A path through a link of procfs is
/// an error.
pub(crate) fn is_executable(path: &[u8]) -> io::Result<bool> {
    let found = rooted::open(sys::open_root()?.as_fd(), path, OFlags::PATH)?;
    let stat = rustix::fs::fstat(&found)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(is_file && stat.st_mode & 0o111 != 0)
}

pub(crate) fn is_missing(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

//! SELinux labels of trees that containers read and write, perhaps at this moment (CRI-244).
//!
//! Containers and images choose how deep and how wide a tree is, so nothing here recurses, holds a descriptor per level or a
//! directory's whole list: of each directory above the one that is read, it is known how long its path is and where its
//! reading goes on. No symlink is followed; mounts are entered, as the container sees them too.

use std::{
    ffi::{CStr, OsStr},
    fs, io,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::Path,
};

use rustix::{
    fs::{
        AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, XattrFlags, fstat,
        getxattr, lgetxattr, lsetxattr, openat2, seek, setxattr, statat,
    },
    io::Errno,
};

const ATTRIBUTE: &str = "security.selinux";
/// A path that the kernel opens, without its NUL.
const PATH_MAX: usize = 4095;

/// What the host itself needs labelled as it is: a pod that got one of these would take the host with it.
const OF_THE_HOST: [&str; 40] = [
    "/",
    "/bin",
    "/etc",
    "/etc/group",
    "/etc/pam.d",
    "/etc/passwd",
    "/etc/pki",
    "/etc/selinux",
    "/etc/shadow",
    "/etc/ssh",
    "/etc/ssl",
    "/etc/systemd",
    "/home",
    "/lib",
    "/lib64",
    "/media",
    "/mnt",
    "/opt",
    "/root",
    "/run",
    "/sbin",
    "/srv",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/local",
    "/usr/sbin",
    "/usr/share",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/lib/containers",
    "/var/lib/kubelet",
    "/var/lib/rpm",
    "/var/log",
    "/var/spool",
    "/var/tmp",
];
/// These, and all below them.
const WHOLLY_OF_THE_HOST: [&str; 4] = ["/boot", "/dev", "/proc", "/sys"];

/// [`relabel`], but for what the host or the runtime itself needs labelled as it is. `own`: the runtime's directories.
///
/// # Errors
/// As [`relabel`].
pub fn relabel_volume(volume: &Path, label: &str, own: [&Path; 2]) -> io::Result<()> {
    let refused = |whose: &str| {
        let why = format!("{whose} must keep its SELinux labels");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    };
    if is_of_the_host(volume)? {
        return refused("this part of the host");
    }
    for dir in own.into_iter().filter_map(|dir| fs::canonicalize(dir).ok()) {
        if dir.starts_with(volume) || volume.starts_with(&dir) {
            return refused("the runtime's directory");
        }
    }
    relabel(volume, label)
}

/// By what it is and not by its name: `/bin` is `/usr/bin` on one host, `/home` is `/var/home` on another.
fn is_of_the_host(volume: &Path) -> io::Result<bool> {
    let known = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let this = known(volume)?;
    let mut listed = OF_THE_HOST.iter().chain(&WHOLLY_OF_THE_HOST);
    Ok(WHOLLY_OF_THE_HOST
        .iter()
        .any(|path| volume.starts_with(path))
        || listed.any(|path| known(Path::new(path)).is_ok_and(|listed| listed == this)))
}

/// Labels a file, or a directory with all below it, whose path has no symlinks. What vanishes meanwhile is passed over, a
/// file system without labels is left as it is, and so is what lies deeper than a path can say.
///
/// # Errors
/// What cannot be labelled.
pub fn relabel(tree: &Path, label: &str) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let top = openat2(CWD, tree, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    match set_opened(&top, label) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        other => other?,
    }
    if FileType::from_raw_mode(fstat(&top)?.st_mode) != FileType::Directory {
        return Ok(());
    }
    let too_deep = relabel_below(&top, label).map_err(|(path, error)| {
        let path = tree.join(OsStr::from_bytes(&path));
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    })?;
    if too_deep > 0 {
        let tree = tree.display();
        tracing::warn!(%tree, "{too_deep} files keep their SELinux labels: their paths are longer than {PATH_MAX} bytes");
    }
    Ok(())
}

/// A directory on the way down.
struct Level {
    /// Of its path.
    length: usize,
    /// Where its reading goes on.
    next: u64,
}

/// Answers how many are out of reach.
fn relabel_below(top: &OwnedFd, label: &str) -> Result<u64, (Vec<u8>, Errno)> {
    let mut too_deep = 0;
    let mut path = b".".to_vec();
    let mut levels = vec![Level { length: 1, next: 0 }];
    while let Some(level) = levels.last_mut() {
        path.truncate(level.length);
        let found = relabel_on(top, &path, level, label, &mut too_deep);
        match found {
            Ok(Some(name)) => {
                path.push(b'/');
                path.extend(name);
                levels.push(Level {
                    length: path.len(),
                    next: 0,
                });
            }
            Ok(None) => {
                levels.pop();
            }
            Err(error) if is_gone(error) => {
                levels.pop();
            }
            Err(error) => return Err((path, error)),
        }
    }
    Ok(too_deep)
}

/// Labels what a directory has from where its reading goes on, to its end or to the next directory in it.
fn relabel_on(
    top: &OwnedFd,
    path: &[u8],
    level: &mut Level,
    label: &str,
    too_deep: &mut u64,
) -> rustix::io::Result<Option<Vec<u8>>> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat2(top, path, flags, Mode::empty(), resolve)?;
    if level.next > 0 {
        seek(&dir, SeekFrom::Start(level.next))?;
    }
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&dir, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match set_named(&dir, name, label) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(error) if is_gone(error) => continue,
            Err(error) => return Err(error),
        }
        if !is_dir(&dir, name, entry.file_type()) {
            continue;
        }
        if path.len() + 1 + name.to_bytes().len() > PATH_MAX {
            *too_deep += 1;
            continue;
        }
        level.next = entry.next_entry_cookie();
        return Ok(Some(name.to_bytes().to_vec()));
    }
    Ok(None)
}

/// Not every file system says it with the name.
fn is_dir(dir: &OwnedFd, name: &CStr, kind: FileType) -> bool {
    let of = |found: rustix::fs::Stat| FileType::from_raw_mode(found.st_mode);
    let kind = match kind {
        FileType::Unknown => statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).map(of),
        known => Ok(known),
    };
    kind == Ok(FileType::Directory)
}

/// Its place was taken by something else, or it was moved out of the tree.
fn is_gone(error: Errno) -> bool {
    matches!(
        error,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::STALE
    )
}

fn set_opened(file: &OwnedFd, label: &str) -> rustix::io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut there = [0; 256];
    match getxattr(&path, ATTRIBUTE, &mut there) {
        Ok(length) if is(label, &there[..length]) => Ok(()),
        _ => setxattr(&path, ATTRIBUTE, label.as_bytes(), XattrFlags::empty()),
    }
}

fn set_named(dir: &OwnedFd, name: &CStr, label: &str) -> rustix::io::Result<()> {
    let of_dir = format!("/proc/self/fd/{}/", dir.as_raw_fd());
    let path = [of_dir.as_bytes(), name.to_bytes()].concat();
    let mut there = [0; 256];
    match lgetxattr(&path, ATTRIBUTE, &mut there) {
        Ok(length) if is(label, &there[..length]) => Ok(()),
        _ => lsetxattr(&path, ATTRIBUTE, label.as_bytes(), XattrFlags::empty()),
    }
}

/// A label that is there already is not written again: that would be a write for each file of a volume at each start.
fn is(label: &str, there: &[u8]) -> bool {
    there.strip_suffix(b"\0").unwrap_or(there) == label.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_root() -> bool {
        let root = rustix::process::geteuid().is_root();
        if !root {
            eprintln!("skipped: needs root");
        }
        root
    }

    fn label_of(path: &Path) -> Option<String> {
        let mut value = [0; 64];
        let length = lgetxattr(path, ATTRIBUTE, &mut value).ok()?;
        let text = String::from_utf8_lossy(&value[..length]);
        Some(text.trim_end_matches('\0').to_owned())
    }

    /// The attribute is root's to set, also where no SELinux looks at it.
    #[test]
    fn a_tree_is_labelled_to_its_last_file_and_nothing_outside_it() {
        if !is_root() {
            return;
        }
        let tmp = tempfile::tempdir().unwrap();
        let (tree, outside) = (tmp.path().join("tree"), tmp.path().join("outside"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        let odd = tree.join(OsStr::from_bytes(b"a/b/\xff"));
        fs::write(&odd, "").unwrap();
        fs::write(&outside, "").unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("a/out")).unwrap();
        let before = label_of(&outside);
        for new in ["system_u:object_r:a_t:s0", "system_u:object_r:b_t:s0:c1,c2"] {
            relabel(&tree, new).unwrap();
            for path in [&tree, &tree.join("a"), &odd, &tree.join("a/out")] {
                assert_eq!(label_of(path).as_deref(), Some(new), "{}", path.display());
            }
        }
        assert_eq!(label_of(&outside), before);
        relabel(&odd, "system_u:object_r:c_t:s0").unwrap();
        assert_eq!(label_of(&odd).as_deref(), Some("system_u:object_r:c_t:s0"));
        let link = tmp.path().join("link");
        std::os::unix::fs::symlink(&tree, &link).unwrap();
        relabel(&link, "x").expect_err("a symlink is not followed");
    }

    /// More names than one reading has, directories among them, so that each directory is left and come back to.
    #[test]
    fn a_wide_tree_is_labelled_to_its_last_file() {
        if !is_root() {
            return;
        }
        let tmp = tempfile::tempdir().unwrap();
        let mut files = Vec::new();
        for n in 0..500 {
            let (dir, file) = (
                tmp.path().join(format!("d{n}")),
                tmp.path().join(format!("f{n}")),
            );
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("in"), "").unwrap();
            fs::write(&file, "").unwrap();
            files.extend([dir.join("in"), dir, file]);
        }
        relabel(tmp.path(), "system_u:object_r:a_t:s0").unwrap();
        for file in files {
            let label = label_of(&file);
            assert_eq!(
                label.as_deref(),
                Some("system_u:object_r:a_t:s0"),
                "{}",
                file.display()
            );
        }
    }

    /// Who may write to a volume must not keep its pod's other containers from being created.
    #[test]
    fn what_lies_deeper_than_a_path_can_say_keeps_its_label_and_fails_nothing() {
        if !is_root() {
            return;
        }
        let tmp = tempfile::tempdir().unwrap();
        let mut dir: OwnedFd = fs::File::open(tmp.path()).unwrap().into();
        let name = "d".repeat(250);
        let mut last = Vec::new();
        for _ in 0..20 {
            rustix::fs::mkdirat(&dir, &*name, Mode::RWXU).unwrap();
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let next = rustix::fs::openat(&dir, &*name, flags, Mode::empty()).unwrap();
            last.push(next.try_clone().unwrap());
            dir = next;
        }
        relabel(tmp.path(), "system_u:object_r:a_t:s0").unwrap();
        let labelled = |level: usize| {
            let path = format!("/proc/self/fd/{}", last[level].as_raw_fd());
            let mut value = [0; 64];
            getxattr(path, ATTRIBUTE, &mut value)
                .is_ok_and(|n| is("system_u:object_r:a_t:s0", &value[..n]))
        };
        assert!(labelled(14), "15 times 250 is less than 4095");
        assert!(!labelled(19), "20 times 250 is more");
        crate::remove::remove_tree_at(&tmp.path().join(&name)).unwrap();
    }

    #[test]
    fn what_the_host_needs_is_not_relabelled_by_whatever_name() {
        let tmp = tempfile::tempdir().unwrap();
        let (root, state) = (tmp.path().join("root"), tmp.path().join("state"));
        let volume = state.join("containers/a");
        fs::create_dir_all(&root).unwrap();
        fs::create_dir_all(&volume).unwrap();
        let usr_bin = fs::canonicalize("/bin").unwrap();
        for (path, whose) in [
            (Path::new("/"), "host"),
            (Path::new("/etc"), "host"),
            (&*usr_bin, "host"),
            (Path::new("/var/lib"), "host"),
            (Path::new("/proc/sys"), "host"),
            (tmp.path(), "runtime"),
            (&*root, "runtime"),
            (&*volume, "runtime"),
        ] {
            let refused = relabel_volume(path, "x", [&root, &state]);
            let refused = refused.expect_err(whose).to_string();
            assert!(
                refused.contains("must keep") && refused.contains(whose),
                "{refused}"
            );
        }
    }
}

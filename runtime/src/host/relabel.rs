//! SELinux labels of trees that containers read and write, perhaps at this moment (CRI-244).
//!
//! Containers and images choose how deep and how wide a tree is, so nothing here recurses, holds a descriptor per level or a
//! directory's whole list: of each directory above the one that is read, it is known how long its path is, what is left of
//! one reading, and where the next goes on. No symlink is followed; mounts are entered, as the container sees them too.

use std::{
    collections::HashSet,
    ffi::{CStr, OsStr},
    fs, io,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::Path,
    time::{Duration, Instant},
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
/// A kubelet gives a creation up after two minutes. What has its label then is passed quickly by the next one.
const LIMIT: Duration = Duration::from_secs(100);

/// What the host itself needs labelled as it is: a pod that got one of these would take the host with it.
const OF_THE_HOST: [&str; 35] = [
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
    "/lib",
    "/lib64",
    "/root",
    "/run",
    "/sbin",
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
/// These by their names alone: a disk may be mounted there for volumes, which a kubelet binds elsewhere.
const HOST_BY_NAME: [&str; 7] = [
    "/home",
    "/media",
    "/mnt",
    "/opt",
    "/srv",
    "/var/home",
    "/var/opt",
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
        || HOST_BY_NAME.iter().any(|path| volume == Path::new(path))
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
        tracing::warn!(%tree, "{too_deep} directories have contents that keep their SELinux labels: the paths are longer than {PATH_MAX} bytes");
    }
    Ok(())
}

/// A directory on the way down.
struct Level {
    /// Of its path.
    length: usize,
    /// Where its reading goes on; `None` at its end.
    next: Option<u64>,
    /// Directories of what was read last, which are still to be entered.
    todo: Vec<Vec<u8>>,
}

/// A walk that containers can see, and rename in: it enters no directory twice, and it has an end.
struct Walk<'a> {
    top: &'a OwnedFd,
    label: &'a str,
    entered: HashSet<(u64, u64)>,
    until: Instant,
    /// Directories whose content is out of reach.
    too_deep: u64,
}

/// Answers how many directories' content is out of reach.
fn relabel_below(top: &OwnedFd, label: &str) -> Result<u64, (Vec<u8>, Errno)> {
    let mut walk = Walk {
        top,
        label,
        entered: HashSet::new(),
        until: Instant::now() + LIMIT,
        too_deep: 0,
    };
    let level = |length| Level {
        length,
        next: Some(0),
        todo: Vec::new(),
    };
    let mut path = b".".to_vec();
    let mut levels = vec![level(1)];
    while let Some(last) = levels.last_mut() {
        path.truncate(last.length);
        if let Some(name) = last.todo.pop() {
            path.push(b'/');
            path.extend(name);
            match path.len() > PATH_MAX {
                true => walk.too_deep += 1,
                false => levels.push(level(path.len())),
            }
            continue;
        }
        let Some(from) = last.next else {
            levels.pop();
            continue;
        };
        match walk.read(&path, from) {
            Ok((todo, next)) => (last.todo, last.next) = (todo, next),
            Err(error) if is_gone(error) => last.next = None,
            Err(error) => return Err((path, error)),
        }
    }
    Ok(walk.too_deep)
}

impl Walk<'_> {
    /// Labels what one reading of a directory brings; answers the directories among it, and where it goes on.
    fn read(&mut self, path: &[u8], from: u64) -> rustix::io::Result<(Vec<Vec<u8>>, Option<u64>)> {
        if Instant::now() > self.until {
            return Err(Errno::TIMEDOUT);
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat2(self.top, path, flags, Mode::empty(), resolve)?;
        let stat = fstat(&dir)?;
        let mut todo = Vec::new();
        if from == 0 && !self.entered.insert((stat.st_dev, stat.st_ino)) {
            return Ok((todo, None));
        }
        // What a file system says of a position, it may not take back.
        if from > 0 && seek(&dir, SeekFrom::Start(from)).is_err() {
            return Ok((todo, None));
        }
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut entries = RawDir::new(&dir, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let next = entry.next_entry_cookie();
            let name = entry.file_name();
            if !matches!(name.to_bytes(), b"." | b"..") {
                match set_named(&dir, name, self.label) {
                    Ok(()) if is_dir(&dir, name, entry.file_type()) => {
                        todo.push(name.to_bytes().to_vec());
                    }
                    // Of a file system without labels, which is mounted there, nothing has one.
                    Ok(()) | Err(Errno::OPNOTSUPP) => {}
                    Err(error) if is_gone(error) => {}
                    Err(error) => return Err(error),
                }
            }
            if entries.is_buffer_empty() {
                return Ok((todo, Some(next)));
            }
        }
        Ok((todo, None))
    }
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
    fn what_the_host_needs_is_known_by_whatever_name() {
        let usr_bin = fs::canonicalize("/bin").unwrap();
        for path in [
            Path::new("/"),
            Path::new("/etc"),
            &usr_bin,
            Path::new("/var/lib"),
        ] {
            assert!(is_of_the_host(path).unwrap(), "{}", path.display());
        }
        assert!(is_of_the_host(Path::new("/proc/sys")).unwrap());
        assert!(is_of_the_host(Path::new("/srv")).unwrap());
        let tmp = tempfile::tempdir().unwrap();
        assert!(!is_of_the_host(tmp.path()).unwrap(), "a volume is not");
    }

    #[test]
    fn the_runtimes_directories_keep_their_labels_and_a_volume_beside_them_does_not() {
        let tmp = tempfile::tempdir().unwrap();
        let tmp = fs::canonicalize(tmp.path()).unwrap();
        let (root, state) = (tmp.join("root"), tmp.join("state"));
        let (inside, volume) = (state.join("containers/a"), tmp.join("volume"));
        for dir in [&root, &inside, &volume] {
            fs::create_dir_all(dir).unwrap();
        }
        for path in [&tmp, &root, &inside] {
            let refused = relabel_volume(path, "x", [&root, &state]);
            let refused = refused.expect_err("the runtime's").to_string();
            assert!(refused.contains("must keep"), "{refused}");
        }
        if is_root() {
            relabel_volume(&volume, "system_u:object_r:a_t:s0", [&root, &state]).unwrap();
            let label = label_of(&volume);
            assert_eq!(label.as_deref(), Some("system_u:object_r:a_t:s0"));
        }
    }
}

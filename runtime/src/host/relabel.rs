//! SELinux labels of trees that containers may be using (CRI-244).
//!
//! Containers and images choose the depth and width of a tree, so `walk.rs` walks it. No symlink is
//! followed; mounts are entered, as containers see them too.

use std::{
    ffi::{CStr, OsStr},
    fs, io,
    os::{
        fd::{AsRawFd as _, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    },
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    fs::{
        CWD, FileType, Mode, OFlags, ResolveFlags, XattrFlags, fstat, getxattr, lgetxattr,
        lsetxattr, openat2, setxattr,
    },
    io::Errno,
};

use crate::walk::{At, Cut, DEPTH_MAX, Limits, Mounts, Then, Visitor, is_gone, walk};

const ATTRIBUTE: &str = "security.selinux";
/// A kubelet cancels a creation after two minutes; the next attempt quickly passes labelled files.
const LIMIT: Duration = Duration::from_secs(100);

/// Directories whose labels the host needs: relabelling one for a pod would break the host.
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
/// Matched by name only: a disk may be mounted there for volumes, which a kubelet binds elsewhere.
const HOST_BY_NAME: [&str; 7] = [
    "/home",
    "/media",
    "/mnt",
    "/opt",
    "/srv",
    "/var/home",
    "/var/opt",
];
/// These and everything below them.
const WHOLLY_OF_THE_HOST: [&str; 4] = ["/boot", "/dev", "/proc", "/sys"];

/// [`relabel`], except for directories of the host and of the runtime (`own`).
///
/// # Errors
/// As [`relabel`].
pub fn relabel_volume(
    volume: &Path,
    label: &str,
    own: [&Path; 2],
    is_over: &dyn Fn() -> bool,
) -> io::Result<()> {
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
    relabel(volume, label, is_over)
}

/// By identity, not by name: `/bin` is `/usr/bin` on one host, `/home` is `/var/home` on another.
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

/// Labels a file, or a directory with everything below it; the path must not have symlinks. Skips
/// removed and moved entries, and file systems without labels. `is_over`: the caller has left.
///
/// # Errors
/// An entry cannot be labelled, or the time limit was reached.
pub fn relabel(tree: &Path, label: &str, is_over: &dyn Fn() -> bool) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let top = openat2(CWD, tree, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    match set_opened(&top, label) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        other => other?,
    }
    if FileType::from_raw_mode(fstat(&top)?.st_mode) != FileType::Directory {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let below = openat2(&top, ".", flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    let limits = Limits {
        until: Some(Instant::now() + LIMIT),
        is_over,
        ..Limits::NONE
    };
    let mut labels = Labels { label, left_out: 0 };
    match walk(below, Mounts::Enter, &limits, &mut labels)? {
        None => {}
        Some(Cut::Over) => return Err(io::ErrorKind::Interrupted.into()),
        Some(Cut::Time | Cut::Entries) => return Err(io::ErrorKind::TimedOut.into()),
    }
    if labels.left_out > 0 {
        let tree = tree.display();
        let left_out = labels.left_out;
        tracing::warn!(
            %tree,
            "{left_out} directories are not completely relabelled: they were moved, or are nested deeper than {DEPTH_MAX}"
        );
    }
    Ok(())
}

/// Labels the content of a directory.
struct Labels<'a> {
    label: &'a str,
    /// Directories with skipped content.
    left_out: u64,
}

impl Visitor for Labels<'_> {
    type Error = io::Error;

    fn entry(&mut self, at: &At<'_>, name: &CStr, kind: FileType) -> io::Result<Then> {
        match set_named(at.dir, name, self.label) {
            Ok(()) if kind == FileType::Directory => Ok(Then::Enter),
            // A mounted file system without labels.
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(Then::Pass),
            Err(error) if is_gone(error) => Ok(Then::Pass),
            Err(error) => {
                let error = io::Error::from(error);
                let shown = format!("/proc/self/fd/{}", at.dir.as_raw_fd());
                // Too long for a path: then the descriptor names it.
                let dir = fs::read_link(&shown).unwrap_or(shown.into());
                let path = dir.join(OsStr::from_bytes(name.to_bytes()));
                Err(io::Error::new(
                    error.kind(),
                    format!("{}: {error}", path.display()),
                ))
            }
        }
    }

    fn passed_over(&mut self, why: Errno) -> io::Result<()> {
        self.left_out += u64::from(why == Errno::STALE || !is_gone(why));
        Ok(())
    }
}

fn set_opened(file: &OwnedFd, label: &str) -> rustix::io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut there = [0; 256];
    match getxattr(&path, ATTRIBUTE, &mut there) {
        Ok(length) if is(label, &there[..length]) => Ok(()),
        _ => setxattr(&path, ATTRIBUTE, label.as_bytes(), XattrFlags::empty()),
    }
}

fn set_named(dir: BorrowedFd<'_>, name: &CStr, label: &str) -> rustix::io::Result<()> {
    let of_dir = format!("/proc/self/fd/{}/", dir.as_raw_fd());
    let path = [of_dir.as_bytes(), name.to_bytes()].concat();
    let mut there = [0; 256];
    match lgetxattr(&path, ATTRIBUTE, &mut there) {
        Ok(length) if is(label, &there[..length]) => Ok(()),
        _ => lsetxattr(&path, ATTRIBUTE, label.as_bytes(), XattrFlags::empty()),
    }
}

/// Skips equal labels: each start would otherwise write once for each file of a volume.
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

    /// Root can set the attribute even without SELinux.
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
            relabel(&tree, new, &|| false).unwrap();
            for path in [&tree, &tree.join("a"), &odd, &tree.join("a/out")] {
                assert_eq!(label_of(path).as_deref(), Some(new), "{}", path.display());
            }
        }
        assert_eq!(label_of(&outside), before);
        relabel(&odd, "system_u:object_r:c_t:s0", &|| false).unwrap();
        assert_eq!(label_of(&odd).as_deref(), Some("system_u:object_r:c_t:s0"));
        let link = tmp.path().join("link");
        std::os::unix::fs::symlink(&tree, &link).unwrap();
        relabel(&link, "x", &|| false).expect_err("a symlink is not followed");
    }

    /// More names than one read returns, with directories between: the walk leaves and resumes.
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
        relabel(tmp.path(), "system_u:object_r:a_t:s0", &|| false).unwrap();
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

    #[test]
    fn entries_deeper_than_a_path_can_express_are_labelled() {
        if !is_root() {
            return;
        }
        let tmp = tempfile::tempdir().unwrap();
        let mut dir: OwnedFd = fs::File::open(tmp.path()).unwrap().into();
        let name = "d".repeat(250);
        for _ in 0..100 {
            rustix::fs::mkdirat(&dir, &*name, Mode::RWXU).unwrap();
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            dir = rustix::fs::openat(&dir, &*name, flags, Mode::empty()).unwrap();
        }
        relabel(tmp.path(), "system_u:object_r:a_t:s0", &|| false).unwrap();
        let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
        let mut value = [0; 64];
        let length = getxattr(path, ATTRIBUTE, &mut value).unwrap();
        assert!(is("system_u:object_r:a_t:s0", &value[..length]));
        let over = relabel(tmp.path(), "system_u:object_r:b_t:s0", &|| true);
        assert_eq!(over.unwrap_err().kind(), io::ErrorKind::Interrupted);
        crate::remove::remove_tree_at(&tmp.path().join(&name)).unwrap();
    }

    #[test]
    fn directories_of_the_host_are_found_by_any_name() {
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
            let refused = relabel_volume(path, "x", [&root, &state], &|| false);
            let refused = refused.expect_err("the runtime's").to_string();
            assert!(refused.contains("must keep"), "{refused}");
        }
        if is_root() {
            relabel_volume(
                &volume,
                "system_u:object_r:a_t:s0",
                [&root, &state],
                &|| false,
            )
            .unwrap();
            let label = label_of(&volume);
            assert_eq!(label.as_deref(), Some("system_u:object_r:a_t:s0"));
        }
    }
}

//! SELinux on this host: is it enabled, what has its policy for containers, and labels of files.

use std::{
    ffi::OsStr,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use rustix::{
    fs::{
        CWD, FileType, Mode, OFlags, ResolveFlags, XattrFlags, fstat, lgetxattr, lsetxattr,
        openat2, setxattr,
    },
    io::Errno,
};

use crate::{
    oci::{SelinuxContexts, SelinuxFacts},
    remove::children,
};

const ENFORCE: &str = "/sys/fs/selinux/enforce";
/// What is written here must be a label of the loaded policy.
const CONTEXT: &str = "/sys/fs/selinux/context";
/// Which of the policies below is loaded.
const CONFIG: &str = "/etc/selinux/config";
const ATTRIBUTE: &str = "security.selinux";

/// What the host itself needs labelled as it is: a pod that got one of these would take the host with it.
const OF_THE_HOST: [&str; 20] = [
    "/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/opt", "/proc",
    "/root", "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/var", "/var/lib",
];

/// `None` where the kernel has no SELinux, or it is off.
pub fn facts() -> Option<SelinuxFacts> {
    let enforce = fs::read_to_string(ENFORCE).ok()?;
    Some(SelinuxFacts {
        enforcing: enforce.trim() != "0",
        contexts: contexts(Path::new(CONFIG)).and_then(known),
    })
}

/// Whether the loaded policy has a label.
pub fn is_known(label: &str) -> bool {
    let file = OpenOptions::new().write(true).open(CONTEXT);
    file.and_then(|mut file| file.write_all(label.as_bytes()))
        .is_ok()
}

fn known(contexts: SelinuxContexts) -> Result<SelinuxContexts, String> {
    for label in [&contexts.process, &contexts.file] {
        if !is_known(label) {
            return Err(format!(
                "the loaded policy does not have {label}: install container-selinux"
            ));
        }
    }
    Ok(contexts)
}

/// What the installed policy says that containers get.
fn contexts(config: &Path) -> Result<SelinuxContexts, String> {
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|error| format!("read {}: {error}", path.display()))
    };
    let text = read(config)?;
    let kind = value(&text, "SELINUXTYPE");
    let kind = kind.ok_or_else(|| format!("{}: SELINUXTYPE is not set", config.display()))?;
    let dir = config.with_file_name(kind);
    let path = dir.join("contexts/lxc_contexts");
    let text = read(&path)?;
    let label = |key| {
        let label = value(&text, key).map(str::to_owned);
        label.ok_or_else(|| format!("{}: {key} is not set", path.display()))
    };
    Ok(SelinuxContexts {
        process: label("process")?,
        file: label("file")?,
    })
}

/// `key = "value"`, with quotes or without.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut pairs = text.lines().filter_map(|line| line.split_once('='));
    let (_, value) = pairs.find(|(k, _)| k.trim() == key)?;
    Some(value.trim().trim_matches('"')).filter(|value| !value.is_empty())
}

/// Labels a file, or a directory with all below it, which containers may be changing meanwhile: no symlink is followed, and
/// what vanishes is passed over. A file system without labels is left as it is.
///
/// # Errors
/// What cannot be labelled, and what must not be.
pub fn relabel(root: &Path, label: &str) -> io::Result<()> {
    if OF_THE_HOST.iter().any(|path| root == Path::new(path)) {
        let why = "this directory of the host must keep its SELinux labels";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let top = openat2(CWD, root, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
    match set(&at(&top, b""), label) {
        Err(Errno::OPNOTSUPP) => return Ok(()),
        other => other?,
    }
    if FileType::from_raw_mode(fstat(&top)?.st_mode) == FileType::Directory {
        relabel_below(&top, label)
            .map_err(|(path, error)| named(&root.join(OsStr::from_bytes(&path)), error))?;
    }
    Ok(())
}

fn relabel_below(top: &OwnedFd, label: &str) -> Result<(), (Vec<u8>, Errno)> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut todo = vec![Vec::from(b".")];
    while let Some(path) = todo.pop() {
        let dir = match openat2(top, &path[..], flags, Mode::empty(), resolve) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(error) => return Err((path, error)),
            Ok(dir) => dir,
        };
        let children = children(dir.as_fd(), usize::MAX).map_err(|error| (path.clone(), error))?;
        for (name, is_dir) in children {
            let child = || [&path[..], b"/", name.as_bytes()].concat();
            match set_unfollowed(&at(&dir, name.as_bytes()), label) {
                Ok(()) | Err(Errno::NOENT | Errno::OPNOTSUPP) => {}
                Err(error) => return Err((child(), error)),
            }
            if is_dir {
                todo.push(child());
            }
        }
    }
    Ok(())
}

fn named(path: &Path, error: Errno) -> io::Error {
    let error = io::Error::from(error);
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// A name in an open directory, or the directory itself.
fn at(dir: &OwnedFd, name: &[u8]) -> Vec<u8> {
    let fd = dir.as_raw_fd();
    let separator: &[u8] = if name.is_empty() { b"" } else { b"/" };
    [format!("/proc/self/fd/{fd}").as_bytes(), separator, name].concat()
}

/// Of what a descriptor stands for.
fn set(path: &[u8], label: &str) -> rustix::io::Result<()> {
    setxattr(path, ATTRIBUTE, label.as_bytes(), XattrFlags::empty())
}

/// A label that is there already is not written again: that would be a write for each file of a volume at each start.
fn set_unfollowed(path: &[u8], label: &str) -> rustix::io::Result<()> {
    let mut there = [0; 256];
    if let Ok(length) = lgetxattr(path, ATTRIBUTE, &mut there)
        && there[..length]
            .strip_suffix(b"\0")
            .unwrap_or(&there[..length])
            == label.as_bytes()
    {
        return Ok(());
    }
    lsetxattr(path, ATTRIBUTE, label.as_bytes(), XattrFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policys_labels_for_containers_are_read() {
        let tmp = tempfile::tempdir().unwrap();
        let config = tmp.path().join("config");
        let failed = |what: &str| {
            let why = contexts(&config).expect_err(what);
            assert!(why.contains(what), "{why}");
        };
        failed("read");
        fs::write(&config, "# SELINUXTYPE= can be\nSELINUX=enforcing\n").unwrap();
        failed("SELINUXTYPE is not set");
        fs::write(&config, "SELINUX=enforcing\nSELINUXTYPE=targeted\n").unwrap();
        failed("lxc_contexts");
        let dir = tmp.path().join("targeted/contexts");
        fs::create_dir_all(&dir).unwrap();
        fs::write(
            dir.join("lxc_contexts"),
            "process = \"u:r:container_t:s0\"\n",
        )
        .unwrap();
        failed("file is not set");
        let text = "process = \"u:r:container_t:s0\"\nfile = u:r:container_file_t:s0\n";
        fs::write(dir.join("lxc_contexts"), text).unwrap();
        let found = contexts(&config).unwrap();
        assert_eq!(found.process, "u:r:container_t:s0");
        assert_eq!(found.file, "u:r:container_file_t:s0");
    }

    /// The attribute is root's to set, also where no SELinux looks at it.
    #[test]
    fn a_tree_is_labelled_to_its_last_file_and_nothing_outside_it() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let tmp = tempfile::tempdir().unwrap();
        let (tree, outside) = (tmp.path().join("tree"), tmp.path().join("outside"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        let odd = tree.join(OsStr::from_bytes(b"a/b/\xff"));
        fs::write(&odd, "").unwrap();
        fs::write(&outside, "").unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("a/out")).unwrap();
        let label = |path: &Path| {
            let mut value = [0; 64];
            let length = lgetxattr(path, ATTRIBUTE, &mut value).ok()?;
            Some(
                String::from_utf8_lossy(&value[..length])
                    .trim_end_matches('\0')
                    .to_owned(),
            )
        };
        let before = label(&outside);
        for new in ["system_u:object_r:a_t:s0", "system_u:object_r:b_t:s0:c1,c2"] {
            relabel(&tree, new).unwrap();
            for path in [&tree, &tree.join("a"), &odd, &tree.join("a/out")] {
                assert_eq!(label(path).as_deref(), Some(new), "{}", path.display());
            }
        }
        assert_eq!(label(&outside), before);
        relabel(&odd, "system_u:object_r:c_t:s0").unwrap();
        assert_eq!(label(&odd).as_deref(), Some("system_u:object_r:c_t:s0"));
        let link = tmp.path().join("link");
        std::os::unix::fs::symlink(&tree, &link).unwrap();
        relabel(&link, "x").expect_err("a symlink is not followed");
    }

    #[test]
    fn directories_of_the_host_are_not_relabelled() {
        for path in ["/", "/etc", "/usr", "/var/lib", "/home"] {
            let refused = relabel(Path::new(path), "x").expect_err(path);
            assert!(refused.to_string().contains("must keep"), "{refused}");
        }
    }
}

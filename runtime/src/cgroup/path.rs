//! The path of a cgroup, relative to the root of each hierarchy. The kubelet chooses the text, so
//! the parser rejects paths that leave the tree (CRI-210, CRI-710). `Host::pod` in `group.rs`
//! chooses a pod's path.

use super::error::{Error, Result};
use std::fmt;
use std::path::{Path, PathBuf};

/// Longest accepted path, below `PATH_MAX` with room for the mount point and a file name.
const MAX_PATH: usize = 3072;
/// Longest accepted component, the kernel's `NAME_MAX`.
const MAX_NAME: usize = 255;
/// Deepest accepted nesting.
const MAX_DEPTH: usize = 64;

/// A checked, normalised path such as `/kubepods/pod42/c1`. Never empty, never the root.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CgroupPath(String);

impl CgroupPath {
    /// Accepts an absolute or relative path of ordinary names; slashes may repeat.
    ///
    /// # Errors
    /// `BadPath` for `..`, `.`, NUL or newline, an overlong or empty path, and names of control
    /// files.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why| Error::BadPath {
            path: text.chars().take(200).collect(),
            why,
        };
        if text.len() > MAX_PATH {
            return Err(bad("too long"));
        }
        let names: Vec<&str> = text.split('/').filter(|name| !name.is_empty()).collect();
        if names.is_empty() {
            return Err(bad("must name a cgroup"));
        }
        if names.len() > MAX_DEPTH {
            return Err(bad("nested too deeply"));
        }
        names
            .iter()
            .try_for_each(|name| check_name(name).map_err(bad))?;
        Ok(Self(format!("/{}", names.join("/"))))
    }

    /// The cgroup `name` inside this one; `name` is one component.
    pub fn child(&self, name: &str) -> Result<Self> {
        if name.is_empty() || name.contains('/') {
            return Err(Error::BadPath {
                path: name.to_owned(),
                why: "must be a single name",
            });
        }
        Self::parse(&format!("{}/{name}", self.0))
    }

    /// The cgroup above, or `None` directly below the root.
    pub fn parent(&self) -> Option<Self> {
        let (above, _) = self.0.rsplit_once('/')?;
        (!above.is_empty()).then(|| Self(above.to_owned()))
    }

    /// With the leading slash, as CRI and OCI (`cgroupsPath`) write it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The directory of this cgroup in the hierarchy mounted at `mount`.
    pub fn below(&self, mount: &Path) -> PathBuf {
        mount.join(&self.0[1..])
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn check_name(name: &str) -> std::result::Result<(), &'static str> {
    if name == "." || name == ".." {
        return Err("must not contain . or ..");
    }
    if name.len() > MAX_NAME {
        return Err("a name is too long");
    }
    if name.bytes().any(|b| b == 0 || b == b'\n') {
        return Err("contains a NUL or a newline");
    }
    // A directory of such a name would look like a control file of its parent.
    if name.starts_with("cgroup.") || name == "tasks" {
        return Err("a name is reserved for a control file");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kubelet_and_crictl_parents_are_accepted_as_given() {
        for (given, kept) in [
            ("/kubepods/burstable/pod1-2", "/kubepods/burstable/pod1-2"),
            ("kubepods//pod1/", "/kubepods/pod1"),
            ("/x.slice/y", "/x.slice/y"),
        ] {
            assert_eq!(CgroupPath::parse(given).unwrap().as_str(), kept);
        }
    }

    #[test]
    fn nothing_that_could_leave_the_tree_is_a_path() {
        for bad in [
            "",
            "/",
            "/a/../b",
            "..",
            "/a/./b",
            "/a\nb",
            "/a\0b",
            "/tasks",
            "/cgroup.procs",
        ] {
            assert!(CgroupPath::parse(bad).is_err(), "{bad:?} was accepted");
        }
        let parent = CgroupPath::parse("/a").unwrap();
        assert!(parent.child("b/c").is_err());
        assert!(parent.child("").is_err());
    }

    proptest! {
        #[test]
        fn an_accepted_path_stays_below_its_mount(text in "\\PC{0,40}") {
            if let Ok(path) = CgroupPath::parse(&text) {
                let dir = path.below(Path::new("/m"));
                prop_assert!(dir.starts_with("/m") && dir != Path::new("/m"));
                prop_assert!(dir.components().all(|c| c != std::path::Component::ParentDir));
                prop_assert_eq!(CgroupPath::parse(path.as_str()).unwrap(), path);
            }
        }
    }
}

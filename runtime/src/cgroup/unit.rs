//! Names of systemd's units, and the paths of their cgroups. Pure.
//!
//! ```text
//!  /kubepods.slice/kubepods-pod42.slice / cairn-<id>.scope / container
//!   slices: systemd's or the kubelet's    a scope for us    the container's cgroup in other code
//!                                                       └── hold: a process that keeps the scope
//! ```
//! systemd may write attributes of slices and scopes at any time (`daemon-reload`), but none below
//! a delegated scope. See systemd.resource-control(5) and systemd's `CGROUP_DELEGATION.md`.

use super::error::{Error, Result};
use super::path::CgroupPath;

/// Prefix of our scopes and slices.
const PREFIX: &str = "cairn";
/// Below a scope: the container's own cgroup, and that of the process that keeps the scope.
const CONTAINER: &str = "container";
const HOLD: &str = "hold";
/// The longest unit name of systemd.
const MAX_NAME: usize = 255;

/// The scope around a container's cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    pub name: String,
    pub slice: String,
    /// Of the scope itself.
    pub path: CgroupPath,
    /// Of the process that keeps it.
    pub hold: CgroupPath,
}

/// The leaf of a container or a pause process below the pod's cgroup `parent`.
pub fn leaf(parent: &str, id: &str) -> String {
    if is_slice(parent) {
        format!("{parent}/{PREFIX}-{id}.scope/{CONTAINER}")
    } else {
        format!("{}/{id}", parent.trim_end_matches('/'))
    }
}

/// The scope around the container's cgroup `path`, if the path has the form of [`leaf`].
pub(super) fn scope_of(path: &CgroupPath) -> Option<Scope> {
    let inside = path.as_str().strip_suffix(CONTAINER)?.strip_suffix('/')?;
    let (slice, name) = inside.rsplit_once('/')?;
    let slice = slice.rsplit('/').next()?;
    if !name.ends_with(".scope") || !slice.ends_with(".slice") {
        return None;
    }
    let path = CgroupPath::parse(inside).ok()?;
    Some(Scope {
        name: name.to_owned(),
        slice: slice.to_owned(),
        hold: path.child(HOLD).ok()?,
        path,
    })
}

/// Whether the last name is a slice's, which decides between the drivers.
pub(super) fn is_slice(parent: &str) -> bool {
    last(parent).ends_with(".slice")
}

/// The last name of a path.
pub(super) fn last(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or("")
}

/// systemd's path of a slice: `a-b.slice` is `/a.slice/a-b.slice`.
///
/// # Errors
/// The name is not a slice's, or the root slice's, which must not contain pods.
pub(super) fn slice_path(slice: &str) -> Result<CgroupPath> {
    let bad = |why| Error::BadPath {
        path: slice.chars().take(MAX_NAME).collect(),
        why,
    };
    let Some(stem) = slice.strip_suffix(".slice") else {
        return Err(bad("is not a systemd slice"));
    };
    if stem == "-" {
        return Err(bad("is the root slice, which pods must not be put in"));
    }
    if !is_unit_name(slice) || stem.split('-').any(str::is_empty) {
        return Err(bad("is not a valid name of a systemd slice"));
    }
    let mut path = String::new();
    for (end, _) in stem.match_indices('-').chain([(stem.len(), "")]) {
        path.push('/');
        path.push_str(&stem[..end]);
        path.push_str(".slice");
    }
    CgroupPath::parse(&path)
}

/// A pod's slice from CRI's `cgroup_parent`: the name alone, or the kubelet's complete path.
///
/// # Errors
/// As [`slice_path`]; or systemd would use another path for that slice.
pub(super) fn slice_of_parent(parent: &str) -> Result<CgroupPath> {
    let path = slice_path(last(parent))?;
    let names = parent.split('/').filter(|name| !name.is_empty());
    let given = names.collect::<Vec<_>>().join("/");
    if given.contains('/') && given != path.as_str()[1..] {
        return Err(Error::BadPath {
            path: parent.to_owned(),
            why: "is not where systemd puts this slice (a-b.slice is in a.slice)",
        });
    }
    Ok(path)
}

/// The slice of a pod without a parent, in the slice for `[cgroup] parent`: `/a/b` is `a-b.slice`.
///
/// # Errors
/// As [`slice_path`].
pub(super) fn slice_for_pod(default_parent: &str, pod: &str) -> Result<CgroupPath> {
    let names = default_parent.split('/').filter(|name| !name.is_empty());
    let stem = if is_slice(default_parent) {
        last(default_parent).trim_end_matches(".slice").to_owned()
    } else {
        names.collect::<Vec<_>>().join("-")
    };
    slice_path(&format!("{stem}-pod{pod}.slice"))
}

/// An OCI `cgroupsPath`: an absolute path, or systemd's `slice:prefix:name`.
///
/// # Errors
/// `BadPath`.
pub fn from_oci(text: &str) -> Result<CgroupPath> {
    let parts: Vec<&str> = text.split(':').collect();
    let [slice, prefix, name] = parts[..] else {
        return CgroupPath::parse(text);
    };
    let scope = if prefix.is_empty() {
        format!("{name}.scope")
    } else {
        format!("{prefix}-{name}.scope")
    };
    if name.is_empty() || !is_unit_name(&scope) {
        return Err(Error::BadPath {
            path: text.to_owned(),
            why: "is not a systemd scope",
        });
    }
    slice_path(slice)?.child(&scope)?.child(CONTAINER)
}

fn is_unit_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || ":_.-\\".contains(c);
    name.len() <= MAX_NAME && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: Result<CgroupPath>) -> String {
        path.map_or_else(|error| error.to_string(), |path| path.to_string())
    }

    #[test]
    fn a_slice_is_in_the_slices_that_its_name_is_made_of() {
        assert_eq!(text(slice_path("a.slice")), "/a.slice");
        assert_eq!(
            text(slice_path("kubepods-burstable-pod1_2.slice")),
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"
        );
        assert!(text(slice_path("-.slice")).contains("root slice"));
        for bad in [
            "a",
            "",
            ".slice",
            "a-.slice",
            "-a.slice",
            "a--b.slice",
            "a b.slice",
            "ä.slice",
        ] {
            assert!(slice_path(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_kubelets_parent_is_taken_by_name_or_by_the_complete_path_and_no_other() {
        let there = "/kubepods.slice/kubepods-pod1.slice";
        for parent in [
            there,
            "kubepods-pod1.slice",
            "/kubepods-pod1.slice/",
            "kubepods.slice//kubepods-pod1.slice",
        ] {
            assert_eq!(text(slice_of_parent(parent)), there, "{parent}");
        }
        assert!(text(slice_of_parent("/x/kubepods-pod1.slice")).contains("not where systemd"));
        assert!(text(slice_of_parent("/kubepods/pod1")).contains("not a systemd slice"));
        assert!(slice_of_parent("/../a.slice").is_err());
    }

    #[test]
    fn a_pod_without_a_parent_has_a_slice_of_its_own() {
        let there = "/cairn.slice/cairn-podab.slice";
        assert_eq!(text(slice_for_pod("/cairn", "ab")), there);
        assert_eq!(text(slice_for_pod("/cairn.slice", "ab")), there);
        assert_eq!(
            text(slice_for_pod("/a/b", "p")),
            "/a.slice/a-b.slice/a-b-podp.slice"
        );
    }

    #[test]
    fn a_containers_cgroup_is_below_its_scope() {
        let path = CgroupPath::parse(&leaf("/a.slice/a-b.slice", "c1")).expect("a path");
        assert_eq!(path.as_str(), "/a.slice/a-b.slice/cairn-c1.scope/container");
        let scope = scope_of(&path).expect("a scope");
        assert_eq!(
            (scope.name.as_str(), scope.slice.as_str()),
            ("cairn-c1.scope", "a-b.slice")
        );
        assert_eq!(scope.path.as_str(), "/a.slice/a-b.slice/cairn-c1.scope");
        assert_eq!(
            scope.hold.as_str(),
            "/a.slice/a-b.slice/cairn-c1.scope/hold"
        );
        assert_eq!(text(from_oci("a-b.slice:cairn:c1")), path.as_str());
        for plain in [
            "/a/container",
            "/a.slice/b/container",
            "/a.slice/b.scope",
            "/b.scope/container",
        ] {
            let path = CgroupPath::parse(plain).expect("a path");
            assert_eq!(scope_of(&path), None, "{plain}");
        }
    }

    #[test]
    fn cgroupfs_puts_the_leaf_right_below_the_parent() {
        assert_eq!(leaf("/kubepods/pod1", "c1"), "/kubepods/pod1/c1");
        assert_eq!(text(from_oci("/a/b")), "/a/b");
        for bad in ["a.slice:x:", "a.slice:x:/y", "a.slice::..", "x:y:z"] {
            let path = from_oci(bad);
            assert!(
                path.is_err() || scope_of(&path.expect("checked")).is_some(),
                "{bad}"
            );
        }
        assert!(from_oci("x:y:z").is_err() && from_oci("a.slice:x:a/b").is_err());
    }
}

//! Constructors for OCI values, and lexical path functions.

use std::path::{Path, PathBuf};

use oci_spec::runtime::{
    Linux, LinuxIdMapping, LinuxIdMappingBuilder, LinuxNamespace, LinuxNamespaceType, Mount,
    Process, Root, Spec,
};

use super::facts::IdMap;
use ::nri::owners::removal;

/// The version of the OCI runtime spec in every spec that we write.
pub const OCI_VERSION: &str = "1.2.0";

/// A mount with options; an empty source is omitted.
pub fn mount(destination: &str, kind: &str, source: impl AsRef<Path>, options: &[&str]) -> Mount {
    let mut mount = Mount::default();
    mount.set_destination(PathBuf::from(destination));
    mount.set_typ(Some(kind.to_owned()));
    mount.set_source(Some(source.as_ref().to_owned()).filter(|s| !s.as_os_str().is_empty()));
    mount.set_options(Some(options.iter().map(|o| (*o).to_owned()).collect()));
    mount
}

/// A kernel file system, with its type as the source.
pub fn kernel_mount(destination: &str, kind: &str, options: &[&str]) -> Mount {
    mount(destination, kind, kind, options)
}

/// A new namespace (`None`) or one to join.
pub fn namespace(kind: LinuxNamespaceType, path: Option<&Path>) -> LinuxNamespace {
    let mut namespace = LinuxNamespace::default();
    namespace.set_typ(kind);
    namespace.set_path(path.map(Path::to_owned));
    namespace
}

/// The root, at the path where the caller mounted it.
pub fn root(path: &Path, readonly: bool) -> Root {
    let mut root = Root::default();
    root.set_path(path.to_owned());
    root.set_readonly(Some(readonly));
    root
}

/// One mapping as the list that OCI expects.
pub fn id_mappings(map: IdMap) -> Vec<LinuxIdMapping> {
    let mapping = LinuxIdMappingBuilder::default()
        .host_id(map.host_id)
        .container_id(map.container_id)
        .size(map.length)
        .build()
        .expect("every field has a default");
    vec![mapping]
}

/// The linux section of a spec, created empty if absent.
pub fn linux_of(spec: &mut Spec) -> &mut Linux {
    spec.linux_mut().get_or_insert_with(empty_linux)
}

/// The process of a spec, created empty if absent.
pub fn process_of(spec: &mut Spec) -> &mut Process {
    spec.process_mut().get_or_insert_with(empty_process)
}

/// Whether ids are mapped, that is, whether the container is in a user namespace.
pub fn is_mapped(linux: &Linux) -> bool {
    let maps = linux.uid_mappings().as_ref();
    maps.is_some_and(|maps| !maps.is_empty())
}

/// A section with nothing set; the crate's own default has masked paths and namespaces.
pub fn empty_linux() -> Linux {
    let mut linux = Linux::default();
    linux.set_resources(None);
    linux.set_namespaces(None);
    linux.set_masked_paths(None);
    linux.set_readonly_paths(None);
    linux
}

/// A process with only the working directory set; the crate's own default runs a shell with limits
/// and capabilities.
pub fn empty_process() -> Process {
    let mut process = Process::default();
    process.set_terminal(None);
    process.set_args(None);
    process.set_env(None);
    process.set_no_new_privileges(None);
    process.set_capabilities(None);
    process.set_rlimits(None);
    process
}

/// The key of an adjustment's entry, and whether the entry removes it.
pub fn marked(key: &str) -> (&str, bool) {
    removal(key).map_or((key, false), |name| (name, true))
}

/// The path without doubled slashes, `.` and `..`, by its text alone. `..` at the root is dropped.
pub fn clean_path(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Number of components of a cleaned path; 0 for `/`.
pub fn depth(path: &str) -> usize {
    path.split('/').filter(|p| !p.is_empty()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_by_their_text() {
        for (given, clean) in [
            ("/", "/"),
            ("/a//b/", "/a/b"),
            ("/a/./b/../c", "/a/c"),
            ("/../..", "/"),
            ("a/b", "/a/b"),
        ] {
            assert_eq!(clean_path(given), clean);
        }
        assert_eq!((depth("/"), depth("/a"), depth("/a/b/")), (0, 1, 2));
    }
}

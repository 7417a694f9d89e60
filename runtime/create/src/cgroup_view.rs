//! The cgroups that a container sees at a cgroup mount: its own, laid out as on a host.

use std::path::PathBuf;

use cairn_monitor::record::CgroupDir;

use crate::mount_option::attributes;

/// The container's view of its cgroups, one tree: a dozen binds would cost more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CgroupView {
    /// MOUNT_ATTR_* bits.
    pub(crate) attributes: u64,
    pub(crate) hierarchies: Hierarchies,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hierarchies {
    V2(PathBuf),
    V1 {
        directories: Vec<(String, PathBuf)>,
        /// For hierarchies of several controllers: link, directory.
        links: Vec<(String, String)>,
    },
}

pub(crate) fn cgroup_view(options: &[String], cgroups: &[CgroupDir]) -> Option<CgroupView> {
    let only_v2 = cgroups.iter().all(CgroupDir::unified);
    let hierarchies = if only_v2 {
        Hierarchies::V2(PathBuf::from(&cgroups.first()?.path))
    } else {
        // As runc does: on a hybrid host programs find v1 alone.
        let directories = cgroups
            .iter()
            .filter(|c| !c.unified())
            .map(|c| (directory_name(c), PathBuf::from(&c.path)));
        let directories: Vec<(String, PathBuf)> = directories.collect();
        let several = directories.iter().filter(|(name, _)| name.contains(','));
        let links = several.flat_map(|(name, _)| {
            name.split(',')
                .map(move |part| (part.to_owned(), name.clone()))
        });
        Hierarchies::V1 {
            links: links.collect(),
            directories,
        }
    };
    Some(CgroupView {
        attributes: attributes(options),
        hierarchies,
    })
}

/// The name below /sys/fs/cgroup in the container.
fn directory_name(dir: &CgroupDir) -> String {
    dir.controller
        .strip_prefix("name=")
        .unwrap_or(&dir.controller)
        .to_owned()
}

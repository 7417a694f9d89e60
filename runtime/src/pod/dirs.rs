//! Paths of pods and containers below `root` and `state`, and the removal of their directories.

use std::path::{Path, PathBuf};

use super::{
    error::{AtStep as _, Result},
    files::Files,
};
use crate::{blocking::blocking, image::Images, remove::remove_tree_at};

/// The two directories of the configuration. This daemon owns them.
#[derive(Debug, Clone)]
pub struct Dirs {
    /// Kept over a reboot.
    pub root: PathBuf,
    /// Lost at a reboot.
    pub state: PathBuf,
}

impl Dirs {
    /// The file with the boot in which a daemon last recovered.
    pub fn boot_id(&self) -> PathBuf {
        self.root.join("boot-id")
    }

    /// The file with the plugins that earlier configurations required.
    pub fn required_plugins(&self) -> PathBuf {
        self.root.join("required-plugins")
    }

    /// A container's monitor: bundle, sockets, exit file.
    pub fn container(&self, id: &str) -> PathBuf {
        self.containers().join(id)
    }

    pub fn containers(&self) -> PathBuf {
        self.state.join("containers")
    }

    /// Mount point of a container's root on the host, during its start.
    pub fn rootfs(&self, container: &str) -> PathBuf {
        self.container(container).join("rootfs")
    }

    /// Volumes that the image declares as VOLUME: on disk, removed with the container.
    pub fn volumes(&self, container: &str) -> PathBuf {
        self.all_volumes().join(container)
    }

    /// Containers' root file systems, owned by [`Images`](crate::image::Images).
    pub fn roots(&self) -> PathBuf {
        self.root.join("roots")
    }

    pub fn all_volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    /// The monitor of a pod's pause process.
    pub fn pause(&self, pod: &str) -> PathBuf {
        self.pauses().join(pod)
    }

    pub fn pauses(&self) -> PathBuf {
        self.state.join("pause")
    }

    /// A pod's pinned namespaces.
    pub fn namespaces(&self, pod: &str) -> PathBuf {
        self.all_namespaces().join(pod)
    }

    pub fn all_namespaces(&self) -> PathBuf {
        self.state.join("ns")
    }

    /// Pods' network namespaces by their ids, beside `state`: /run/netns by default, where network
    /// programs of the node and plugins in containers look for them.
    pub fn netns(&self) -> PathBuf {
        self.state.with_file_name("netns")
    }

    pub fn files(&self, pod: &str) -> Files {
        Files::below(self.all_files().join(pod))
    }

    /// Mounted images of a pod's containers.
    pub fn image_volumes(&self, pod: &str) -> PathBuf {
        self.state.join("image-volumes").join(pod)
    }

    pub fn all_files(&self) -> PathBuf {
        self.state.join("pods")
    }
}

/// Removes a directory of a pod or container below `root` or `state`. Idempotent.
///
/// # Errors
/// The first path that could not be removed.
pub async fn remove_dir(dir: &Path) -> Result<()> {
    let at = dir.to_owned();
    let removed = blocking(move || remove_tree_at(&at)).await;
    removed.step(&format!("remove {}", dir.display()))
}

/// As [`remove_dir`], for a tree that a container wrote. It is moved away first, because its
/// removal may take long; if the move fails, it is removed in place.
///
/// # Errors
/// The first path that could not be removed.
pub async fn remove_large_dir(images: &Images, dir: &Path) -> Result<()> {
    images.discard(dir).await;
    remove_dir(dir).await
}

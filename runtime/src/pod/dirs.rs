//! Where everything of a pod and of a container lies below `root` and `state`, and how its directories go.

use std::path::{Path, PathBuf};

use super::{
    error::{AtStep as _, Result},
    files::Files,
};
use crate::{blocking::blocking, image::Images, remove::remove_tree_at};

/// The two directories of the configuration, which this daemon has for itself.
#[derive(Debug, Clone)]
pub struct Dirs {
    /// Kept over a reboot.
    pub root: PathBuf,
    /// Lost at a reboot.
    pub state: PathBuf,
}

impl Dirs {
    /// Which boot of the machine a daemon has last recovered in.
    pub fn boot_id(&self) -> PathBuf {
        self.root.join("boot-id")
    }

    /// Which plugins the configurations of the daemons so far have required.
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

    /// Where a container's root is mounted on the host for the moment of its start.
    pub fn rootfs(&self, container: &str) -> PathBuf {
        self.container(container).join("rootfs")
    }

    /// What the image declares as VOLUME; on disk, and gone with the container.
    pub fn volumes(&self, container: &str) -> PathBuf {
        self.all_volumes().join(container)
    }

    /// Containers' root file systems, which [`Images`](crate::image::Images) keeps.
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

    pub fn files(&self, pod: &str) -> Files {
        Files::below(self.all_files().join(pod))
    }

    /// Views of images that containers of a pod have mounted.
    pub fn image_volumes(&self, pod: &str) -> PathBuf {
        self.state.join("image-volumes").join(pod)
    }

    pub fn all_files(&self) -> PathBuf {
        self.state.join("pods")
    }
}

/// Idempotent; for every directory below `root` and `state` that is a pod's or a container's.
///
/// # Errors
/// What is left.
pub async fn remove_dir(dir: &Path) -> Result<()> {
    let at = dir.to_owned();
    let removed = blocking(move || remove_tree_at(&at)).await;
    removed.step(&format!("remove {}", dir.display()))
}

/// As [`remove_dir`], for a tree that a container has shaped: moved out of sight, since a large one takes its time and nobody
/// need wait for it; in place where it cannot be moved.
///
/// # Errors
/// What is left.
pub async fn remove_large_dir(images: &Images, dir: &Path) -> Result<()> {
    images.discard(dir).await;
    remove_dir(dir).await
}

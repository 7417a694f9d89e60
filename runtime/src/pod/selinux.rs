//! SELinux labels in the steps of pods and containers: chosen for a new pod, applied to host trees.

use std::{fs, iter};

use proto_cri::v1 as cri;

use super::{
    dirs::Dirs,
    error::{AtStep as _, Result},
    registry::Registry,
};
use crate::{
    blocking::blocking,
    host::{
        facts::View,
        relabel::{relabel, relabel_volume},
    },
    oci::{self, ContainerSpec, HostFacts, SelinuxLabels},
    walk::Waiting,
};

/// Chooses labels with a level that no recorded pod has, by [`oci::selinux::pod`].
///
/// # Errors
/// For options that are invalid or unsupported on this host.
pub(super) fn of_new_pod(
    config: &cri::PodSandboxConfig,
    id: &str,
    registry: &Registry,
    host: &HostFacts,
) -> Result<Option<SelinuxLabels>> {
    if host.selinux.is_none() {
        return Ok(None);
    }
    let linux = config.linux.as_ref();
    let context = linux.and_then(|linux| linux.security_context.as_ref());
    let options = context.and_then(|context| context.selinux_options.as_ref());
    let pods = registry.all();
    let taken = pods.iter().filter_map(|pod| {
        let record = pod.cell.get();
        let labels = record.selinux.as_ref()?;
        oci::selinux::level_of(&labels.file).map(str::to_owned)
    });
    Ok(oci::selinux::pod(
        options,
        id,
        &taken.collect(),
        host,
        &View,
    )?)
}

/// Labels host trees that the container may read: those of CRI (CRI-244) and the image's VOLUMEs.
///
/// # Errors
/// Names the tree. In permissive mode it is only logged.
#[expect(clippy::disallowed_methods, reason = "in blocking()")]
pub(super) async fn relabel_trees(
    dirs: &Dirs,
    id: &str,
    built: &ContainerSpec,
    host: &HostFacts,
) -> Result<()> {
    let linux = built.spec.linux().as_ref();
    let Some(label) = linux.and_then(|linux| linux.mount_label().clone()) else {
        return Ok(());
    };
    let enforcing = host.selinux.as_ref().is_some_and(|s| s.enforcing);
    let (volumes, dirs, trees) = (dirs.volumes(id), dirs.clone(), built.relabel.clone());
    let waiting = Waiting::default();
    let is_over = waiting.is_over();
    blocking(move || {
        let own = if volumes.exists() {
            fs::canonicalize(&volumes).and_then(|dir| relabel(&dir, &label, &is_over))
        } else {
            Ok(())
        };
        let own = own.step("relabel the image's volumes");
        let others = trees.iter().map(|tree| {
            let relabelled = relabel_volume(tree, &label, [&dirs.root, &dirs.state], &is_over);
            relabelled.step(&format!("relabel {}", tree.display()))
        });
        for result in iter::once(own).chain(others) {
            match result {
                Err(error) if !enforcing => tracing::warn!("SELinux: {error}"),
                other => other?,
            }
        }
        Ok(())
    })
    .await
}

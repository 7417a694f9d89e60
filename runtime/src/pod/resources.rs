//! Changes of a container's resources: cgroup, spec and record.

use std::{sync::Arc, time::Duration};

use proto_cri::v1 as cri;
use proto_nri::LinuxResources;
use tokio::time::timeout;

use super::{
    error::{AtStep as _, Error, Kind, Result},
    node::Node,
    record::ContainerPhase,
    spec::Specs,
    state::Container,
};
use crate::{
    fault,
    host::facts::View,
    oci::{self, ApplyContext},
};

/// Time limit of a change for its caller, who may own the NRI turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// Changes resources by a CRI request, by plugins, or by plugins' values over a request's. The
/// caller waits at most [`PATIENCE`]; a slow change (a memory limit below the usage) continues.
///
/// `ended` is called after the change has been made or has failed, with the previous values if they
/// are known, even if no caller waits any more.
///
/// Served in any state of the pod's work; calls no plugin and waits for no pod (ARCHITECTURE.md,
/// "Who waits for whom" 2): concurrent changes take turns on the container itself. Absent values
/// keep the old ones.
///
/// # Errors
/// WrongState once the container has exited or while it is being created, NotFound once it is
/// removed, TimedOut; else the value that could not be applied, with all old values restored.
pub async fn write(
    node: &Arc<Node>,
    container: &Arc<Container>,
    cri: Option<&cri::LinuxContainerResources>,
    nri: Option<&LinuxResources>,
    ended: impl FnOnce(Option<&LinuxResources>, &Result<()>) + Send + 'static,
) -> Result<()> {
    let (node, container) = (Arc::clone(node), Arc::clone(container));
    let (cri, nri) = (cri.cloned(), nri.cloned());
    let written = async move {
        let (cri, nri) = (cri.as_ref(), nri.as_ref());
        // Kept until `ended`, so that changes are recorded in the order in which they are made.
        let _turn = container.resources_turn.lock().await;
        let mut before = None;
        let written = write_in_turn(&node, &container, cri, nri, &mut before).await;
        ended(before.as_ref(), &written);
        written
    };
    match timeout(PATIENCE, tokio::spawn(written)).await {
        Ok(written) => written.step("write resources")?,
        Err(_) => {
            let text = format!(
                "the kernel has not applied it within {} s, and goes on",
                PATIENCE.as_secs()
            );
            Err(Error::new(Kind::TimedOut, text))
        }
    }
}

/// Whether the change also concerns the cgroup.
///
/// # Errors
/// WrongState: the container takes no update.
pub fn takes_update(phase: ContainerPhase) -> Result<bool> {
    match phase {
        ContainerPhase::Running => Ok(true),
        ContainerPhase::Created => Ok(false),
        phase => Err(Error::new(
            Kind::WrongState,
            format!("a container that is {phase:?} takes no update").to_lowercase(),
        )),
    }
}

async fn write_in_turn(
    node: &Node,
    container: &Container,
    cri: Option<&cri::LinuxContainerResources>,
    nri: Option<&LinuxResources>,
    before: &mut Option<LinuxResources>,
) -> Result<()> {
    let record = container.cell.get();
    let running = takes_update(record.phase)?;
    let mut specs = node.specs.read(&container.id).await?;
    fault::pass("container.update.read").await?;
    *before = oci::limits::current(&specs.spec).map(oci::resources_to_nri);
    change(node, &mut specs, cri, nri)?;
    if running {
        fault::pass("container.update.cgroup").await?;
        let group = node.cgroup(&record.cgroup)?;
        let mut resources = oci::limits::current(&specs.spec)
            .cloned()
            .unwrap_or_default();
        // Start sets the device rules; they are not resources of an update.
        resources.set_devices(None);
        group.change(resources).await.step("cgroup")?;
    }
    // Skipped if a removal, which waits for no update, came first.
    container
        .cell
        .change_after(node.specs.write(&container.id, &specs), |record| {
            record.resources = oci::resources_to_cri(&specs.spec);
        })
        .await?;
    Ok(())
}

/// The values of CRI are in the base, too, if there is one; the first change by a plugin makes one.
fn change(
    node: &Node,
    specs: &mut Specs,
    cri: Option<&cri::LinuxContainerResources>,
    nri: Option<&LinuxResources>,
) -> Result<()> {
    let context = ApplyContext {
        host: &node.host,
        policy: &node.policies.default,
        view: &View,
    };
    let Specs { base, spec, .. } = specs;
    if let Some(resources) = cri {
        for spec in base.iter_mut().chain([&mut *spec]) {
            oci::apply_update(spec, resources, &context)?;
        }
    }
    if let Some(resources) = nri {
        base.get_or_insert_with(|| spec.clone());
        oci::apply_nri_update(spec, resources, &context)?;
    }
    Ok(())
}

//! Changes of a container's resources: cgroup, spec and record.

use std::{sync::Arc, time::Duration};

use oci_spec::runtime::Spec;
use proto_cri::v1 as cri;
use tokio::time::timeout;

use super::{
    error::{AtStep as _, Error, Kind, Result},
    node::Node,
    record::ContainerPhase,
    state::Container,
};
use crate::{
    fault,
    host::facts::View,
    oci::{self, ApplyContext, Places},
};

/// Time limit of a change for its caller, who may own the NRI turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// Changes resources by a CRI request, by plugins, or by plugins' values over a request's. The
/// caller waits at most [`PATIENCE`]; a slow change (a memory limit below the usage) goes on.
///
/// Runs in any state of the pod; calls no plugin and waits for no pod (ARCHITECTURE.md, "Who waits
/// for whom" 2). Concurrent changes of one container take turns. Absent values stay unchanged.
///
/// # Errors
/// WrongState once the container has exited or while it is being created, NotFound once it is
/// removed, TimedOut; else the value that could not be applied, with all old values restored.
pub async fn write(
    node: &Arc<Node>,
    container: &Arc<Container>,
    cri: Option<&cri::LinuxContainerResources>,
    nri: Option<&proto_nri::LinuxResources>,
) -> Result<()> {
    let (node, container) = (Arc::clone(node), Arc::clone(container));
    let (cri, nri) = (cri.cloned(), nri.cloned());
    let written = async move {
        let (cri, nri) = (cri.as_ref(), nri.as_ref());
        write_in_turn(&node, &container, cri, nri).await
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

async fn write_in_turn(
    node: &Node,
    container: &Container,
    cri: Option<&cri::LinuxContainerResources>,
    nri: Option<&proto_nri::LinuxResources>,
) -> Result<()> {
    let _turn = container.resources_turn.lock().await;
    let record = container.cell.get();
    let running = match record.phase {
        ContainerPhase::Running => true,
        ContainerPhase::Created => false,
        phase => {
            return Err(Error::new(
                Kind::WrongState,
                format!("a container that is {phase:?} takes no update").to_lowercase(),
            ));
        }
    };
    let mut specs = node.specs.read(&container.id).await?;
    change(node, &mut specs.spec, cri, nri)?;
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

fn change(
    node: &Node,
    spec: &mut Spec,
    cri: Option<&cri::LinuxContainerResources>,
    nri: Option<&proto_nri::LinuxResources>,
) -> Result<()> {
    let context = ApplyContext {
        host: &node.host,
        policy: &node.policies.default,
        view: &View,
        places: &Places::new(),
    };
    if let Some(resources) = cri {
        oci::apply_update(spec, resources, &context)?;
    }
    if let Some(resources) = nri {
        oci::apply_nri_update(spec, resources, &context)?;
    }
    Ok(())
}

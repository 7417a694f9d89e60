//! UpdateContainerResources (CRI-137), and the same for updates that plugins ask for.
//!
//! [`apply`] is served in any state of the pod's work, calls no plugin and waits for no pod
//! (design.md, "Who waits for whom" 2): two at a time take turns on the container itself.

use std::sync::Arc;

use proto_cri::v1 as cri;

use super::{
    super::{
        Container, Pod,
        error::{Error, Kind, Result, Step as _},
        record::ContainerPhase,
        spec::Specs,
    },
    cgroup,
};
use crate::{fault, oci, pod::journal::Step, services::Services};

/// What is to change: the values of a CRI request, those of plugins, or plugins' laid over a
/// request's.
#[derive(Default)]
pub struct Change {
    pub cri: Option<cri::LinuxContainerResources>,
    pub nri: Option<proto_nri::LinuxResources>,
}

/// # Errors
/// A plugin's refusal, or the first value that could not be applied; the old values hold then.
pub async fn update(
    pod: &Arc<Pod>,
    container: &Arc<Container>,
    request: cri::UpdateContainerResourcesRequest,
) -> Result<()> {
    let what = format!("container {}: update resources", container.id);
    if request.windows.is_some() {
        return Err(Error::invalid(format!(
            "{what}: windows: this is a Linux runtime"
        )));
    }
    let wanted = request
        .linux
        .ok_or_else(|| Error::invalid(format!("{what}: linux is missing")))?;
    fault::pass("container.update.hook").await.step(&what)?;
    let services = &pod.services;
    let mut updated = services
        .hooks
        .update_container(pod, container, &wanted)
        .await
        .map_err(|error| error.at(&what))?;
    let change = Change {
        cri: Some(wanted),
        nri: updated.target.take(),
    };
    let applied = apply(services, container, &change).await;
    // The turn ends when the update is applied.
    drop(updated);
    applied.map_err(|error| error.at(&what))?;
    services.journal.step(pod, Some(container), Step::Updated);
    services.hooks.post_update_container(pod, container).await;
    Ok(())
}

/// Writes cgroup, spec and record. Absent values are left as they are.
///
/// # Errors
/// WrongState once the container has exited or while it is being created; else the value that
/// could not be applied, with all old values restored.
pub async fn apply(services: &Services, container: &Container, change: &Change) -> Result<()> {
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
    let mut specs = services.specs.read(&container.id).await?;
    let (host, policy) = (&services.host, &services.policy);
    if let Some(resources) = &change.cri {
        oci::apply_update(&mut specs.spec, resources, host, policy)?;
    }
    if let Some(resources) = &change.nri {
        oci::apply_nri_update(&mut specs.spec, resources, host, policy)?;
    }
    if running {
        fault::pass("container.update.cgroup")
            .await
            .map_err(Error::failed)?;
        let group = cgroup(services, &record.cgroup)?;
        let mut resources = oci::resources::current(&specs.spec)
            .cloned()
            .unwrap_or_default();
        // Device rules are set at start and are not resources of an update.
        resources.set_devices(None);
        crate::store::blocking(move || group.update(&resources))
            .await
            .step("cgroup")?;
    }
    write(services, container, &specs).await
}

async fn write(services: &Services, container: &Container, specs: &Specs) -> Result<()> {
    services.specs.write(&container.id, specs).await?;
    container
        .cell
        .change(|record| record.resources = oci::resources_to_cri(&specs.spec))
        .await?;
    Ok(())
}

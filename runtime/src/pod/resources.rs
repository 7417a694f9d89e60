//! The owner of a container's resources: cgroup, spec and record. Only this file makes a container's
//! cgroup and changes its limits, each time in the container's turn. So a change that has been
//! acknowledged is in the record and the spec, and in the cgroup if there is one.
//!
//! ```text
//!  start ─► set_up ─┐
//!  CRI ───► write ──┼─► turn: read the spec ─► spec, record ─► cgroup, once it is made
//!  plugins ► write ─┘
//! ```

use std::{sync::Arc, time::Duration};

use proto_cri::v1 as cri;
use proto_nri::LinuxResources;
use tokio::time::{Instant, timeout_at};

use super::{
    error::{AtStep as _, Error, Kind, Result},
    node::Node,
    record::{ContainerPhase, ContainerRecord},
    spec::Specs,
    state::Container,
};
use crate::{
    cgroup::Cgroup,
    fault,
    host::facts::View,
    oci::{self, ApplyContext},
};

/// Time limit of the changes of other containers in one answer of plugins, which owns the NRI turn;
/// and of the container's own change.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time limit of changes that are requested now.
pub fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// Makes the cgroup of a container that starts. Later changes reach the cgroup, too. Returns the
/// specs that it is made from.
///
/// # Errors
/// The step that failed. The caller removes the cgroup.
#[expect(
    clippy::await_holding_invalid_type,
    reason = "in a step of a driver, which nobody drops"
)]
pub async fn set_up(node: &Node, container: &Container) -> Result<(Specs, Cgroup)> {
    let mut has_cgroup = container.resources.take().await;
    let specs = node.specs.read(&container.id).await?;
    fault::pass("container.start.cgroup").await?;
    let group = node.cgroup(&container.cell.get().cgroup)?;
    let linux = specs.spec.linux().as_ref();
    let resources = linux.and_then(|linux| linux.resources().clone());
    let made = group.set_up(&container.id, resources).await;
    made.step("cgroup")?;
    has_cgroup.0 = true;
    Ok((specs, group))
}

/// Completes a change of a container that runs, which an earlier daemon began by writing the spec.
#[expect(clippy::await_holding_invalid_type, reason = "in a task of its own")]
pub async fn resume(node: Arc<Node>, container: Arc<Container>) {
    let _turn = container.resources.take().await;
    if let Err(error) = complete(&node, &container).await
        && container.cell.get().phase == ContainerPhase::Running
    {
        tracing::error!(container = %container.id, %error, "a change of its resources is not complete");
    }
}

async fn complete(node: &Node, container: &Container) -> Result<()> {
    let specs = node.specs.read(&container.id).await?;
    let resources = oci::resources_to_cri(&specs.spec);
    if container.cell.get().resources != resources {
        let known = |record: &mut ContainerRecord| record.resources = resources;
        container.cell.change(known).await?;
    }
    apply(node, container, &specs).await
}

/// Changes resources by a CRI request, by plugins, or by plugins' values over a request's. The
/// caller waits until the deadline; a slow change (a memory limit below the usage) continues.
///
/// `ended` is called after the change has been made or has failed, with the previous values if they
/// are known, even if no caller waits any more.
///
/// Served in any state of the pod's work; calls no plugin and waits for no pod (ARCHITECTURE.md,
/// "Who waits for whom" 2). Absent values keep the old ones.
///
/// # Errors
/// WrongState once the container has exited or while it is being created, NotFound once it is
/// removed, TimedOut; else the value that could not be applied, with all old values restored.
#[expect(clippy::await_holding_invalid_type, reason = "in a task of its own")]
pub async fn write(
    node: &Arc<Node>,
    container: &Arc<Container>,
    cri: Option<&cri::LinuxContainerResources>,
    nri: Option<&LinuxResources>,
    until: Instant,
    ended: impl FnOnce(Option<&LinuxResources>, &Result<()>) + Send + 'static,
) -> Result<()> {
    let (node, container) = (Arc::clone(node), Arc::clone(container));
    let (cri, nri) = (cri.cloned(), nri.cloned());
    let written = async move {
        let Ok(has_cgroup) = timeout_at(until, container.resources.take()).await else {
            let late = Err(too_late("an earlier change has not ended"));
            ended(None, &late);
            return late;
        };
        let (cri, nri) = (cri.as_ref(), nri.as_ref());
        let mut before = None;
        let written = change(&node, &container, has_cgroup.0, cri, nri, &mut before).await;
        // In the turn, so that changes are recorded in the order in which they are made.
        ended(before.as_ref(), &written);
        written
    };
    match timeout_at(until, tokio::spawn(written)).await {
        Ok(written) => written.step("write resources")?,
        Err(_) => Err(too_late("the kernel has not applied it, and goes on")),
    }
}

fn too_late(why: &str) -> Error {
    let text = format!("{why}, after {} s", PATIENCE.as_secs());
    Error::new(Kind::TimedOut, text)
}

/// # Errors
/// WrongState: the container takes no update.
pub fn takes_update(phase: ContainerPhase) -> Result<()> {
    match phase {
        ContainerPhase::Running | ContainerPhase::Created => Ok(()),
        phase => Err(Error::new(
            Kind::WrongState,
            format!("a container that is {phase:?} takes no update").to_lowercase(),
        )),
    }
}

async fn change(
    node: &Node,
    container: &Container,
    has_cgroup: bool,
    cri: Option<&cri::LinuxContainerResources>,
    nri: Option<&LinuxResources>,
    before: &mut Option<LinuxResources>,
) -> Result<()> {
    let record = container.cell.get();
    takes_update(record.phase)?;
    let old = node.specs.read(&container.id).await?;
    fault::pass("container.update.read").await?;
    *before = oci::limits::current(&old.spec).map(oci::resources_to_nri);
    let mut specs = old.clone();
    merge(node, &mut specs, cri, nri)?;
    // The disk first: where a crash comes between, recovery writes the cgroup. Skipped if a removal,
    // which waits for no update, came first.
    put(node, container, &specs, oci::resources_to_cri(&specs.spec)).await?;
    // A container that runs has its cgroup also after a restart.
    if !has_cgroup && record.phase != ContainerPhase::Running {
        return Ok(());
    }
    let Err(error) = apply(node, container, &specs).await else {
        return Ok(());
    };
    let restored = put(node, container, &old, record.resources.clone()).await;
    if let Err(error) = restored
        && error.kind != Kind::NotFound
    {
        tracing::error!(container = %container.id, %error, "a change of its spec is not undone");
    }
    Err(error)
}

/// Writes spec and record.
async fn put(
    node: &Node,
    container: &Container,
    specs: &Specs,
    resources: cri::LinuxContainerResources,
) -> Result<()> {
    let beside = node.specs.write(&container.id, specs);
    let put = container
        .cell
        .change_after(beside, |record| record.resources = resources);
    put.await.map(drop)
}

/// Writes the cgroup, or leaves it as it was.
async fn apply(node: &Node, container: &Container, specs: &Specs) -> Result<()> {
    fault::pass("container.update.cgroup").await?;
    let group = node.cgroup(&container.cell.get().cgroup)?;
    let mut resources = oci::limits::current(&specs.spec)
        .cloned()
        .unwrap_or_default();
    // Start sets the device rules; they are not resources of an update.
    resources.set_devices(None);
    group.change(resources).await.step("cgroup")
}

/// The values of CRI are in the base, too, if there is one; the first change by a plugin makes one.
fn merge(
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

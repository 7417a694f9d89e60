//! Removal of pods and containers by id: with their records by the pod's driver, without a usable
//! record (`held.rs`, orphans) here.

use std::sync::Arc;

use super::{
    dirs::remove_large_dir,
    error::{AtStep as _, Error, Kind, Result},
    held::{HeldContainer, HeldPod},
    node::Node,
    op::Op,
    pods::Pods,
    record::ContainerRecord,
    skips::Skips,
};

/// RemovePodSandbox, by id or unique prefix.
///
/// # Errors
/// The step that failed; a second call resumes there.
pub async fn pod(cx: &Arc<Pods>, id: &str) -> Result<()> {
    match cx.registry.held().pod(id).cloned() {
        Some(held) => {
            let cx = Arc::clone(cx);
            detached(async move { held_pod(&cx, &held, &Skips::default()).await }).await
        }
        None => cx.registry.ask(id, Op::RemovePod).await.map(drop),
    }
}

/// RemoveContainer, by id or unique prefix.
///
/// # Errors
/// As [`pod`].
pub async fn container(cx: &Arc<Pods>, id: &str) -> Result<()> {
    match cx.registry.held().container(id).cloned() {
        Some(held) => {
            let cx = Arc::clone(cx);
            detached(async move { held_container(&cx, &held, &Skips::default()).await }).await
        }
        None => cx.registry.ask_container(id, Op::Remove).await.map(drop),
    }
}

/// A client that leaves does not cause half a removal.
async fn detached(work: impl Future<Output = Result<()>> + Send + 'static) -> Result<()> {
    tokio::spawn(work).await.step("remove")?
}

/// `cairn rm`: removes a pod or container, by id or unique prefix. With `force` it skips failing
/// steps. Returns the id and the skipped steps.
///
/// # Errors
/// No object has the id; or the step that failed and must not be skipped.
pub async fn run(cx: &Pods, id: &str, force: bool) -> Result<(String, Vec<String>)> {
    let held = cx.registry.held();
    let skips = Skips::default();
    if force {
        skips.demand();
    }
    if let Some(pod) = held.pod(id) {
        held_pod(cx, pod, &skips).await?;
        return Ok((pod.id.clone(), skips.take()));
    }
    if let Some(container) = held.container(id) {
        held_container(cx, container, &skips).await?;
        return Ok((container.id.clone(), skips.take()));
    }
    match cx.registry.pod(id) {
        Ok(pod) => {
            if force {
                pod.skips.demand();
                for container in held.containers_of(&pod.id) {
                    held_container(cx, &container, &pod.skips).await?;
                }
            }
            Ok((pod.ask(Op::RemovePod).await?, pod.skips.take()))
        }
        Err(error) if error.kind == Kind::NotFound => {
            let (pod, container) = cx.registry.container(id).map_err(|error| {
                let text = format!("{id:?}: no sandbox and no container");
                match error.kind {
                    Kind::NotFound => Error::new(Kind::NotFound, text),
                    _ => error,
                }
            })?;
            if force {
                container.skips.demand();
            }
            let removed = pod.ask_container(&container.id, Op::Remove).await?;
            Ok((removed, container.skips.take()))
        }
        Err(error) => Err(error),
    }
}

/// Removes a container without a pod record.
///
/// # Errors
/// The step that failed; the record stays for the next start.
pub async fn orphan(node: &Node, record: &ContainerRecord) -> Result<()> {
    let skips = Skips::default();
    remnants(node, &record.id, Some(&record.cgroup), &skips).await?;
    node.containers.delete(&record.id)?;
    Ok(())
}

/// Kills a held container and removes it with its record.
///
/// # Errors
/// The step that failed, unless `skips` takes it.
async fn held_container(cx: &Pods, held: &HeldContainer, skips: &Skips) -> Result<()> {
    remnants(&cx.node, &held.id, held.cgroup.as_deref(), skips).await?;
    cx.node.containers.delete(&held.id)?;
    cx.node.containers.sync().await?;
    cx.registry.release(|all| all.containers.remove(&held.id));
    Ok(())
}

/// Kills the containers of a held pod and removes all its resources.
///
/// # Errors
/// The step that failed, unless `skips` takes it.
async fn held_pod(cx: &Pods, held: &HeldPod, skips: &Skips) -> Result<()> {
    let (id, node) = (&held.id, &cx.node);
    let mut cgroup = held.cgroup.clone();
    for container in cx.registry.held().containers_of(id) {
        let own = container.cgroup.clone();
        let own = own.or_else(|| recorded_cgroup(node, &container.id));
        let parent = own.and_then(|path| Some(path.rsplit_once('/')?.0.to_owned()));
        cgroup = cgroup.or_else(|| Some(format!("{}/{id}", parent?)));
        // For a repeated removal, which finds no container.
        cx.registry.release(|all| {
            if let Some(pod) = all.pods.get_mut(id) {
                pod.cgroup.clone_from(&cgroup);
            }
        });
        held_container(cx, &container, skips).await?;
    }
    let pause = node.dirs.pause(id);
    skips.pass("pause", node.end(&pause).await)?;
    let machine = &node.machine;
    if let Err(error) = machine.detach(id).await {
        skips.pass("network", Err(error).step("detach"))?;
        let abandoned = machine.abandon(id).await;
        skips.pass("network", abandoned.step("abandon"))?;
    }
    let volumes = node.images.release_image_volumes(id).await;
    skips.pass("image volumes", volumes.step("release"))?;
    let unpinned = node.unpin(id).await;
    skips.pass("namespaces", unpinned.map_err(|error| error.at("unpin")))?;
    skips.pass("files", node.remove_files(id).await)?;
    let removed = match &cgroup {
        Some(path) => node.kill_cgroup(path).await,
        None => Err(Error::failed("its path is not known")),
    };
    skips.pass("cgroup", removed)?;
    node.pods.delete(id)?;
    node.pods.sync().await?;
    cx.registry.release(|all| all.pods.remove(id));
    Ok(())
}

/// Removes processes, cgroup, root, volumes, spec and directory of a container.
async fn remnants(node: &Node, id: &str, cgroup: Option<&str>, skips: &Skips) -> Result<()> {
    let cgroup = cgroup
        .map(str::to_owned)
        .or_else(|| recorded_cgroup(node, id));
    let dirs = &node.dirs;
    let ended = node.end(&dirs.container(id)).await;
    skips.pass("processes", ended)?;
    if let Some(path) = cgroup {
        skips.pass("cgroup", node.kill_cgroup(&path).await)?;
    }
    let released = node.images.release_rootfs(id).await;
    skips.pass("root file system", released.step("release"))?;
    let removed = remove_large_dir(&node.images, &dirs.volumes(id)).await;
    skips.pass("volumes", removed)?;
    node.specs.remove(id).await
}

fn recorded_cgroup(node: &Node, container: &str) -> Option<String> {
    let dir = node.dirs.container(container);
    node.recorded_cgroup(&dir)
}

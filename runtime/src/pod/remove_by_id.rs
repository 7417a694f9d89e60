//! Removal of pods and containers by id: with their records by the pod's driver, without a usable
//! record (`held.rs`, orphans) here.

use std::sync::Arc;

use super::{
    dirs::remove_large_dir,
    error::{AtStep as _, Error, Kind, Result},
    held::{HeldContainer, HeldPod},
    node::Node,
    op::{Asker, Op},
    pods::Pods,
    record::ContainerRecord,
    skips::Skips,
};

/// RemovePodSandbox. An unreadable record is found by its full id.
///
/// # Errors
/// The step that failed; a second call resumes there.
pub async fn pod(cx: &Arc<Pods>, id: &str) -> Result<()> {
    if !cx.registry.held().pods.contains_key(id) {
        return cx.registry.ask(id, Op::RemovePod).await.map(drop);
    }
    let (cx, id) = (Arc::clone(cx), id.to_owned());
    detached(async move { held_pod(&cx, &id, &Skips::default()).await }).await
}

/// RemoveContainer. An unreadable record is found by its full id.
///
/// # Errors
/// As [`pod`].
pub async fn container(cx: &Arc<Pods>, id: &str) -> Result<()> {
    if !cx.registry.held().containers.contains_key(id) {
        return cx.registry.ask_container(id, Op::Remove).await.map(drop);
    }
    let (cx, id) = (Arc::clone(cx), id.to_owned());
    detached(async move { held_container(&cx, &id, &Skips::default()).await }).await
}

/// Continues if the client leaves.
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
    match cx.registry.pod(id) {
        Ok(pod) => {
            if force {
                pod.skips.demand();
                for container in held.containers_of(&pod.id) {
                    held_container(cx, &container.id, &pod.skips).await?;
                }
            }
            return Ok((
                pod.ask(Asker::Client, Op::RemovePod).await?,
                pod.skips.take(),
            ));
        }
        Err(error) if error.kind == Kind::Invalid => return Err(error),
        Err(_) => {}
    }
    match cx.registry.container(id) {
        Ok((pod, container)) => {
            if force {
                container.skips.demand();
            }
            let removed = pod
                .ask_container(Asker::Client, &container.id, Op::Remove)
                .await?;
            return Ok((removed, container.skips.take()));
        }
        Err(error) if error.kind == Kind::Invalid => return Err(error),
        Err(_) => {}
    }
    let skips = Skips::default();
    if force {
        skips.demand();
    }
    let id = if let Some(pod) = held.pod(id) {
        held_pod(cx, &pod.id, &skips).await?;
        &pod.id
    } else if let Some(container) = held.container(id) {
        held_container(cx, &container.id, &skips).await?;
        &container.id
    } else {
        let text = format!("{id:?}: no sandbox and no container");
        return Err(Error::new(Kind::NotFound, text));
    };
    Ok((id.clone(), skips.take()))
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

/// Kills a held container and removes it with its record. Succeeds if it was removed meanwhile.
///
/// # Errors
/// The step that failed, unless `skips` takes it.
#[expect(clippy::await_holding_invalid_type, reason = "in a task of its own")]
async fn held_container(cx: &Pods, id: &str, skips: &Skips) -> Result<()> {
    let _alone = cx.registry.held_removals().await;
    match cx.registry.held().containers.get(id) {
        Some(held) => remove_container(cx, held, skips).await,
        None => Ok(()),
    }
}

async fn remove_container(cx: &Pods, held: &HeldContainer, skips: &Skips) -> Result<()> {
    // A held pod may know its cgroup only by its containers.
    let pod = held.pod.as_deref().unwrap_or_default();
    let cgroup = pod_cgroup(&cx.node, pod, std::slice::from_ref(held));
    cx.registry.release(|all| {
        if let Some(pod) = all.pods.get_mut(pod) {
            pod.cgroup = pod.cgroup.take().or(cgroup);
        }
    });
    let at = |error: Error| error.at(&format!("container {}: remove", held.id));
    let removed = remnants(&cx.node, &held.id, held.cgroup.as_deref(), skips).await;
    removed.map_err(at)?;
    cx.node.containers.delete(&held.id)?;
    cx.node.containers.sync().await?;
    cx.registry.release(|all| all.containers.remove(&held.id));
    Ok(())
}

/// Kills the containers of a held pod and removes all its resources. Succeeds if it was removed
/// meanwhile.
///
/// # Errors
/// The step that failed, unless `skips` takes it.
#[expect(clippy::await_holding_invalid_type, reason = "in a task of its own")]
async fn held_pod(cx: &Pods, id: &str, skips: &Skips) -> Result<()> {
    let _alone = cx.registry.held_removals().await;
    match cx.registry.held().pods.get(id) {
        Some(held) => {
            let removed = remove_pod(cx, held, skips).await;
            removed.map_err(|error| error.at(&format!("sandbox {id}: remove")))
        }
        None => Ok(()),
    }
}

async fn remove_pod(cx: &Pods, held: &HeldPod, skips: &Skips) -> Result<()> {
    let (id, node) = (&held.id, &cx.node);
    let containers = cx.registry.held().containers_of(id);
    let cgroup = held
        .cgroup
        .clone()
        .or_else(|| pod_cgroup(node, id, &containers));
    // Before anything is removed: a repaired record still finds the pod complete.
    let found = cgroup.clone().map(drop).ok_or_else(|| {
        Error::failed(format!(
            "cgroup: its path is not known: cairn rm --force {id} leaves it"
        ))
    });
    skips.pass("cgroup", found)?;
    for container in &containers {
        remove_container(cx, container, skips).await?;
    }
    if let Some(path) = &cgroup {
        skips.pass("cgroup", node.kill_cgroup(path).await)?;
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
    // Before the directory from which a repeated removal learns the path.
    if let Some(path) = cgroup {
        skips.pass("cgroup", node.kill_cgroup(&path).await)?;
    }
    let ended = node.end(&dirs.container(id)).await;
    skips.pass("processes", ended)?;
    let released = node.images.release_rootfs(id).await;
    skips.pass("root file system", released.step("release"))?;
    let removed = remove_large_dir(&node.images, &dirs.volumes(id)).await;
    skips.pass("volumes", removed)?;
    node.specs.remove(id).await
}

/// The pod's cgroup, by those of its pause process or containers.
fn pod_cgroup(node: &Node, id: &str, containers: &[HeldContainer]) -> Option<String> {
    let of_container = |container: &HeldContainer| {
        let own = container.cgroup.clone();
        let own = own.or_else(|| recorded_cgroup(node, &container.id))?;
        let (parent, _) = own.rsplit_once('/')?;
        Some(format!("{parent}/{id}"))
    };
    let of_pause = || node.recorded_cgroup(&node.dirs.pause(id));
    containers.iter().find_map(of_container).or_else(of_pause)
}

fn recorded_cgroup(node: &Node, container: &str) -> Option<String> {
    let dir = node.dirs.container(container);
    node.recorded_cgroup(&dir)
}

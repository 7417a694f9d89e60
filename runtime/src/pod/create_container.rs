//! CreateContainer (CRI-124 to CRI-130): image, root, spec, plugins, record. StartContainer starts
//! the process.

use std::{path::PathBuf, sync::Arc};

use proto_cri::v1 as cri;

use super::{
    adjusted_cgroup, container_exit,
    dirs::remove_large_dir,
    error::{AtStep as _, Error, Kind, Result},
    image_volumes::{self, ImageMounts},
    message,
    node::Node,
    op::{Asker, CreateContainerRequest, Op},
    plugin_answer::Adjusted,
    pods::Pods,
    record::{ContainerImage, ContainerPhase, ContainerRecord, ContainerUser, Mark},
    registry::{Registry, new_id},
    resources, selinux, side_effects,
    spec::Specs,
    state::{Container, LOOKUP, Pod},
};
use crate::{
    cgroup, clock, fault,
    host::lookup::Session,
    image::{ImageRecord, Rootfs},
    oci::{self, ApplyContext, ContainerSpec, ImageFacts, Inputs, SeccompKind},
    spans,
    store::Cell,
    trace::Action,
};

/// The name of a step, for messages.
const APPLY: &str = "apply the plugins' adjustment";
/// Limit for a localhost profile (a moby-size profile has 15 kB).
const PROFILE_MAX: u64 = 4 << 20;

/// Queues the checked request in its pod.
///
/// # Errors
/// Invalid, naming the field, or the error of the step.
pub async fn create_container(
    pods: &Registry,
    request: cri::CreateContainerRequest,
) -> Result<String> {
    let pod = pods.pod(&request.pod_sandbox_id)?;
    let config = request
        .config
        .ok_or_else(|| Error::invalid("CreateContainer: config is missing"))?;
    let wanted = CreateContainerRequest::check(config, request.sandbox_config, new_id()?)?;
    pod.ask(Asker::Client, Op::Create(Arc::new(wanted))).await
}

/// A container at the start of its creation. [`run`] writes its record.
pub fn begin(node: &Node, pod: &Pod, request: &CreateContainerRequest) -> Container {
    let record = ContainerRecord {
        id: request.id.clone(),
        pod: pod.id.clone(),
        config: request.config.clone(),
        created_at: clock::now_ns(),
        stop_signal_number: libc::SIGTERM,
        cgroup: cgroup::leaf(&pod.cell.get().cgroup_parent, &request.id),
        ..ContainerRecord::default()
    };
    Container::new(Cell::of(node.containers.clone(), record))
}

/// # Errors
/// The step that failed. Nothing of the container is left, and the plugins that were asked about it
/// are notified of its removal.
pub async fn run(
    cx: &Pods,
    pod: &Pod,
    container: &Arc<Container>,
    request: &CreateContainerRequest,
) -> Result<()> {
    match create(cx, pod, container, request).await {
        Ok(()) => {
            let hooks = &cx.notices.hooks;
            hooks.post_create_container(pod, container).await;
            Ok(())
        }
        Err(error) => {
            undo(cx, pod, container).await;
            let name = request.name_key();
            Err(error.at(&format!("sandbox {}: create container {name:?}", pod.id)))
        }
    }
}

async fn create(
    cx: &Pods,
    pod: &Pod,
    container: &Arc<Container>,
    request: &CreateContainerRequest,
) -> Result<()> {
    let node = &cx.node;
    let policies = &node.policies;
    let handler = &pod.cell.get().runtime_handler;
    if policies.get(handler).is_none() {
        return Err(Error::new(Kind::WrongState, policies.refusal(handler)));
    }
    fault::pass("container.create.rootfs").await?;
    let image = find_image(node, &request.config)?;
    let root = pod.cell.get().user_namespace_root();
    let rootfs = node
        .images
        .prepare_rootfs(&container.id, &image, root.map(|id| (id, id)));
    let rootfs = spans::step("prepare the root", rootfs).await;
    let rootfs = rootfs.step("root file system")?;
    fault::pass("container.create.spec").await?;
    let mounted = image_volumes::mount(&node.images, &node.dirs, pod, &request.config).await?;
    let built = build(node, pod, container, request, &image, &rootfs, &mounted);
    let built = spans::step("build the spec", built);
    // This may fill VOLUMEs, for minutes.
    let built = Box::pin(container.unless_it_ends(2 * LOOKUP, built)).await?;
    for warning in &built.warnings {
        tracing::warn!(container = %container.id, %warning, "spec");
    }
    let relabelled = selinux::relabel_trees(&node.dirs, &container.id, &built, &node.host);
    container.unless_it_ends(LOOKUP, relabelled).await?;
    fault::pass("container.create.hook").await?;
    complete(cx, container, &image, &built, &mounted).await?;
    let specs = Specs::new(built.spec);
    // On the heap, as the step itself: both are large without optimization.
    let specs = Box::pin(adjust(cx, pod, container, specs)).await?;
    fault::pass("container.create.record").await?;
    node.specs.write(&container.id, &specs).await?;
    container
        .cell
        .change(|record| {
            record.hooks.create = Mark::Done;
            record.phase = ContainerPhase::Created;
            record.resources = oci::resources_to_cri(&specs.spec);
        })
        .await?;
    node.containers.sync().await?;
    cx.notices
        .became(pod, Some(container), Action::ContainerMade);
    Ok(())
}

fn find_image(node: &Node, config: &cri::ContainerConfig) -> Result<Arc<ImageRecord>> {
    let wanted = config
        .image
        .as_ref()
        .map_or("", |image| image.image.as_str());
    node.images
        .resolve(wanted)
        .map_err(|error| Error::invalid(error.to_string()))?
        .ok_or_else(|| Error::new(Kind::NotFound, format!("image {wanted:?}: not present")))
}

/// The spec as CRI asks for it.
async fn build(
    node: &Arc<Node>,
    pod: &Pod,
    container: &Arc<Container>,
    request: &CreateContainerRequest,
    image: &Arc<ImageRecord>,
    rootfs: &Rootfs,
    mounted: &ImageMounts,
) -> Result<ContainerSpec> {
    let facts = image_facts(image, &request.config);
    let mut sandbox = message::sandbox(node, pod);
    if let Some(passed) = &request.sandbox_config
        && !passed.log_directory.is_empty()
    {
        sandbox.log_directory.clone_from(&passed.log_directory);
    }
    let target = target_pid(pod, &request.config)?;
    let text = |path: &'static str| node.images.rootfs_text(rootfs, path);
    let passwd = text("/etc/passwd").await.step("image")?;
    let group = text("/etc/group").await.step("image")?;
    let record = container.cell.get();
    let paths = oci::image_volumes(&record.config, &facts);
    oci::check_volumes(&paths)?;
    let dir = node.dirs.volumes(&container.id);
    let volumes = image_volumes::fill(&node.images, paths, &dir, rootfs).await?;
    let trees = mounted.iter().map(|(at, (tree, _))| (at, tree));
    let image_mounts = trees.map(|(at, tree)| (at.clone(), tree.clone())).collect();
    let config = request.config.clone();
    let (id, at) = (container.id.clone(), node.dirs.rootfs(&container.id));
    let (own, policy) = (Arc::clone(node), Arc::clone(message::policy(node, pod)));
    let built = move |session: &Session| {
        let profile = match oci::from_cri::seccomp_choice(&config, &policy)? {
            SeccompKind::Localhost(path) => Some(read_profile(session, &path)?),
            SeccompKind::Unconfined | SeccompKind::RuntimeDefault => None,
        };
        oci::container_spec(&Inputs {
            id: &id,
            config: &config,
            sandbox: &sandbox,
            host: &own.host,
            policy: &policy,
            image: &facts,
            view: session,
            rootfs: &at,
            passwd: passwd.as_deref(),
            group: group.as_deref(),
            seccomp_profile: profile.as_deref(),
            target_pid_namespace: target.as_deref(),
            volumes: &volumes,
            image_mounts: &image_mounts,
        })
        .map_err(Error::from)
    };
    let ending = container.ends_within(LOOKUP);
    node.lookups.run(&pod.id, ending, built).await?
}

/// Completes the record and marks the begin of the hook.
async fn complete(
    cx: &Pods,
    container: &Container,
    image: &ImageRecord,
    built: &ContainerSpec,
    mounted: &ImageMounts,
) -> Result<()> {
    let begun = if cx.notices.hooks.enabled() {
        Mark::Begun
    } else {
        Mark::None
    };
    let id = image.id.to_string();
    container
        .cell
        .change(|record| {
            let asked = record.config.image.clone().unwrap_or_default();
            record.image = ContainerImage {
                name: image.repo_tags.first().cloned().unwrap_or(asked.image),
                reference: image
                    .repo_digests
                    .first()
                    .cloned()
                    .unwrap_or_else(|| id.clone()),
                id,
                user_specified: asked.user_specified_image,
                annotations: asked.annotations,
                runtime_handler: asked.runtime_handler,
            };
            for mount in &mut record.config.mounts {
                let id = mounted.get(&mount.container_path).map(|(_, id)| id);
                if let (Some(image), Some(id)) = (&mut mount.image, id) {
                    image.image_ref.clone_from(id);
                }
            }
            record.log_path.clone_from(&built.log_path);
            record.user = ContainerUser {
                uid: i64::from(built.user.uid),
                gid: i64::from(built.user.gid),
                groups: built
                    .user
                    .supplemental_groups
                    .iter()
                    .map(|g| i64::from(*g))
                    .collect(),
            };
            record.stop_signal = built.stop_signal.cri.into();
            record.stop_signal_number = built.stop_signal.number;
            record.resources = built.resources.clone();
            record.hooks.create = begun;
        })
        .await?;
    Ok(())
}

/// The CreateContainer hook: applies updates of other containers, then the adjustment of this one.
async fn adjust(cx: &Pods, pod: &Pod, container: &Container, mut specs: Specs) -> Result<Specs> {
    let (node, hooks) = (&cx.node, &cx.notices.hooks);
    let answer = hooks.create_container(pod, container, &specs).await?;
    let until = resources::deadline();
    side_effects::apply(cx, pod, container, &answer.others, until).await;
    // This releases the turn.
    let Some(Adjusted { adjustment, owners }) = answer.into_own() else {
        return Ok(specs);
    };
    let mut spec = specs.spec.clone();
    let (own, policy) = (Arc::clone(node), Arc::clone(message::policy(node, pod)));
    let asked = adjustment.clone();
    let set_by = owners.container(&container.id).cloned().unwrap_or_default();
    let applied = move |session: &Session| {
        let context = ApplyContext {
            host: &own.host,
            policy: &policy,
            view: session,
        };
        oci::apply_adjustment(&mut spec, &asked, &context)
            .map(|()| spec)
            .map_err(|error| Error::from(error.set_by(&set_by)))
    };
    let ending = container.ends_within(LOOKUP);
    let applied = node.lookups.run(&pod.id, ending, applied).await;
    let spec = applied
        .map_err(Error::from)
        .flatten()
        .map_err(|error| error.at(APPLY))?;
    specs.base = Some(std::mem::replace(&mut specs.spec, spec));
    specs.adjustment = adjustment;
    specs.owners = (&owners).into();
    let placed = adjusted_cgroup::place(cx, container, &specs).await;
    placed.map_err(|error| error.at(APPLY))?;
    container.set_message(&message::from_spec(node, pod, container, &specs));
    Ok(specs)
}

/// In reverse order. Each step is idempotent; the sweep at the next start removes leftovers.
pub async fn undo(cx: &Pods, pod: &Pod, container: &Container) {
    if container.cell.get().hooks.create != Mark::None {
        // All plugins get Stop and Remove (NRI-430). The caller already has an error.
        container_exit::stop_container_hook(cx, pod, container).await;
        let _ = cx.notices.hooks.remove_container(pod, container).await;
    }
    let node = &cx.node;
    let released = node.images.release_rootfs(&container.id).await;
    let volumes = node.dirs.volumes(&container.id);
    let volumes = remove_large_dir(&node.images, &volumes).await;
    let steps = [
        ("specs", node.specs.remove(&container.id).await),
        ("root file system", released.step("release")),
        ("volumes", volumes),
        ("record", container.cell.delete().await.map_err(Error::from)),
    ];
    for (step, result) in steps {
        if let Err(error) = result {
            tracing::error!(container = %container.id, step, %error, "undo of a failed CreateContainer");
        }
    }
    pod.forget(&container.id);
}

fn read_profile(session: &Session, path: &str) -> Result<String> {
    let what = format!("seccomp profile {path:?}");
    match session.text(path, PROFILE_MAX).step(&what)? {
        Some(text) => Ok(text),
        None => Err(Error::invalid(format!("{what}: longer than 4 MiB"))),
    }
}

/// CRI-200, TARGET: a running container of the same sandbox.
fn target_pid(pod: &Pod, config: &cri::ContainerConfig) -> Result<Option<PathBuf>> {
    let linux = config.linux.as_ref();
    let context = linux.and_then(|linux| linux.security_context.as_ref());
    let options = context.and_then(|context| context.namespace_options.as_ref());
    let of_target = |options: &&cri::NamespaceOption| options.pid() == cri::NamespaceMode::Target;
    let Some(options) = options.filter(of_target) else {
        return Ok(None);
    };
    let target = pod
        .container(&options.target_id)
        .map(|container| container.cell.get())
        .filter(|record| record.phase == ContainerPhase::Running);
    let process = target.and_then(|record| record.process.clone());
    match process {
        Some(process) => Ok(Some(process.pid_namespace())),
        None => Err(Error::invalid(format!(
            "namespace_options.target_id {:?}: no running container of this sandbox",
            options.target_id
        ))),
    }
}

fn image_facts(image: &ImageRecord, config: &cri::ContainerConfig) -> ImageFacts {
    let asked = config.image.clone().unwrap_or_default();
    let run = image.run.clone();
    ImageFacts {
        name: image.repo_tags.first().cloned().unwrap_or(asked.image),
        digest: image.repo_digests.first().cloned().unwrap_or_default(),
        config_digest: image.id.to_string(),
        entrypoint: run.entrypoint,
        cmd: run.cmd,
        env: run.env,
        user: run.user,
        working_dir: run.working_dir,
        volumes: run.volumes,
        stop_signal: run.stop_signal,
    }
}

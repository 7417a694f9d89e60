//! Images as the runtime service uses them: mounts, pins, pulls: CRI-170…177, 410, 440…447.

use std::fs;

use cairn_tests::{
    Daemon, Setup, cri,
    image::{Image, Layer},
    pod::{newer_image, pod_namespaces, user_namespace},
    registry::start as start_registry,
};
use proto_cri::v1 as newer;

use crate::escape::pull;

pub(crate) fn spec(reference: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        image: reference.to_owned(),
        ..Default::default()
    }
}

pub(crate) async fn status(daemon: &Daemon, reference: &str) -> Option<cri::Image> {
    let request = cri::ImageStatusRequest {
        image: Some(spec(reference)),
        verbose: false,
    };
    let mut client = daemon.cri().client.image;
    client
        .image_status(request)
        .await
        .expect("ImageStatus")
        .into_inner()
        .image
}

pub(crate) async fn remove(daemon: &Daemon, reference: &str) {
    let request = cri::RemoveImageRequest {
        image: Some(spec(reference)),
    };
    daemon
        .cri()
        .client
        .image
        .remove_image(request)
        .await
        .expect("RemoveImage");
}

fn image_mount(image: &str) -> newer::Mount {
    newer::Mount {
        container_path: "/volume".to_owned(),
        readonly: true,
        image: Some(newer_image(image)),
        ..Default::default()
    }
}

#[tokio::test]
async fn the_status_of_a_container_names_the_image_that_is_mounted() {
    let daemon = Daemon::start().await;
    let name = "localhost/cairn-test/data:1";
    let id = daemon
        .import(&Image::busybox(name).layer(Layer::default().file("data", 0o644, b"of the image")))
        .await;
    let pod = daemon.cri().pod("image-volume").await;
    let mut config = pod.cri.newer_config("c", &["sleep", "1000"]);
    config.mounts = vec![image_mount(name)];
    let container = pod.try_create_newer(config).await.expect("CreateContainer");
    container.start().await.expect("StartContainer");
    assert_eq!(
        container.exec(&["cat", "/volume/data"]).await,
        "of the image"
    );
    // By the id of the image at that time: the name may refer to another one now.
    remove(&daemon, name).await;
    let request = newer::ContainerStatusRequest {
        container_id: container.id.clone(),
        verbose: false,
    };
    let status = pod.cri.client.newer.clone().container_status(request).await;
    let status = status.expect("ContainerStatus").into_inner().status;
    let mounts = status.expect("a status").mounts;
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    let image = mounts[0].image.as_ref().expect("an image");
    assert_eq!((image.image.as_str(), &image.image_ref), (name, &id));
    pod.end().await;
}

#[tokio::test]
async fn an_image_that_the_operator_pins_is_told_as_pinned() {
    let (kept, other) = (
        "localhost/cairn-test/kept:1",
        "localhost/cairn-test/other:1",
    );
    let setup = Setup::default().toml(&format!("[image]\npinned = [\"{kept}\"]"));
    let mut daemon = Daemon::with(setup).await;
    for name in [kept, other] {
        let layer = Layer::default().file("own", 0o644, name.as_bytes());
        daemon.import(&Image::busybox(name).layer(layer)).await;
    }
    let pinned = async |daemon: &Daemon, name| status(daemon, name).await.map(|i| i.pinned);
    assert_eq!(pinned(&daemon, kept).await, Some(true));
    assert_eq!(pinned(&daemon, other).await, Some(false));
    // An image that existed before the operator configured its pin is pinned at the next start.
    let file = daemon.path("cairn.toml");
    let text = fs::read_to_string(&file).expect("the daemon's");
    fs::write(&file, text.replace(kept, other)).expect("a file");
    daemon.kill_and_restart().await;
    assert_eq!(pinned(&daemon, other).await, Some(true));
    // Pins prevent garbage collection; an explicit removal succeeds.
    remove(&daemon, other).await;
    assert_eq!(pinned(&daemon, other).await, None);
}

#[tokio::test]
async fn an_image_is_mounted_in_a_user_namespace_with_the_pods_mappings_and_no_others() {
    let daemon = Daemon::start().await;
    let name = "localhost/cairn-test/data:1";
    daemon
        .import(&Image::busybox(name).layer(Layer::default().file("data", 0o644, b"of the image")))
        .await;
    let mut config = daemon.cri().pod_config("mapped");
    pod_namespaces(&mut config).userns_options = Some(user_namespace());
    let pod = daemon.cri().try_pod(config).await.expect("RunPodSandbox");
    let ids = |host_id| newer::IdMapping {
        container_id: 0,
        host_id,
        length: 65_536,
    };
    let create = |container: &str, mappings: Vec<newer::IdMapping>| {
        let mut config = pod.cri.newer_config(container, &["sleep", "1000"]);
        config.mounts = vec![newer::Mount {
            uid_mappings: mappings.clone(),
            gid_mappings: mappings,
            ..image_mount(name)
        }];
        let context = newer::LinuxContainerSecurityContext {
            namespace_options: Some(newer::NamespaceOption {
                pid: newer::NamespaceMode::Container.into(),
                userns_options: Some(newer::UserNamespace {
                    mode: newer::NamespaceMode::Pod.into(),
                    uids: vec![ids(100_000)],
                    gids: vec![ids(100_000)],
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        config.linux = Some(newer::LinuxContainerConfig {
            security_context: Some(context),
            ..Default::default()
        });
        pod.try_create_newer(config)
    };
    for (container, mappings) in [("without", vec![]), ("with", vec![ids(100_000)])] {
        let container = create(container, mappings).await.expect("CreateContainer");
        container.start().await.expect("StartContainer");
        let seen = container.sh("cat /volume/data; stat -c %u:%g /volume/data");
        assert_eq!(seen.await, "of the image0:0");
    }
    let refused = create("other", vec![ids(131_072)]).await;
    let refused = refused.expect_err("not the pod's mapping");
    assert!(
        refused.message().contains("mappings of the pod"),
        "{refused}"
    );
    pod.end().await;
}

const REGISTRY: &str = "127.0.0.1:5000";

#[tokio::test]
async fn a_pulled_image_runs_and_has_the_id_that_pull_returned() {
    let daemon = Daemon::start().await;
    let layer = Layer::default().file("pulled", 0o644, b"yes");
    let image = Image::busybox("unused").layer(layer);
    let (blobs, served) = (image.blobs(), vec![("library/pulled:1", image.blobs())]);
    let _registry = start_registry(&daemon.yard, REGISTRY, served, |_| None);
    let name = format!("{REGISTRY}/library/pulled:1");
    let id = pull(&daemon, &name, None).await.expect("PullImage");
    assert_eq!(id, blobs.id);
    let image = status(&daemon, &name).await.expect("it was pulled");
    assert_eq!((&image.id, &image.repo_tags), (&id, &vec![name.clone()]));
    assert_eq!(
        image.repo_digests,
        [format!("{REGISTRY}/library/pulled@{}", blobs.manifest)]
    );
    let pod = daemon.cri().pod("pulled").await;
    let mut config = pod.cri.container_config("c", &["cat", "/pulled"]);
    config.image = Some(spec(&id));
    let container = pod.started(config).await;
    let ended = container.exited().await;
    assert_eq!((ended.exit_code, ended.image_id), (0, id.clone()));
    assert_eq!(container.records()[0].content, b"yes");
    pod.end().await;
    remove(&daemon, &name).await;
    let by_digest = format!("{REGISTRY}/library/pulled@{}", blobs.manifest);
    let pulled = pull(&daemon, &by_digest, None).await;
    assert_eq!(pulled.expect("PullImage"), id);
    let image = status(&daemon, &by_digest).await.expect("it was pulled");
    assert!(image.repo_tags.is_empty(), "a pull by digest gives no tag");
}
